"""Typed reading of an untrusted mapping: every fault is noted with its key, none is fatal alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from wattree.capture.shape import CHOICES, LARGEST_COUNT, MOST_LAYERS, TransformerShape
from wattree.errors import ModelError, did_you_mean, nearest

_LONGEST_SHOWN: Final = 60


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


class ConfigReader:
    """A mapping read key by key.

    Each method takes the names a value may have, in order of preference, and what it is when
    absent or null (`null`, where that differs); without a default its absence is a fault. A fault
    is added to `problems`, and a harmless value is returned so that reading goes on; `finish`
    raises them all at once.

    Attributes:
        where: File or name, as an error message shows it.
        problems: One line for each fault so far.
    """

    def __init__(self, mapping: Mapping[str, Any], where: str) -> None:
        self._mapping = mapping
        self.where = where
        self.problems: list[str] = []
        self._faulty: set[str] = set()

    def has(self, key: str) -> bool:
        """Return whether `key` is there and not null."""
        return self._mapping.get(key) is not None

    def mentions(self, key: str) -> bool:
        """Return whether `key` is there, be it null."""
        return key in self._mapping

    def is_list(self, key: str) -> bool:
        """Return whether `key` holds a list."""
        return isinstance(self._mapping.get(key), (list, tuple))

    def _find(self, keys: Sequence[str]) -> tuple[str, Any]:
        for key in keys:
            if self.has(key):
                return key, self._mapping[key]
        return keys[0], None

    def fault(self, key: str, found: object, expected: str) -> None:
        """Note that `key` holds something else than expected."""
        self._note(f"{key}: found {_shown(found)}, expected {expected}")

    def _missing(self, keys: Sequence[str], expected: str) -> None:
        names = " or ".join(f"'{key}'" for key in keys)
        self._note(f"{keys[0]}: is missing; give {names}, {expected}")
        self._faulty.update(keys)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:  # keys may be read for several fields
            self.problems.append(problem)

    def count(
        self,
        *keys: str,
        default: int | None = None,
        null: int | None = None,
        least: int = 1,
        most: int = LARGEST_COUNT,
    ) -> int:
        """Return a whole number from `least` to `most`."""
        key, value = self._find(keys)
        expected = f"a whole number from {least} to {most}"
        if value is None:
            if null is not None and any(map(self.mentions, keys)):
                return null
            if default is None:
                self._missing(keys, expected)
                return max(1, least)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fault(key, value, expected)
            self._faulty.update(keys)
        else:
            return value
        return max(1, least)

    def flag(self, *keys: str, default: bool) -> bool:
        """Return a truth value."""
        key, value = self._find(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, value, "true or false")
            return default
        return value

    def share(self, *keys: str, default: float) -> float:
        """Return a probability below one."""
        key, value = self._find(keys)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            self.fault(key, value, "a number of at least 0 and below 1")
            return default
        return float(value)

    def positive(self, *keys: str, default: float) -> float:
        """Return a number above zero."""
        key, value = self._find(keys)
        if value is None:
            return default
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not 0 < value <= LARGEST_COUNT:
            self.fault(key, value, f"a number above 0 and at most {LARGEST_COUNT}")
            return default
        return float(value)

    def least_zero(self, key: str) -> float:
        """Return a number of at least zero, which stands for none."""
        _, value = self._find((key,))
        is_none = isinstance(value, (int, float)) and value == 0
        return 0.0 if is_none else self.positive(key, default=0.0)

    def text(self, *keys: str, default: str, choices: Iterable[str] | None = None) -> str:
        """Return a word, one of `choices` if given."""
        key, value = self._find(keys)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, value, "a word in quotes")
            return default
        if choices is not None and value not in (known := tuple(choices)):
            hint = did_you_mean(value, known, before="; ", after="")
            self.fault(key, value, f"one of {', '.join(known)}{hint}")
            return default
        return value

    def sequence(self, *keys: str) -> tuple[Any, ...] | None:
        """Return a list, or None if there is none."""
        key, value = self._find(keys)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            self.fault(key, value, "a list")
            return None
        return tuple(value)

    def indices(self, *keys: str, below: int = LARGEST_COUNT) -> tuple[int, ...] | None:
        """Return a list of layer numbers below the number of layers, or None if there is none."""
        values = self.sequence(*keys)
        if values is None:
            return None
        if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in values):
            self.fault(keys[0], list(values), "a list of layer numbers from 0")
            return None
        if values and max(values) >= below:
            self.fault(keys[0], max(values), f"layer numbers from 0 to {below - 1}")
        return values

    def section(self, key: str) -> ConfigReader:
        """Return a reader of a nested mapping; its faults end up here too."""
        value = self._mapping.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.fault(key, value, "a mapping")
        nested = ConfigReader(value if isinstance(value, Mapping) else {}, f"{self.where}: {key}")
        nested.problems = self.problems
        return nested

    def require_divisor(self, key: str, divisor: int, of_key: str, value: int) -> None:
        """Note a fault unless `divisor` divides `value`, both having been read without fault."""
        if value % divisor and not self._faulty & {key, of_key}:
            self.fault(key, divisor, f"a number that divides {of_key} ({value})")

    def require_length(self, key: str, values: Sequence[object], layers: int) -> None:
        """Note a fault unless a list has one entry for each layer."""
        if len(values) != layers:
            self.fault(key, f"{len(values)} entries", f"{layers}, one for each layer")

    def only_keys(self, known: Iterable[str]) -> None:
        """Note every key that is not known, with the nearest that is."""
        names = tuple(known)
        for key in self._mapping:
            if key not in names:
                guess = nearest(str(key), names)
                hint = f"did you mean '{guess}'?" if guess else f"known: {', '.join(names)}"
                self.problems.append(f"{key}: unknown key; {hint}")

    def finish(self) -> None:
        """Raise `ModelError` with every fault noted so far, if there is one."""
        if len(self.problems) == 1:
            raise ModelError(f"{self.where}: {self.problems[0]}")
        if self.problems:
            lines = [f"  {problem}" for problem in self.problems]
            raise ModelError("\n".join([f"{self.where}: {len(self.problems)} problems:", *lines]))


#: Field of a shape → its declared type.
_TYPES: Final = {field.name: str(field.type) for field in fields(TransformerShape)}
_LAYER_COUNTS: Final = ("layers", "encoder_layers")
_RATIOS: Final = ("decoder_sequence_ratio",)


def field_value(
    reader: ConfigReader,
    field: str,
    *keys: str,
    default: Any,
    null: int | None = None,
    least: int = 1,
) -> Any:
    """Return the value of a field of `TransformerShape`, read as the field is declared.

    Args:
        reader: The file.
        field: Its name.
        keys, default, null, least: As of the methods of readers.
    """
    match _TYPES[field]:
        case "bool":
            return reader.flag(*keys, default=default)
        case "str":
            return reader.text(*keys, default=default, choices=CHOICES.get(field))
        case "float":
            read = reader.positive if field in _RATIOS else reader.share
            return read(*keys, default=default)
        case "int":
            most = MOST_LAYERS if field in _LAYER_COUNTS else LARGEST_COUNT
            return reader.count(*keys, default=default, null=null, least=least, most=most)
    return reader.indices(*keys)

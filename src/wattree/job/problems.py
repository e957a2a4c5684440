"""Everything that is wrong with a file, gathered, in words: where, found, expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, TracebackType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from wattree.errors import HardwareError, JobError, StrategyError, WattreeError, nearest
from wattree.files import refusal

M = TypeVar("M", bound=BaseModel)

#: More lines than this help no one; the rest is counted.
MOST_PROBLEMS = 50
MOST_SHOWN = 80
_KNOWN = "known keys: "


class Problems:
    """Collects faults; `check` raises them all at once.

    Attributes:
        source: The file, as messages name it.
        lines: One `place: what` per fault.
        warnings: The same for what has no fault and may still not be what was meant.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def add(self, place: str, fault: str) -> None:
        """Note `fault` at `place`."""
        self.lines.append(f"{place}: {fault}" if place else fault)

    def warn(self, place: str, what: str) -> None:
        """Note something at `place` that refuses nothing."""
        self.warnings.append(f"{place}: {what}")

    def at(self, place: str) -> _Place:
        """Return a context that turns an error of ours inside it into faults at `place`."""
        return _Place(self, place)

    def read(self, model: type[M], value: object, place: str) -> M | None:
        """Return `value` as `model`, or None after noting everything that is wrong with it."""
        if not isinstance(value, Mapping):
            self.add(place, f"{seen(value)}, expected a mapping of {_keys(model)}")
            return None
        try:
            return model.model_validate(value)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=True)
            for fault in faults:
                self.lines.append(_line(model, fault, place))
            return None

    def unknown_keys(self, value: Mapping[Any, Any], known: Iterable[str], place: str) -> None:
        """Note every key of `value` that is not `known`."""
        names = tuple(known)
        for key in value:
            if key not in names:
                self.add(place, unknown_key(key, names))

    def check(self) -> None:
        """Raise `JobError` with all faults, if there are any."""
        if not self.lines:
            return
        raise refusal(self.source, _listed_once(self.lines), most=MOST_PROBLEMS)


class _Place:
    """Notes an error instead of letting it pass."""

    def __init__(self, problems: Problems, place: str) -> None:
        self._problems, self._place = problems, place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, WattreeError):
            return False
        if isinstance(error, StrategyError):  # carries places of its own
            for where, fault in error.misfits.items():
                self._problems.add(where, fault)
        elif isinstance(error, HardwareError) and error.misfits:  # keys of what is described here
            for key, fault in error.misfits.items():
                self._problems.add(f"{self._place}.{key}", fault)
        elif isinstance(error, JobError):  # of another file, which this one names
            for fault in error.problems:
                self._problems.add(self._place, f"{error.source}: {fault}")
        else:
            self._problems.add(self._place, str(error))
        return True


def seen(value: object) -> str:
    """Return what stands in a place, as the beginning of a message."""
    return "is missing" if value is None else f"found {shown(value)}"


def shown(value: object) -> str:
    """Return `value` as a message shows it: short, in the words of the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} keys" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items" if value else "an empty list"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = repr(value[: MOST_SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Return what to say about a key that nothing reads."""
    names = tuple(known)
    guess = nearest(key, names) if isinstance(key, str) and len(key) <= MOST_SHOWN else None
    hint = f"did you mean '{guess}'? " if guess else ""
    if not guess and "arguments" in names:  # of a model by name or module
        hint = "put an option of the model itself in 'arguments'; "
    return f"unknown key {shown(key)}; {hint}{_KNOWN}{', '.join(names)}"


def _listed_once(lines: Iterable[str]) -> list[str]:
    """Return faults, of which only the first with the same known keys lists them."""
    found, listed = [], set[str]()
    for line in lines:
        head, _, known = line.partition(_KNOWN)
        found.append(head.rstrip("; ") if known in listed else line)
        listed |= {known} - {""}
    return found


def _line(model: type[BaseModel], fault: Any, place: str) -> str:
    location = [part for part in fault["loc"] if part != "[key]"]
    where = ".".join([*([place] if place else []), *(_segment(part) for part in location)])
    parent, description = _described(model, location)
    match fault["type"]:
        case "extra_forbidden":
            above = ".".join(
                [*([place] if place else []), *(_segment(part) for part in location[:-1])]
            )
            message = unknown_key(location[-1], parent.model_fields if parent else ())
            return f"{above}: {message}" if above else message
        case "missing":
            return f"{where}: is missing, expected {description}"
        case "value_error":  # raised by a check of ours, in full words
            return f"{where}: {fault['ctx']['error']}"
        case "invalid_key":
            return f"{where}: found the key {shown(fault['input'])}, expected a name; quote it"
    return f"{where}: {seen(fault['input'])}, expected {description}"


def _segment(part: object) -> str:
    if not isinstance(part, str):
        return shown(part)
    short = part if len(part) <= MOST_SHOWN else part[:MOST_SHOWN] + "…"
    return short if short and short.isprintable() and "." not in short else shown(short)


def _described(model: type[BaseModel], location: list[Any]) -> tuple[type[BaseModel] | None, str]:
    """Return the model that holds the last part of `location`, and what is expected there."""
    here: Any = model
    holder: type[BaseModel] | None = None
    description = "something else"
    for part in location:
        here = _bare(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            holder = here
            field = here.model_fields.get(str(part))
            if field is None:
                return holder, description
            here, description = field.annotation, field.description or description
        else:
            arguments = get_args(here)
            here = arguments[-1] if arguments else here
    return holder, description


def _bare(annotation: Any) -> Any:
    """Return an annotation without `| None` and without `Annotated`."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation = annotation.__origin__
        elif get_origin(annotation) in {Union, UnionType}:
            annotation = next(a for a in get_args(annotation) if a is not NoneType)
        else:
            return annotation


def _keys(model: type[BaseModel]) -> str:
    return ", ".join(model.model_fields)


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as a file writes them: `0-7, 16-23`, with a step `0-14:2`."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end, step = at + 1, 1
        if end < len(numbers) and numbers[end] > numbers[at]:
            step = numbers[end] - numbers[at]
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if step > 1 and end - at == 2:  # two numbers are no row
            end = at + 1
        text = str(numbers[at])
        if end - at > 1:
            text += f"-{numbers[end - 1]}" + (f":{step}" if step > 1 else "")
        parts.append(text)
        at = end
    return ", ".join(parts)

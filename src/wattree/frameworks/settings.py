"""The settings of a framework's configuration while it is read, and their problems.

Readers take settings by key and say what they expect; a key that none of them asked for has not
been understood.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from wattree.dotted import dotted
from wattree.files import refusal
from wattree.job.problems import MOST_PROBLEMS, seen, shown

#: Attribute → option of the command.
OPTIONS: Final = {
    "model": "--model",
    "node": "--cluster",
    "sequence_length": "--sequence-length",
    "global_batch": "--global-batch",
    "micro_batch": "--micro-batch",
    "accumulation": "--accumulation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts that a user adds to a configuration; None if not given.

    Attributes:
        model: Catalog name, or path of a `config.json`.
        node: Node of the cluster.
        sequence_length: Tokens of a sample.
        global_batch, micro_batch: Samples of a step; of a forward pass and replica.
        accumulation: Micro-batches of a step and replica.
    """

    model: str | None = None
    node: str | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None


T = TypeVar("T")
#: Beyond any count, size in bytes or rate; products of a few of them are still numbers.
_MOST = 1e15
#: How alike two names have to be for one to be a slip of the other.
_ALIKE = 0.8
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


class Settings:
    """Settings of one configuration, by dotted key.

    Attributes:
        path: Of the file.
        devices: Of the cluster that the user named; None if none was named.
        devices_per_node: Of its nodes, or of those that are assumed.
        names_node: Whether the user named its node.
        given: Values of the user for keys that the file lacks.
        notes: What was assumed, one sentence each.
        problems: Problems, one `key: problem` each.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        devices: int | None = None,
        devices_per_node: int = 8,
        names_node: bool = False,
        given: Given | None = None,
    ) -> None:
        self.path, self.devices, self.devices_per_node = path, devices, devices_per_node
        self.names_node = names_node
        self.given = given or Given()
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._settings = dict(dotted(settings))
        self._read: set[str] = set()
        self._asked: set[str] = set()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Settings:
        """Return settings that come from no file."""
        return cls(Path(), settings)

    def __contains__(self, key: str) -> bool:
        """Return whether a setting, or anything under it, is given; null says nothing."""
        self._asked.add(key)
        if key in self._settings:
            return self._settings[key] is not None
        return any(k.startswith(f"{key}.") for k in self._settings)

    def expect(self, keys: Iterable[str]) -> None:
        """Note settings that have a meaning, given or not."""
        self._asked.update(keys)

    def put(self, key: str, *, value: object) -> None:
        """Set a setting that another one implies."""
        self._settings[key] = value

    def pop(self, key: str) -> Any:
        """Return a setting that others are put in place of, and forget it."""
        found = self.value(key)
        self._settings.pop(key, None)
        return found

    def value(self, key: str, default: Any = None) -> Any:
        """Return a setting as it is; a group of settings as a mapping."""
        self._asked.add(key)
        if key in self._settings:
            self._read.add(key)
            found = self._settings[key]
            return default if found is None else found
        under = {
            name.removeprefix(f"{key}."): found
            for name, found in self._settings.items()
            if name.startswith(f"{key}.")
        }
        self._read |= {f"{key}.{name}" for name in under}
        return under or default

    def count(self, key: str, default: int, *, least: int = 1) -> int:
        """Return a whole number; an invalid value is a problem and gives the default."""
        found = _number(self.value(key, default))
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or found < least:
            what = seen(self.value(key))
            self.problem(key, f"{what}, expected a whole number from {least}")
            return default
        return default if self._is_absurd(key, found) else found

    def fact(self, name: str, said: Any, *, usual: Any = None) -> Any:
        """Return a fact of a file, else the user's, else the program's default, which is noted.

        Two different values are a problem. None if neither states it and there is no default.

        Args:
            name: Attribute of `Given`.
            said: In the file; None if it says none.
            usual: What the program takes then.
        """
        added = getattr(self.given, name)
        if said is None and added is None and usual is not None:
            how = f"the program's default, as the file says none; {OPTIONS[name]} sets it"
            self.assume(f"{name} {shown(usual)}: {how}")
            return usual
        if None not in (said, added) and said != added:
            self.problem("", f"the file says {name} {shown(said)}, {OPTIONS[name]} {shown(added)}")
        return added if said is None else said

    def need(self, name: str, found: Any) -> None:
        """Note the lack of a fact that neither file nor user states as a problem."""
        if found is None:
            self.problem("", f"the file does not say {name}; add {OPTIONS[name]}")

    def counted(self, name: str, key: str, *, usual: int | None = None, least: int = 1) -> Any:
        """Return a fact that a file states as a whole number, as `fact` does.

        Args:
            name: Attribute of `Given`.
            key: Setting. What only a shell fills in is not stated, if the user gives the fact.
            usual: What the program takes where nothing is stated.
            least: Of the values that are possible; those below 1 state nothing.
        """
        said, known = self.value(key), len(self.problems)
        if isinstance(said, str) and "$" in said and getattr(self.given, name) is not None:
            said = None
        if said is not None:
            said = self.count(key, usual or 1, least=least)
        if len(self.problems) > known:
            return said  # of which nothing else is wrong
        return self.fact(name, said if said is None or said > 0 else None, usual=usual)

    def number(self, key: str, default: float, *, least: float = 0.0) -> float:
        """Return a number; an invalid value is a problem and gives the default."""
        found = _number(self.value(key, default))
        if not isinstance(found, int | float) or not found >= least:
            self.problem(key, f"{seen(self.value(key))}, expected a number from {least:g}")
            return default
        return default if self._is_absurd(key, found) else float(found)

    def _is_absurd(self, key: str, found: float) -> bool:
        """Whether a number is beyond all that is counted or measured, which is a problem."""
        if found > _MOST:
            self.problem(key, f"{seen(self.value(key))}, expected at most {_MOST:g}")
        return found > _MOST

    def flag(self, key: str, default: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Return a truth value; an invalid value is a problem and gives the default."""
        found = self.value(key, default)
        if isinstance(found, str):
            found = _TRUTH.get(found.lower(), found)
        if not isinstance(found, bool):
            self.problem(key, f"{seen(found)}, expected true or false")
            return default
        return found

    def choice(self, key: str, default: str, choices: Mapping[str, T]) -> T:
        """Return the value of a word, ignoring case.

        A word that is no choice is a problem, and what the default stands for is returned.
        """
        found = self.value(key, default)
        by_word = {name.lower(): meaning for name, meaning in choices.items()}
        if not isinstance(found, str) or found.lower() not in by_word:
            self.problem(key, f"{seen(found)}, expected one of {', '.join(choices)}")
            return by_word[default.lower()]
        return by_word[found.lower()]

    def text(self, key: str, default: str = "") -> str:
        """Return a text; an invalid value is a problem and gives the default."""
        found = self.value(key, default)
        if not isinstance(found, str):
            self.problem(key, f"{seen(found)}, expected a text")
            return default
        return found

    def assume(self, note: str) -> None:
        """Note an assumption."""
        if note not in self.notes:
            self.notes.append(note)

    def problem(self, key: str, what: str) -> None:
        """Note the problem of a setting."""
        if (line := f"{key}: {what}" if key else what) not in self.problems:
            self.problems.append(line)

    def replicas(self, others: int, *, multiple: int = 1) -> int:
        """Return the degree of data parallelism that the other degrees leave.

        Without a named cluster the fewest whole nodes are assumed.

        Args:
            others: Product of all other degrees.
            multiple: Of which replicas have to be one, where their number is assumed.
        """
        whole = self.devices
        if whole is None:
            least = others * multiple
            whole = math.lcm(least, self.devices_per_node)
            how = "--nodes sets it" if self.names_node else "--cluster and --nodes set it"
            self.assume(f"devices: {whole}, as the file leaves their number open: {how}")
        if whole % others:
            self.problem("", f"the degrees need a multiple of {others} devices, found {whole}")
            return 1  # of which no batch is wrong
        return whole // others

    def unread(self, ignored: tuple[str, ...] = ()) -> list[str]:
        """Return the settings that were not asked for and are not declared by `ignored`."""
        return [
            key
            for key in self._settings
            if key not in self._read
            and self._settings[key] is not None
            and not is_declared(key, ignored)
        ]

    def meant(self, key: str) -> str | None:
        """Return the setting that was asked for and is not given which a key may have meant.

        One of the same group with a slip in its name, or one of that name in another group. A slip
        of one that is given as well means no other.
        """
        group, _, name = key.rpartition(".")
        names: dict[str, str | None] = {}
        for asked in sorted(self._asked):
            own, _, last = asked.rpartition(".")
            if asked not in self._settings and (own == group or last == name):
                names[last] = names.get(last) or asked
            elif own == group and asked != key:
                names.setdefault(last, None)
        alike = get_close_matches(name, names, n=1, cutoff=_ALIKE)
        return names[alike[0]] if alike else None

    def refuse_sections(self, unread: Iterable[str]) -> None:
        """Refuse sections that nothing is read of, next to missing ones of a similar name.

        Args:
            unread: Settings that were not understood.

        Raises:
            JobError: There are such sections: what they set would be that of no other.
        """
        known = {group for key in self._asked if (group := key.rpartition(".")[0])}
        given = {key.rpartition(".")[0] for key in self._settings}
        for section in dict.fromkeys(key.rpartition(".")[0] for key in unread):
            if section not in known and (meant := meant_section(section, known - given)):
                self.problem(section, f"is unknown; did you mean '{meant}'?")
        self.check()

    def check(self) -> None:
        """Raise an error if the configuration has problems.

        Raises:
            JobError: With every problem.
        """
        if self.problems:
            raise refusal(str(self.path), self.problems, most=MOST_PROBLEMS) from None


#: Words of what steps depend on: only patterns with such a word have settings with it.
_TELLING: Final = (
    *("offload", "parallel", "recompute", "remat", "overlap", "expert", "shard", "semi_sync"),
    *("micro_batch", "train_batch", "precision", "dtype", "fp8", "fp4", "quantiz"),
    *("layers", "kernel", "lora", "attn"),
)


def is_declared(key: str, patterns: Iterable[str]) -> bool:
    """Return whether patterns of settings that cannot matter have a key.

    No wildcard takes a setting of a later release which is named like what steps depend on.
    """
    name = key.rpartition(".")[2]
    return any(
        fnmatchcase(key, pattern)
        and not any(word in name and word not in pattern for word in _TELLING)
        for pattern in patterns
    )


def words_of(value: object) -> list[str]:
    """Return the names in a list, or in a text as YAML, Python and a shell write lists."""
    texts = value if isinstance(value, list) else [] if value is None else [value]
    return [word for text in texts for word in re.findall(r"[\w.+-]+", str(text))]


def meant_section(name: str, missing: Iterable[str]) -> str | None:
    """Return which of the sections that a file lacks a name is a slip of; None if of none."""
    return next(iter(get_close_matches(name, sorted(missing), n=1, cutoff=_ALIKE)), None)


def _number(value: object) -> object:
    """Return texts that are numbers as numbers: flags of a command line are texts."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None

"""Every error that Wattree raises on purpose, as one tree.

    WattreeError                a user's mistake: exit code 2
    ├── UnitError               a quantity that cannot be read
    ├── UnknownNameError        a name that no registry or catalog holds
    ├── HardwareError           a device, node or cluster that cannot exist
    ├── ModelError              a model that cannot be read or built
    ├── ValuesNeededError       a module that only runs where tensors have values
    ├── StrategyError           a strategy that does not fit model or cluster
    ├── JobError                a job, study or other input file that cannot be used
    ├── CostError               a cost model asked outside its domain
    ├── SimulationError         an execution graph that cannot be executed
    ├── RowError                a measured row that cannot be expressed
    ├── RunError                runs, measured or simulated, that cannot be used
    ├── BaselineError           runs that lack what a simpler model of energy needs
    ├── CommunicationError      ranks that disagree, or a peer that is missing
    ├── JsonTextError           a text that is no JSON that can be used
    ├── DamagedRowError         a row of a store that does not hold what was written
    ├── MeterError              a meter that is absent, not permitted or not to be believed
    ├── InfeasibleError         nothing fits the constraints: exit code 3
    ├── SearchCancelledError    a search that someone ended
    ├── OutputError             a result that cannot be written
    └── MissingExtraError       an optional dependency that is not installed

Defects of our own are `assert`s and ordinary exceptions, never these.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from wattree.printable import printable

__all__ = [
    "BaselineError",
    "CommunicationError",
    "CostError",
    "DamagedRowError",
    "HardwareError",
    "InfeasibleError",
    "JobError",
    "JsonTextError",
    "MeterError",
    "MissingExtraError",
    "ModelError",
    "OutputError",
    "RowError",
    "RunError",
    "SearchCancelledError",
    "SimulationError",
    "StrategyError",
    "UnitError",
    "UnknownNameError",
    "ValuesNeededError",
    "WattreeError",
    "check_packages",
    "nearest",
]


class WattreeError(Exception):
    """Base of every error that a user can cause and correct.

    Names in its text may come from any file: as text it never steers the terminal that shows it.
    """

    def __str__(self) -> str:
        """Return what is wrong, fit to print."""
        return printable(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy message and attributes: processes send errors to each other."""
        # Of an error, pickle calls the class with the message alone, which several do not take.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UnitError(WattreeError):
    """A quantity has no number, no unit, or the unit of another dimension."""


class HardwareError(WattreeError):
    """A device, node, link or cluster is described impossibly.

    Attributes:
        misfits: Key of the description (`nodes`, `slowdown.7`) → reason, where keys are at fault.
        lines: The message, a line for each problem.
    """

    def __init__(self, problem: str | Mapping[str, str]) -> None:
        self.misfits: dict[str, str] = {} if isinstance(problem, str) else dict(problem)
        named = tuple(f"{key}: {reason}" for key, reason in self.misfits.items())
        self.lines = (problem,) if isinstance(problem, str) else named
        super().__init__("\n".join(self.lines))


class ModelError(WattreeError):
    """A model cannot be read, built or expressed as a graph."""


class ValuesNeededError(WattreeError):
    """A module recorded without values came to where they decide; it may still run with them."""


class CostError(WattreeError):
    """A cost model was asked for something outside its domain."""


class SimulationError(WattreeError):
    """An execution graph cannot be executed to its end."""


class RowError(WattreeError):
    """A measured row lacks what is needed to express it as a job."""


class BaselineError(WattreeError):
    """Runs lack what a simpler model of energy needs; the reason is for the table."""


class RunError(WattreeError):
    """Runs cannot be used. `problems` holds one line per fault, all of them.

    Attributes:
        source: File of the run; what asked for the runs where there are several.
        problems: What is wrong, each with its key.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__(_listed(source, problems))


class CommunicationError(WattreeError):
    """Ranks disagree about a layer, one does not answer, or an input does not fit its shard."""


class JsonTextError(WattreeError, ValueError):
    """A text is no JSON that can be used; the message says why, in a line."""


class DamagedRowError(WattreeError, ValueError):
    """A row of a store does not hold what was written."""


class MeterError(WattreeError):
    """A meter is absent, may not be read, or says what no meter can."""


class OutputError(WattreeError):
    """A result cannot be written where the user asked."""


class InfeasibleError(WattreeError):
    """No strategy satisfies the constraints.

    Attributes:
        rejected: Reason → candidates rejected for it.
        warnings: What could not be determined of the model for certain.
    """

    def __init__(
        self, message: str, rejected: Mapping[str, int], *, warnings: Sequence[str] = ()
    ) -> None:
        self.rejected, self.warnings = dict(rejected), tuple(warnings)
        super().__init__(message)


class SearchCancelledError(WattreeError):
    """The user cancelled a search, or the page that it was for was closed."""


class MissingExtraError(WattreeError):
    """An optional dependency is needed and absent.

    Args:
        extra: Of Wattree, that has it; of one that stands in none, it is installed by its name.
    """

    def __init__(self, *, needed_for: str, package: str, extra: str = "") -> None:
        self.extra = extra
        super().__init__(
            f"{needed_for} needs the package '{package}', which is not installed; "
            f"install it with: {install_command(extra) if extra else f'pip install {package}'}"
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra of Wattree, which comes as a checkout."""
    return f"pip install '.[{extra}]' in your checkout of Wattree"


def check_packages(*packages: str, needed_for: str, extra: str) -> None:
    """Refuse before any work where an optional dependency is absent.

    Args:
        extra: Of Wattree, that has them.

    Raises:
        MissingExtraError: The first of them that is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(needed_for=needed_for, package=package, extra=extra)


class UnknownNameError(WattreeError):
    """A name is not known. `known` lists the names that are; `alike` is that of `nearest`."""

    def __init__(
        self,
        *,
        kind: str,
        name: str,
        known: Iterable[str],
        where: str = "",
        hint: str = "",
        alike: float = 0.6,
    ) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        place = f"{where}: " if where else ""
        hints = _suggested(name, self.known, kind, alike) + hint
        super().__init__(f"{place}unknown {kind} '{name}'; {hints}")


class StrategyError(WattreeError):
    """A strategy does not fit the model or the cluster.

    Attributes:
        misfits: Path → reason. A path is a key of a job (`data.global_batch`), or an operator.
        source: File of the job whose strategy it is; empty where there is none.
    """

    def __init__(self, misfits: Mapping[str, str], *, source: str = "") -> None:
        self.misfits, self.source = dict(misfits), source
        if source:
            super().__init__(_listed(source, self.problems))
            return
        lines = [f"  at {path}: {reason}" for path, reason in sorted(misfits.items())]
        super().__init__("\n".join([f"strategy rejected, {len(lines)} problem(s):", *lines]))

    @property
    def problems(self) -> list[str]:
        """One line per misfit, as those of a job file."""
        return [_keyed(*item) for item in sorted(self.misfits.items())]


class JobError(WattreeError):
    """An input file cannot be used. `problems` holds one line per fault, all of them."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__(_listed(source, problems))


#: Misfits that say themselves which key of a job they are about.
_SECTIONS = ("cluster.", "data.", "model.", "strategy.")


def once_each(found: Mapping[str, str], more: str) -> dict[str, str]:
    """Return each cause at its first place, and how many further places it has.

    Args:
        found: Place → cause.
        more: Words for `{}` further places.
    """
    places: dict[str, list[str]] = {}
    for place, cause in found.items():
        places.setdefault(cause, []).append(place)
    return {
        first: cause if not others else f"{cause} (here and {more.format(len(others))})"
        for cause, (first, *others) in places.items()
    }


def _keyed(place: str, reason: str) -> str:
    """Return what does not fit; paths of operators stand under the strategy that splits them."""
    named = place == "strategy" or place.startswith(_SECTIONS)
    return f"{place}: {reason}" if named else f"strategy: {place}: {reason}"


def _listed(source: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    lines = [f"  {problem}" for problem in problems]
    return "\n".join([f"{source}: {len(lines)} problems:", *lines])


#: Up to so many known names are listed; of more, the closest few.
_MOST_LISTED, _MOST_SUGGESTED = 24, 5
#: What `wattree catalog` lists.
_IN_CATALOG = ("model", "device", "node", "fabric", "site")


def _suggested(name: str, known: Sequence[str], kind: str, alike: float) -> str:
    """Return what may have been meant, and which names are known, or where all of them are."""
    if len(known) <= _MOST_LISTED:
        hint = did_you_mean(name, known, alike=alike)
        return f"{hint}known: {', '.join(known) or 'none'}"
    close = difflib.get_close_matches(name.lower(), known, n=_MOST_SUGGESTED, cutoff=alike)
    quoted = " or ".join(f"'{each}'" for each in close)
    hint = f"did you mean {quoted}? " if close else ""
    listed = f"`wattree catalog {kind}s` lists all {len(known)}"
    return hint + (listed if kind in _IN_CATALOG else f"{len(known)} are known")


def did_you_mean(
    name: str, known: Iterable[str], *, before: str = "", after: str = " ", alike: float = 0.6
) -> str:
    """Return the question whether the nearest known name was meant; empty if none is close."""
    guess = nearest(name, known, alike=alike)
    return f"{before}did you mean '{guess}'?{after}" if guess else ""


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """Return the known name closest to `name` in spelling, or None if none is close.

    Args:
        alike: Share of letters in common, in order, from which one is close.
    """
    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=alike)
    return folded[close[0]] if close else None

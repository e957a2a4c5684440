"""Files of constants: reading, checks by name, and merging with the constants that ship."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from wattree.cost.calibration import (
    LEARNED_ITEMS,
    PROFILED_ITEMS,
    RESIDUAL_NAMES,
    Calibration,
    Constant,
    Residuals,
)
from wattree.cost.families import SOFTWARE
from wattree.cost.observation_file import observations_of
from wattree.errors import JobError, nearest
from wattree.files import read_yaml, refusal
from wattree.kinds import wrong_kind

#: Value of `base` of a file that holds only what differs from the calibration that ships.
SHIPPED_BASE = "shipped"
_SHIPPED = Path(__file__).with_name("calibration.yaml")
#: Spreads of earlier versions, which were the same for language models and networks.
_UNGROUPED = tuple(f"step_time_s.{name}." for name in ("level", "software", "model", "size"))
_OF_SOFTWARE = (".slower.measured", ".slower.unmeasured")
_FIT_AGAIN = "as by 'wattree validate --rows FILE --fit'"
_KEYS = ("base", "constants", "left_out", "observations", "profile", "residuals")
_RESIDUAL_KEYS = ("command", "rows", "spreads")
_ENTRY_KEYS = ("value", "evidence", "source", "spread")
EVIDENCE = ("measured", "fitted", "pooled", "chosen")
_SCOPES = ("device", "die", "architecture", "family", "pooled", "general")
_FAMILY_ITEMS = (
    "math",
    "elementwise",
    "written_out",
    "module_launch_s",
    "compiled_launch_s",
    "program_launch_s",
    "step_overhead_s",
    "earlier_launch_s",
    "earlier_step_overhead_s",
)
#: Items of earlier versions that had several meanings → what to do.
_EARLIER_ITEMS = {
    "launch_s": "is of an earlier version; rename it to what launches: 'module_launch_s' (modules "
    "in Python), 'compiled_launch_s' (what PyTorch compiles) or 'program_launch_s' (XLA)",
}
_LISTED, MOST = 20, 1e30
#: A logarithm with a wider spread says nothing at all.
MOST_SPREAD = 5.0


def load_calibration(path: str | Path | None = None) -> Calibration:
    """Return the calibration in `path`, or the one that ships with Wattree.

    A file with `base: shipped` holds what differs from the constants that ship; any other holds
    all constants.

    Raises:
        JobError: The file is no calibration; every fault is listed.
    """
    if path is None:
        return _shipped()
    shipped = _shipped().constants
    raw = read_yaml(path)
    if why := wrong_kind(raw, "a calibration"):
        raise JobError(str(path), [why])
    unknown = sorted(map(str, raw.keys() - set(_KEYS)))
    problems = [f"{key}: is unknown; {_hint(key, _KEYS)}" for key in unknown]
    base = raw.get("base")
    if base not in (None, SHIPPED_BASE):  # no set: a mapping or list has no hash
        problems.append(
            f"base: found {base!r}, expected '{SHIPPED_BASE}', or no such key in a file that holds "
            "all constants"
        )
    constants = _read(path, raw, problems=problems)
    known = _Names(shipped)
    problems += [fault for name in constants if (fault := known.fault(name))]
    residuals = _residuals(raw, problems)
    observations = observations_of(raw, problems)
    if base is None and not problems:
        problems += _missing(constants, shipped)
    if problems:
        raise refusal(str(path), problems, most=_LISTED)
    return Calibration(
        constants={**shipped, **constants} if base else constants,
        source=str(path),
        left_out=_left_out(raw),
        residuals=_over(residuals, _shipped().residuals),
        observations=observations,
    )


@cache  # one file, that does not change while the program runs
def _shipped() -> Calibration:
    raw = read_yaml(_SHIPPED)
    return Calibration(
        constants=_read(_SHIPPED, raw, problems=[]),
        source="shipped",
        left_out=_left_out(raw),
        residuals=_residuals(raw, []),
    )


def constant_lines(constants: Mapping[str, Constant]) -> list[str]:
    """Return the lines of the section `constants` of a file, with its key."""
    lines = ["constants:"]
    for name, constant in sorted(constants.items()):
        source = constant.source.replace('"', "'")
        spread = f", spread: {constant.spread:.3g}" if constant.spread else ""
        lines.append(
            f"  {name}: {{value: {constant.value:.6g}{spread}, evidence: {constant.evidence}, "
            f'source: "{source}"}}'
        )
    return lines


def residual_lines(residuals: Residuals) -> list[str]:
    """Return the lines of the section `residuals` of a file, with its key."""
    command = residuals.command.replace('"', "'")
    lines = ["residuals:", f'  command: "{command}"', "  spreads:"]
    lines += [f"    {name}: {spread:.4g}" for name, spread in sorted(residuals.spreads.items())]
    lines.append("  rows:")
    lines += [
        f"    {quantity}: [{', '.join(sorted(known))}]"
        for quantity, known in sorted(residuals.rows.items())
    ]
    return lines


def _over(own: Residuals, shipped: Residuals) -> Residuals:
    """Return the residuals of a file, merged over those that ship."""
    return Residuals(
        spreads={**shipped.spreads, **own.spreads},
        rows={**shipped.rows, **own.rows},
        command=own.command or shipped.command,
    )


def _residuals(raw: Mapping[str, Any], problems: list[str]) -> Residuals:
    """Return the section `residuals` of a file; faults are added to `problems`."""
    section = raw.get("residuals", {})
    if not isinstance(section, dict):
        problems.append("residuals: expected command, rows and spreads")
        return Residuals()
    spreads, rows = section.get("spreads") or {}, section.get("rows") or {}
    faults = [
        f"{key}: is unknown; {_hint(str(key), _RESIDUAL_KEYS)}"
        for key in section.keys() - set(_RESIDUAL_KEYS)
    ]
    if not isinstance(spreads, dict) or not isinstance(rows, dict):
        faults.append("expected classes → spreads, and quantities → lists of names in rows")
        spreads, rows = {}, {}
    for name, spread in spreads.items():
        if str(name).startswith(_UNGROUPED) or str(name).endswith(_OF_SOFTWARE):
            faults.append(f"spreads.{name}: is of an earlier version; fit again, {_FIT_AGAIN}")
        elif name not in RESIDUAL_NAMES:
            faults.append(f"spreads.{name}: is unknown; {_hint(str(name), RESIDUAL_NAMES)}")
        elif not _is_number(spread) or not 0 <= spread < MOST_SPREAD:
            faults.append(
                f"spreads.{name}: found {spread!r}, expected a number from 0 to {MOST_SPREAD:g}"
            )
    for name, known in rows.items():
        if not isinstance(known, list):
            faults.append(f"rows.{name}: found {known!r}, expected a list of names")
    if faults:
        problems += [f"residuals.{fault}" for fault in faults]
        return Residuals()
    return Residuals(
        spreads={str(name): float(spread) for name, spread in spreads.items()},
        rows={str(name): tuple(map(str, known)) for name, known in rows.items()},
        command=str(section.get("command", "")),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(path: str | Path, raw: Mapping[str, Any], *, problems: list[str]) -> dict[str, Constant]:
    """Return the constants of a file; faults are added to `problems`."""
    entries = raw.get("constants")
    if not isinstance(entries, dict):
        problems.append("constants: is missing, expected name → {value, evidence, source}")
        raise JobError(str(path), problems)
    found: dict[str, Constant] = {}
    for name, entry in entries.items():
        given = entry if isinstance(entry, dict) else {}
        faults = [f"constants.{name}.{fault}" for fault in _faults(given)]
        problems += faults
        if not faults:
            found[str(name)] = Constant(
                value=float(given["value"]),
                evidence=given.get("evidence", "fitted"),
                source=str(given.get("source", "")),
                spread=float(given.get("spread", 0.0)),
            )
    return found


def _faults(entry: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the faults of one constant, each with its key."""
    for key in sorted(map(str, entry.keys() - set(_ENTRY_KEYS))):
        yield f"{key}: is unknown; {_hint(key, _ENTRY_KEYS)}"
    for key, stand_in, most in (("value", None, MOST), ("spread", 0.0, MOST_SPREAD)):
        number = entry.get(key, stand_in)
        if not _is_number(number) or not 0 <= number < most:
            yield f"{key}: found {number!r}, expected a number from 0 to {most:g}"
    evidence = entry.get("evidence", "fitted")
    if evidence not in EVIDENCE:
        yield f"evidence: found {evidence!r}; {_hint(str(evidence), EVIDENCE)}"


class _Names:
    """The valid names of constants: scope, owner and item.

    Items are those of the shipped calibration, so that there is no second list of them.
    """

    def __init__(self, shipped: Iterable[str]) -> None:
        of_device, general = {*PROFILED_ITEMS, *LEARNED_ITEMS}, set()
        for name in shipped:
            scope, _, rest = name.partition(".")
            if scope == "general":
                general.add(rest)
            elif scope == "pooled":
                of_device.add(rest)
            elif scope in {"device", "die", "architecture"}:
                of_device.add(rest.partition(".")[2])
        of_device -= set(_FAMILY_ITEMS)
        self._items: Mapping[str, set[str]] = {
            "device": of_device,
            "die": of_device,
            "architecture": of_device,
            "family": set(_FAMILY_ITEMS),
            "pooled": of_device | set(_FAMILY_ITEMS),
            "general": general,
        }

    def fault(self, name: str) -> str | None:
        """Return the fault of a name, or None."""
        scope, _, rest = name.partition(".")
        where = f"constants.{name}"
        if scope not in self._items:
            return f"{where}: found '{scope}'; {_hint(scope, _SCOPES)}"
        items = self._items[scope]
        if scope in {"general", "pooled"}:
            item = rest
        elif scope == "family":
            owner, _, item = rest.partition(".")
            if owner not in SOFTWARE:
                return f"{where}: no software family '{owner}'; {_hint(owner, SOFTWARE)}"
        else:  # an item may hold a dot, and so may a name
            fits = [item for item in items if rest.endswith(f".{item}")]
            item = max(fits, key=len, default=rest.partition(".")[2])
        if item in items:
            return None
        if "module_launch_s" in items and item in _EARLIER_ITEMS:
            return f"{where}: {_EARLIER_ITEMS[item]}"
        return f"{where}: no constant '{item}' of this kind; {_hint(item, items)}"


def _missing(constants: Mapping[str, Constant], shipped: Mapping[str, Constant]) -> list[str]:
    """Return the required constants that a file without a base lacks."""
    needed = [name for name in shipped if name.startswith(("general.", "pooled."))]
    lacking = [name for name in needed if name not in constants]
    if not lacking:
        return []
    some = ", ".join(lacking[:3])
    return [
        f"base: is missing, and so are {len(lacking)} constants ({some}, …); expected "
        f"'base: {SHIPPED_BASE}' in a file that holds only what differs"
    ]


def _hint(found: str, known: Iterable[str]) -> str:
    known = sorted(known)
    guess = nearest(found, known)
    shown = ", ".join(known) if len(known) <= 8 else f"{', '.join(known[:6])}, …"
    return f"did you mean '{guess}'?" if guess else f"one of {shown}"


def _left_out(raw: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the record of left-out errors; a calibration may lack it."""
    record = raw.get("left_out")
    if not isinstance(record, dict):
        return {}
    return {
        str(quantity): {
            str(source): float(error)
            for source, error in sources.items()
            if isinstance(error, int | float)
        }
        for quantity, sources in record.items()
        if isinstance(sources, dict)
    }

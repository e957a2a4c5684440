"""How well one run of a user's own tells others: rows anchor the other rows of their group in turn.

    python -m benchmarks.observed [DIR] [--calibration P] [--fit P] [--json P]

DIR holds `throughput_llm.csv`; without it the bundled rows are used. A group has one source,
device, software and precision, and three rows or more. `nothing` of the hold-outs is the constants
that ship; of the others, rows are predicted by a fit that saw nothing of their source, device or
model family.
`--fit P` writes the calibration with spreads that put 80 % of anchored rows inside their intervals.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.frame import plain_table, print_progress, report_parser, show_report
from benchmarks.observed_errors import (
    ObservedError,
    fitted_noise,
    observed_errors,
    several_errors,
)
from wattree.cost import load_calibration
from wattree.validation.fitting import fitted_groups, write_calibration
from wattree.validation.left_out import LeftOutError, left_out_errors, seen_errors
from wattree.validation.rows import bundled_rows, read_rows

FILE = "throughput_llm.csv"
HOLD_OUTS = ("nothing", "source", "device", "model family")
RUNS = (1, 2, 4, 8)
HEAD = ("", "rows", "before", "median", "anchored", "median", "inside", "width")
_SEVERAL = ("held out", "anchors", *HEAD[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON and a calibration on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder of measured rows")
    parser.add_argument("--calibration", type=Path, help="constants; those that ship if left out")
    parser.add_argument("--fit", type=Path, help="file to write constants and spreads to")
    options = parser.parse_args(arguments)
    rows = bundled_rows() if options.dir is None else read_rows(options.dir / FILE)
    constants = load_calibration(options.calibration)
    errors = []
    for fitted in fitted_groups(rows, constants, progress=print_progress):
        errors += [*seen_errors(fitted), *left_out_errors(fitted, print_progress)]
    errors = [each for each in errors if each.hold_out in HOLD_OUTS]
    spreads = dict(constants.residuals.spreads)
    if options.fit is not None:
        spreads |= fitted_noise(errors, spreads)
        residuals = replace(constants.residuals, spreads=spreads)
        fit = replace(constants, residuals=residuals)
        write_calibration(options.fit, fit, constants.left_out)
    found = list(observed_errors(errors, spreads))
    tables = [
        plain_table(title, (first, *HEAD[1:]), lines(found, key), left=1)
        for title, first, key in (
            ("One row anchors the others of its group", "held out", _hold_out),
            ("The same by group, nothing held out", "group", _group("nothing")),
            ("The same by group, device held out", "group", _group("device")),
        )
    ]
    tables.insert(
        1,
        plain_table("Each group counts once", ("held out", *HEAD[1:]), group_lines(found), left=1),
    )
    tables.insert(
        2, plain_table("Several rows anchor each", _SEVERAL, several(errors, spreads), left=2)
    )
    show_report(summary(found), options.json_path, *tables, width=110)
    return 0


def several(errors: Sequence[LeftOutError], spreads: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return a line for each hold-out and number of anchors, each row predicted once."""
    found = []
    for kind in sorted({each.hold_out for each in errors}):
        own = [each for each in errors if each.hold_out == kind]
        for runs in RUNS:
            cells = _cells(figures(list(several_errors(own, spreads, runs))))
            found.append((kind, str(runs), *cells))
    return found


def _hold_out(each: ObservedError) -> str:
    return each.hold_out


def _group(hold_out: str) -> Callable[[ObservedError], str]:
    return lambda each: ", ".join(each.group) if each.hold_out == hold_out else ""


def lines(
    found: Sequence[ObservedError], key: Callable[[ObservedError], str]
) -> list[tuple[str, ...]]:
    """Return a line for each value of `key` but the empty one."""
    groups: dict[str, list[ObservedError]] = defaultdict(list)
    for each in found:
        if name := key(each):
            groups[name].append(each)
    return [(name, *_cells(figures(groups[name]))) for name in sorted(groups)]


def figures(members: Sequence[ObservedError]) -> dict[str, float]:
    """Return mean and median errors, coverage and width; each anchor with each row counts once."""
    before = np.abs(np.expm1([each.before for each in members]))
    after = np.abs(np.expm1([each.after for each in members]))
    return {
        "rows": len({each.row for each in members}),
        "mean_before": float(before.mean()),
        "median_before": float(np.median(before)),
        "mean": float(after.mean()),
        "median": float(np.median(after)),
        "inside": float(np.mean([each.inside for each in members])),
        "width": float(np.mean([each.spread / each.spread_before for each in members])),
    }


def by_group(members: Sequence[ObservedError]) -> dict[str, float]:
    """Return the same with each group counted once, however many rows it has."""
    groups: dict[tuple[str, ...], list[ObservedError]] = defaultdict(list)
    for each in members:
        groups[each.group].append(each)
    found = [figures(own) for own in groups.values()]
    names = [name for name in found[0] if name != "rows"]
    means = {name: float(np.mean([each[name] for each in found])) for name in names}
    return {"rows": sum(each["rows"] for each in found), **means}


def group_lines(found: Sequence[ObservedError]) -> list[tuple[str, ...]]:
    """Return a line for each hold-out, in which each group counts once."""
    kinds = sorted({each.hold_out for each in found})
    return [(kind, *_cells(by_group([e for e in found if e.hold_out == kind]))) for kind in kinds]


def _cells(found: Mapping[str, float]) -> list[str]:
    errors = [f"{100 * found[name]:.1f} %" for name in list(found)[1:5]]
    return [
        str(int(found["rows"])),
        *errors,
        f"{100 * found['inside']:.0f} %",
        f"{found['width']:.2f}",
    ]


def summary(found: Sequence[ObservedError]) -> dict[str, dict[str, float]]:
    """Return hold-out → figures."""
    kinds = dict.fromkeys(each.hold_out for each in found)
    return {kind: figures([e for e in found if e.hold_out == kind]) for kind in kinds}


if __name__ == "__main__":
    sys.exit(main())

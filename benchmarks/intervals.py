"""How often 80 % intervals of time and memory hold on measured rows left out, and their residuals.

    python -m benchmarks.intervals [DIR] [--calibration P] [--fit P] [--json P]

DIR holds `throughput_llm.csv`, `throughput_vision_dlrm.csv` and `memory.csv`; without it the
bundled rows are used. Rows are left out by source, device, scale, model family and at random.
`--fit P` writes the calibration with residuals that put 80 % of the rows of each class inside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.frame import plain_table, report_parser, show_report
from wattree.cost import load_calibration
from wattree.validation.calibration_file import write_calibration
from wattree.validation.coverage import Coverage, coverages, with_residuals
from wattree.validation.fitting import fitted_groups, memory_rows
from wattree.validation.left_out import left_out_errors
from wattree.validation.memory_coverage import left_out_memory, memory_coverages
from wattree.validation.rows import bundled_rows, read_rows

FILES = ("throughput_llm.csv", "throughput_vision_dlrm.csv", "memory.csv")
COMMAND = "python -m benchmarks.intervals DIR --fit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON and a calibration on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder of measured rows")
    parser.add_argument("--calibration", type=Path, help="constants; those that ship if left out")
    parser.add_argument("--fit", type=Path, help="file to write constants and residuals to")
    options = parser.parse_args(arguments)
    rows = list(bundled_rows())
    if options.dir is not None:
        rows = [row for name in FILES for row in read_rows(options.dir / name)]
    constants = load_calibration(options.calibration)
    errors = []
    for fitted in fitted_groups(rows, constants, progress=_progress):
        errors += list(left_out_errors(fitted, _progress))
    measured = memory_rows(rows, constants, progress=_progress)
    if options.fit is not None:
        constants = with_residuals(constants, errors, measured, command=COMMAND)
        write_calibration(options.fit, constants, constants.left_out)
    spreads = dict(constants.residuals.spreads)
    memory = left_out_memory([row for _, row in measured], constants)
    found = coverages(errors, spreads) + memory_coverages(memory, spreads)
    show(found, spreads, options.json_path)
    return 0


def _progress(stage: str, done: int, total: int) -> None:
    if total and done * 10 // total != (done - 1) * 10 // total:
        print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)


def show(found: Sequence[Coverage], spreads: dict[str, float], json_path: str | None) -> None:
    """Print coverage by hold-out and class, and the residuals."""
    lines = [
        (
            each.hold_out,
            each.known,
            str(each.rows),
            f"{100 * each.inside:.0f} %",
            f"{100 * each.spread:.1f} %",
            f"{100 * each.error:.1f} %",
        )
        for each in found
    ]
    head = ("hold-out", "evidence", "rows", "inside", "spread", "error")
    table = plain_table("80 % intervals", head, lines, left=2)
    show_report(
        {"coverage": [asdict(each) for each in found], "spreads": spreads},
        json_path,
        table,
        width=110,
    )


if __name__ == "__main__":
    sys.exit(main())

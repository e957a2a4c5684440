"""Step times of vision and recommendation training against measured rows, in one table.

    python -m benchmarks.vision DIR [--json P]

DIR holds `throughput_vision_dlrm.csv`. Errors are over rows with `core` = 1, by source; the largest
errors and what was skipped follow. Exits with 0 even where a figure is missed: the table says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figure

__all__ = ["figures", "main"]

_FILE = "throughput_vision_dlrm.csv"
_MEAN, _MEDIAN, _COVERAGE = 0.20, 0.12, 0.80


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help=f"folder that holds {_FILE}")
    parser.add_argument("--json", type=Path, dest="json_path")
    options = parser.parse_args(arguments)
    found = figures(options.dir)
    table = Table(title="Vision and recommendation rows")
    for name in ("measure", "at least", "found", ""):
        table.add_column(name)
    for figure in found:
        reached = "ok" if figure.reached else "MISSED"
        table.add_row(figure.measure, figure.wanted, figure.found, reached)
    Console(width=150).print(table)
    if options.json_path:
        options.json_path.write_text(json.dumps([asdict(f) for f in found], indent=1))
    return 0


def figures(folder: Path, *, quiet: bool = False) -> list[Figure]:
    """Return the figures of the rows in `folder`; print errors by source unless `quiet`."""
    import wattree

    validation = wattree.validate([folder / _FILE])
    if not quiet:
        Console(width=150).print(validation.table())
    speed = validation.summary["step_time_s"]["all"]
    rows = speed.count + speed.skipped
    mean, median = speed.mean_abs_error, speed.median_abs_error
    left_out = validation.left_out_of("step_time_s").get("all", float("nan"))
    return [
        Figure(
            measure=f"{rows} vision and DLRM rows: mean absolute error",
            wanted=f"<= {_MEAN:.0%}",
            found=f"{mean:.1%}, source left out {left_out:.1%}",
            reached=mean <= _MEAN,
        ),
        Figure(
            measure=f"{rows} vision and DLRM rows: median absolute error",
            wanted=f"<= {_MEDIAN:.0%}",
            found=f"{median:.1%}",
            reached=median <= _MEDIAN,
        ),
        Figure(
            measure=f"{rows} vision and DLRM rows: coverage",
            wanted=f">= {_COVERAGE:.0%}",
            found=f"{speed.count} of {rows}, {speed.count / rows:.1%}",
            reached=speed.count / rows >= _COVERAGE,
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())

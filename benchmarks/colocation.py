"""All measures of several processes on one device: one table.

    python -m benchmarks.colocation [--only SECTION] [--json P]

Twelve minutes of a quiet machine with two cores; bytes between devices need root. A section that
lacks what it needs is left out and named. A missed target is no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    colocation_faults,
    colocation_gain,
    colocation_launch,
    colocation_reduce,
)
from benchmarks.energy_frame import Options, Section, figures_table, print_sections
from wattree.cost import load_calibration

__all__ = ["SECTIONS", "main"]

#: Name → section; one that returns None lacks what it needs.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "exactness": lambda _: colocation_reduce.exactness(),
    "bytes": lambda _: colocation_reduce.crossing(),
    "throughput": lambda _: colocation_reduce.throughput(),
    "gain": lambda _: colocation_gain.gains(),
    "faults": lambda _: colocation_faults.faults(),
    "overhead": lambda _: colocation_launch.overhead(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=sorted(SECTIONS), help="one section")
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    print_sections(
        SECTIONS,
        Options(shared=Path(), calibration=load_calibration()),
        only=given.only,
        json_path=given.json_path,
        table=figures_table,
        missing="what it needs is",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

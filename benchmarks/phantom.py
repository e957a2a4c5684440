"""All measures of phantom parallelism: one table.

    python -m benchmarks.phantom [DIR] [--only SECTION] [--machine FILE] [--json P]

DIR is the folder of reference data, or that of netlab in it; by default `../shared`. A section that
lacks what it reads, or root for its network, is left out and named. FILE is the calibration of
`wattree profile --ranks 4 --threads 1`. A missed target is no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    phantom_exactness,
    phantom_links,
    phantom_overhead,
    phantom_payload,
    phantom_predicted,
    phantom_steps,
)
from benchmarks.energy_frame import Options, Section, figures_table, print_sections
from wattree.cost import load_calibration

__all__ = ["SECTIONS", "main"]

#: Name → section; one that returns None lacks what it reads.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "exactness": phantom_exactness.section,
    "payload": phantom_payload.section,
    "overhead": phantom_overhead.section,
    "links": phantom_links.section,
    "steps": phantom_steps.section,
    "overlap": phantom_steps.overlap,
    "predicted": phantom_predicted.section,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[2] / "shared"
    parser.add_argument("dir", nargs="?", type=Path, default=default, help="folder of tables")
    parser.add_argument("--only", choices=sorted(SECTIONS), help="one section")
    parser.add_argument(
        "--machine", type=Path, help="calibration of `wattree profile`; measured if not given"
    )
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    options = Options(shared=given.dir, calibration=load_calibration(), machine=given.machine)
    print_sections(
        SECTIONS,
        options,
        only=given.only,
        json_path=given.json_path,
        table=figures_table,
        missing="what it reads is",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

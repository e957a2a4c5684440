"""All measures of phantom parallelism: one table.

    python -m benchmarks.phantom [DIR] [--only SECTION] [--machine FILE] [--json P]

DIR is the folder of reference data, or that of netlab in it; by default `../shared`. A section that
lacks what it reads, or root for its network, is left out and named. FILE is the calibration of
`wattree profile --ranks 4 --threads 1`. A missed target is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    phantom_predicted,
    phantom_steps,
)
from benchmarks.frame import Options, Section, print_sections, section_parser

#: Name → section; one that returns None lacks what it reads.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "steps": phantom_steps.section,
    "overlap": phantom_steps.overlap,
    "predicted": phantom_predicted.section,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = section_parser(__doc__, SECTIONS, reads_tables=True)
    parser.add_argument(
        "--machine", type=Path, help="calibration of `wattree profile`; measured if not given"
    )
    return print_sections(SECTIONS, parser.parse_args(arguments), missing="what it reads is")


if __name__ == "__main__":
    raise SystemExit(main())

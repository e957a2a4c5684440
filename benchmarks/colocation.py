"""All measures of several processes on one device: one table.

    python -m benchmarks.colocation [--only SECTION] [--json P]

Some twenty minutes of a quiet machine with two cores. A section that lacks what it needs is
left out and named. A missed target is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import (
    colocation_gain,
    colocation_reduce,
)
from benchmarks.frame import Options, Section, print_sections, section_parser

#: Name → section; one that returns None lacks what it needs.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "throughput": lambda _: colocation_reduce.throughput(),
    "gain": lambda _: colocation_gain.gains(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    given = section_parser(__doc__, SECTIONS).parse_args(arguments)
    return print_sections(SECTIONS, given, missing="what it needs is")


if __name__ == "__main__":
    raise SystemExit(main())

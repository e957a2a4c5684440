"""All measures of cluster-design studies: one table.

    python -m benchmarks.design [--only SECTION] [--json P]

A section that lacks what it reads is left out and named. A missed target is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import design_rate, design_shape
from benchmarks.frame import Options, Section, print_sections, section_parser

#: Name → section; one that returns None lacks what it reads.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "rate": design_rate.rate,
    "optimum": design_rate.optimum,
    "time": design_shape.complete,
    "shape": design_shape.transformer,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    given = section_parser(__doc__, SECTIONS).parse_args(arguments)
    return print_sections(SECTIONS, given, missing="what it reads is")


if __name__ == "__main__":
    raise SystemExit(main())

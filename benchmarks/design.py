"""All measures of cluster-design studies: one table.

    python -m benchmarks.design [--only SECTION] [--json P]

A section that lacks what it reads is left out and named. A missed target is no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import design_rate, design_report, design_shape, design_tiers
from benchmarks.energy_frame import Options, Section, figures_table, print_sections
from wattree.cost import load_calibration

__all__ = ["SECTIONS", "main"]

#: Name → section; one that returns None lacks what it reads.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "rate": design_rate.rate,
    "optimum": design_rate.optimum,
    "tiers": design_tiers.section,
    "time": design_shape.complete,
    "shape": design_shape.transformer,
    "dlrm": design_shape.dlrm,
    "energy": design_shape.energy,
    "options": design_shape.options,
    "ray": design_rate.ray,
    "kills": design_rate.kills,
    "page": design_report.section,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(SECTIONS), help="one section")
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    print_sections(
        SECTIONS,
        Options(shared=Path(), calibration=load_calibration()),
        only=given.only,
        json_path=given.json_path,
        table=figures_table,
        missing="what it reads is",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""All measures of phantom parallelism: one table.

    python -m benchmarks.phantom [DIR] [--only SECTION] [--json P]

DIR is the folder of reference data; by default `../shared`. A section that lacks what it reads is
left out and named. A missed target is no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import phantom_exactness, phantom_links, phantom_overhead, phantom_payload
from benchmarks.energy_frame import Options, Section
from wattree.cost import load_calibration
from wattree.files import write_atomic

__all__ = ["SECTIONS", "main"]

#: Name → section; one that returns None lacks what it reads.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "exactness": phantom_exactness.section,
    "payload": phantom_payload.section,
    "overhead": phantom_overhead.section,
    "links": phantom_links.section,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[2] / "shared"
    parser.add_argument("dir", nargs="?", type=Path, default=default, help="folder of tables")
    parser.add_argument("--only", choices=sorted(SECTIONS), help="one section")
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    options = Options(shared=given.dir, calibration=load_calibration())
    console = Console(width=120)
    found: dict[str, Section] = {}
    for name, section in SECTIONS.items():
        if given.only not in {None, name}:
            continue
        made = section(options)
        if made is None:
            print(f"{name}: what it reads is not there: left out", file=sys.stderr)
            continue
        found[name] = made
        console.print(_table(made))
        for note in made.notes:
            console.print(f"  {note}")
    if given.json_path:
        text = json.dumps({name: each.as_json() for name, each in found.items()}, indent=1)
        write_atomic(given.json_path, text + "\n")
    return 0


def _table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left")
    for name in ("measure", "wanted", "found", ""):
        table.add_column(name, overflow="fold")
    for line in section.figures:
        verdict = ("met" if line.reached else "MISSED") if line.wanted else ""
        table.add_row(line.measure, line.wanted, line.found, verdict)
    return table


if __name__ == "__main__":
    raise SystemExit(main())

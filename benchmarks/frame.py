"""What benchmarks share: lines and sections, what these read, arguments, tables, and JSON.

What they measure with (jobs, processes, clocks) is in `measure`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattree.arrays import Floats
from wattree.cost import Calibration, load_calibration
from wattree.energy.scores import score
from wattree.files import write_atomic

#: Folder of reference data next to the checkout.
SHARED = Path(__file__).parents[2] / "shared"
#: Rows up to which figures get an interval.
_MOST_DRAWN = 1000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table: what is measured, what is wanted of it (or nothing), what was found."""

    measure: str
    wanted: str
    found: str
    reached: bool = True

    @classmethod
    def at_most(cls, measure: str, limit: float, found: float, shown: str) -> Figure:
        """Return a figure that must not exceed a limit; both are `shown`, as in `{:.2f} s`."""
        wanted, text = f"<= {shown.format(limit)}", shown.format(found)
        return cls(measure, wanted, text, found <= limit)

    @classmethod
    def at_least(cls, measure: str, limit: float, found: float, shown: str) -> Figure:
        """Return a figure that must reach a limit; shown likewise."""
        wanted, text = f">= {shown.format(limit)}", shown.format(found)
        return cls(measure, wanted, text, found >= limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every section is given.

    Attributes:
        shared: Folder with `opdata` and `measured`.
        refits: Whether lines are shown that take long: a fit, or runs, of their own.
        machine: Calibration of this machine, of `wattree profile`; None where sections that
            need one make it.
    """

    shared: Path
    calibration: Calibration
    refits: bool = True
    machine: Path | None = None

    @property
    def opdata(self) -> Path:
        """Return the folder of operator tables."""
        return self.shared / "opdata"

    @property
    def measured(self) -> Path:
        """Return the folder of training rows."""
        return self.shared / "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the table.

    Attributes:
        figure: Mean absolute relative error, or the share that the name says.
        median: Of the same; None where it has no meaning.
        bias: Median signed error; None likewise.
        target: What the figure must not exceed; None where nothing is asked.
        lower, upper: Interval of 95 % of the figure, bootstrap over rows; None where it is not
            computed.
    """

    name: str
    count: int
    figure: float
    median: float | None = None
    bias: float | None = None
    target: float | None = None
    lower: float | None = None
    upper: float | None = None

    @classmethod
    def of(cls, name: str, errors: Floats, target: float | None) -> Measure:
        """Return the line of relative errors; of many rows without an interval, which is narrow."""
        scored = score(errors.tolist()) if len(errors) <= _MOST_DRAWN else None
        return cls(
            name=name,
            count=len(errors),
            figure=float(np.mean(np.abs(errors))),
            median=float(np.median(np.abs(errors))),
            bias=float(np.median(errors)),
            target=target,
            lower=scored.lower if scored else None,
            upper=scored.upper if scored else None,
        )

    @property
    def met(self) -> bool | None:
        """Return whether the target is met; None without one."""
        return None if self.target is None else self.figure <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the table.

    Attributes:
        measures: Its lines.
        figures: Lines whose figure is no relative error, in words.
        details: Lines without a target that explain others.
    """

    title: str
    measures: tuple[Measure, ...] = ()
    figures: tuple[Figure, ...] = ()
    details: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        lines = [asdict(m) | {"met": m.met} for m in self.measures]
        return {
            "title": self.title,
            "measures": lines,
            "figures": [asdict(f) for f in self.figures],
            "details": [asdict(m) for m in self.details],
            "notes": list(self.notes),
        }


def figures_table(section: Section) -> Table:
    """Return the figures of a section as a table, with what is wanted and whether it is met."""
    table = plain_table(section.title, ("measure", "wanted", "found", ""), left=4)
    table.title_justify = "left"
    for line in section.figures:
        verdict = ("met" if line.reached else "MISSED") if line.wanted else ""
        table.add_row(line.measure, line.wanted, line.found, verdict)
    return table


def plain_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]] = (), *, left: int = 1
) -> Table:
    """Return a table whose first `left` columns hold words and whose others hold numbers."""
    table = Table(title=title)
    for place, head in enumerate(heads):
        justify = "left" if place < left else "right"
        table.add_column(head, justify=justify, overflow="fold" if place < left else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def percent(value: float | None, *, digits: int = 2) -> str:
    """Return a share in percent; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}%}"


def section_parser(
    doc: str | None, sections: Iterable[str], *, reads_tables: bool = False
) -> argparse.ArgumentParser:
    """Return the arguments of a command that prints sections.

    Args:
        doc: Of the command; its first line is shown by `--help`.
        reads_tables: Whether the command takes the folder of tables, too.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if reads_tables:
        parser.add_argument("dir", nargs="?", type=Path, default=SHARED, help="folder of tables")
    parser.add_argument("--only", choices=sorted(sections), help="one section")
    parser.add_argument("--json", type=Path, dest="json_path")
    return parser


def options_of(given: argparse.Namespace) -> Options:
    """Return what sections are given, from the arguments of their command."""
    return Options(
        shared=getattr(given, "dir", Path()),
        calibration=load_calibration(),
        machine=getattr(given, "machine", None),
    )


def print_sections(
    sections: Mapping[str, Callable[[Options], Section | None]],
    given: argparse.Namespace,
    *,
    missing: str,
    table: Callable[[Section], Table] = figures_table,
) -> int:
    """Print sections as they are made; write JSON on request; return 0.

    Args:
        sections: Name → what makes it, None where something is not there.
        given: Arguments of `section_parser`.
        missing: What is not there where a section is left out.
    """
    console, options = Console(width=120), options_of(given)
    found: dict[str, Section] = {}
    for name, section in sections.items():
        if given.only not in {None, name}:
            continue
        made = section(options)
        if made is None:
            print(f"{name}: {missing} not there: left out", file=sys.stderr)
            continue
        found[name] = made
        console.print(table(made))
        for note in made.notes:
            console.print(f"  {note}")
    if given.json_path:
        text = json.dumps({name: each.as_json() for name, each in found.items()}, indent=1)
        write_atomic(given.json_path, text + "\n")
    return 0


def print_progress(stage: str, done: int, total: int) -> None:
    """Print each tenth of a stage, for people who wait."""
    if total and done * 10 // total != (done - 1) * 10 // total:
        print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)


def report_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the arguments of a command that prints one report, or writes it as JSON."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", dest="json_path", metavar="P", help="file, or - for the screen")
    return parser


def show_report(
    report: object, json_path: str | None, *tables: Table | Text, width: int = 120
) -> None:
    """Print tables and lines, or write JSON and leave the screen to it if it goes there."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    if json_path == "-":
        sys.stdout.write(text)
        return
    console = Console(width=width)
    for each in tables:
        console.print(each, soft_wrap=isinstance(each, Text))
    if json_path:
        write_atomic(json_path, text)

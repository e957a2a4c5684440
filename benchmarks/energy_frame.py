"""What sections of a table hand over, what they are told, and how they are printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figure
from wattree.cost import Calibration, load_calibration
from wattree.energy.scores import score
from wattree.files import write_atomic

__all__ = ["Measure", "Options", "Section", "figures_table", "print_alone", "print_sections"]

Floats = NDArray[np.float64]
#: Rows up to which figures get an interval.
_MOST_DRAWN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every section is told.

    Attributes:
        shared: Folder with `opdata` and `measured`.
        calibration: Constants.
        refits: Whether lines are shown that take long: a fit, or runs, of their own.
        machine: Calibration of the machine at hand, of `wattree profile`; None where sections that
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
        name: What is measured.
        count: Rows, or cases.
        figure: Mean absolute relative error, or the share that the name says.
        median: Of the same; None where it has no meaning.
        bias: Median signed error; None likewise.
        target: What the figure must not exceed; None where nothing is asked.
        lower, upper: Interval of 95 % of the figure, bootstrap over rows; None where it is not
            told.
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
        told = score(errors.tolist()) if len(errors) <= _MOST_DRAWN else None
        return cls(
            name=name,
            count=len(errors),
            figure=float(np.mean(np.abs(errors))),
            median=float(np.median(np.abs(errors))),
            bias=float(np.median(errors)),
            target=target,
            lower=told.lower if told else None,
            upper=told.upper if told else None,
        )

    @property
    def met(self) -> bool | None:
        """Return whether the target is met; None without one."""
        return None if self.target is None else self.figure <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the table.

    Attributes:
        title: Its heading.
        measures: Its lines.
        figures: Lines whose figure is no relative error, in words.
        beside: Lines without a target that explain others.
        notes: Sentences below it.
    """

    title: str
    measures: tuple[Measure, ...] = ()
    figures: tuple[Figure, ...] = ()
    beside: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        lines = [asdict(m) | {"met": m.met} for m in self.measures]
        return {
            "title": self.title,
            "measures": lines,
            "figures": [asdict(f) for f in self.figures],
            "beside": [asdict(m) for m in self.beside],
            "notes": list(self.notes),
        }


def figures_table(section: Section) -> Table:
    """Return the figures of a section as a table, with what is wanted and whether it is met."""
    table = Table(title=section.title, title_justify="left")
    for name in ("measure", "wanted", "found", ""):
        table.add_column(name, overflow="fold")
    for line in section.figures:
        verdict = ("met" if line.reached else "MISSED") if line.wanted else ""
        table.add_row(line.measure, line.wanted, line.found, verdict)
    return table


def print_alone(
    doc: str | None,
    sections: Mapping[str, Callable[[Options], Section | None]],
    arguments: Sequence[str] | None,
    *,
    missing: str,
) -> int:
    """Print sections that read no tables, for a command with `--only` and `--json`; return 0.

    Args:
        doc: Of the command; its first line is told by `--help`.
        sections, missing: As of `print_sections`.
        arguments: Of the command; those of the process if None.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--only", choices=sorted(sections), help="one section")
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    print_sections(
        sections,
        Options(shared=Path(), calibration=load_calibration()),
        only=given.only,
        json_path=given.json_path,
        table=figures_table,
        missing=missing,
    )
    return 0


def print_sections(
    sections: Mapping[str, Callable[[Options], Section | None]],
    options: Options,
    *,
    only: str | None,
    json_path: Path | None,
    table: Callable[[Section], Table],
    missing: str,
) -> None:
    """Print sections as they are made; write JSON on request.

    Args:
        sections: Name → what makes it, None where something is not there.
        options: What all are told.
        only: One name; None for all.
        json_path: Where to write them, or None.
        table: Draws one.
        missing: What is not there where a section is left out.
    """
    console = Console(width=120)
    found: dict[str, Section] = {}
    for name, section in sections.items():
        if only not in {None, name}:
            continue
        made = section(options)
        if made is None:
            print(f"{name}: {missing} not there: left out", file=sys.stderr)
            continue
        found[name] = made
        console.print(table(made))
        for note in made.notes:
            console.print(f"  {note}")
    if json_path:
        text = json.dumps({name: each.as_json() for name, each in found.items()}, indent=1)
        write_atomic(json_path, text + "\n")

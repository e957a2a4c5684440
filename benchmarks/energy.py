"""All measures of energy: one table.

    python -m benchmarks.energy [DIR] [--fit] [--json P]

DIR holds `opdata` and `measured`; by default `../shared`. A section whose tables are not there, or
whose library (pyarrow, extra `fit`) is not installed, is left out and named. `--fit` prints the
constants that the measurements make, next to the shipped ones. A missed target is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import (
    energy_clocks,
    energy_gemm,
    energy_nodes,
    energy_training,
    energy_zeus,
    mlperf_steps,
)
from benchmarks.frame import Measure, Options, Section, options_of, print_sections, section_parser

#: Name → section; one that returns None has nothing to read.
SECTIONS: dict[str, Callable[[Options], Section | None]] = {
    "products": energy_gemm.section,
    "limits": energy_zeus.section,
    "clocks": energy_clocks.section,
    "nodes": energy_nodes.section,
    "scaling": energy_nodes.scaling,
    "steps": mlperf_steps.section,
    "training": energy_training.section,
}
#: Fits of constants; those not named here are not made from these tables.
FITS: dict[str, Callable[[Options], dict[str, float]]] = {
    "products": energy_gemm.fit,
    "limits": energy_zeus.fit,
    "training": energy_training.fit,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = section_parser(__doc__, SECTIONS, reads_tables=True)
    parser.add_argument("--fit", action="store_true", help="print what the tables make")
    given = parser.parse_args(arguments)
    if given.fit:
        _print_fit(options_of(given), Console(width=120), given.only)
        return 0
    missing = "its tables or its library are"
    return print_sections(SECTIONS, given, missing=missing, table=_table)


def _table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left")
    table.add_column("measure", max_width=54)
    for name in ("rows", "mean |error|", "95 %", "median", "bias", "at most", ""):
        table.add_column(name, justify="right")
    for each in section.measures:
        table.add_row(*_cells(each))
    for line in section.figures:
        reached = ("met" if line.reached else "MISSED") if line.wanted else ""
        table.add_row(line.measure, "", line.found, "", "", "", line.wanted, reached)
    if section.details:
        table.add_section()
    for each in section.details:
        table.add_row(*_cells(each), style="dim")
    return table


def _interval(measure: Measure) -> str:
    if measure.lower is None or measure.upper is None:
        return ""
    return f"{measure.lower:.1%} to {measure.upper:.1%}"


def _cells(measure: Measure) -> tuple[str, ...]:
    percent: Callable[[float | None], str] = lambda x: "" if x is None else f"{x:.1%}"  # noqa: E731
    return (
        measure.name,
        str(measure.count),
        percent(measure.figure),
        _interval(measure),
        percent(measure.median),
        percent(measure.bias),
        percent(measure.target),
        {True: "met", False: "MISSED", None: ""}[measure.met],
    )


def _print_fit(options: Options, console: Console, only: str | None) -> None:
    constants = options.calibration.constants
    shipped = {name: each.value for name, each in constants.items()}
    shipped |= energy_training.shipped_figures()
    for name, fit in FITS.items():
        if only not in {None, name}:
            continue
        for constant, value in sorted(fit(options).items()):
            now = f"{shipped[constant]:.6g}" if constant in shipped else "none"
            console.print(f"{constant:50} {value:.6g}  (shipped {now})")


if __name__ == "__main__":
    raise SystemExit(main())

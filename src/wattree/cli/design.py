"""`wattree design`: which cluster to build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.cli.output import (
    NOTHING_FITS,
    JsonPath,
    announce_waits,
    check_outputs,
    deliver,
    tell,
    terminal,
)
from wattree.cli.pictures import DESIGN_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.request import argument, asked, request_command, switch
from wattree.units import counted, format_time

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.design import Progress

#: Between two lines. [s]
_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRequest:
    """Arguments and options of `wattree design`."""

    study: Path = argument("STUDY", "Study file (YAML).")
    store: Path | None = asked(
        "PATH",
        "File of finished points; by default STUDY.results.sqlite next to the study.",
        "--store",
    )
    on: str = asked(
        "WHERE",
        "Where points are evaluated: processes (of this machine), here, ray, or the address "
        "of a Ray cluster (ray://HOST:10001).",
        value="processes",
        shown=True,
    )
    workers: int | None = asked("N", "Points at once; by default one per core.", least=1)
    resume: bool = switch("--resume", "Only resume from stored points; fail if there are none.")
    fresh: bool = switch("--fresh", "Discard stored points.")
    json_path: JsonPath = None
    report: Path | None = asked(
        "PATH",
        "Write the answers as one HTML page with linked plots, which opens from disk.",
        "--report",
    )
    csv: Path | None = asked(
        "PATH", "Write a row for each point and workload, in SI units.", "--csv"
    )
    parquet: Path | None = asked(
        "PATH", "The same as Parquet, with units in its metadata.", "--parquet"
    )
    plot: list[str] | None = plot_option(DESIGN_PLOTS)


@request_command
def design(request: DesignRequest) -> None:
    """Sweep hardware and strategies, and show the best cluster.

    Searches the best strategy for each point of the study, in closed form and then by simulation.
    Stores each point as it finishes, so that an interrupted study continues. Exit code 3 if no
    point is feasible.

    Example: wattree design examples/design/transformer-1t-expansion.yaml --report study.html
    """
    from wattree.design import default_store, load_study, results_json, run_study
    from wattree.design.export import check_parquet, write_csv, write_parquet
    from wattree.report.design.page import check_report, write_design_page
    from wattree.report.design_table import show_points
    from wattree.report.design_text import show_answers
    from wattree.report.html.documents import check_page_name

    plots = plots_asked(request.plot, DESIGN_PLOTS)
    outputs = (request.json_path, request.report, request.csv, request.parquet, *plots.values())
    check_outputs(*outputs, source=request.study)
    for path, check in ((request.report, check_report), (request.parquet, check_parquet)):
        if path is not None:
            check()
    loaded = load_study(request.study)
    # Nor over the stored points, or the study next to them.
    kept = request.store or default_store(loaded)
    check_outputs(*outputs, source=kept)
    if request.report is not None:
        check_page_name(request.report)
    announce_waits()
    try:
        with _progress() as progress:
            results = run_study(
                loaded,
                store=request.store,
                on=request.on,
                workers=request.workers,
                resume=request.resume,
                fresh=request.fresh,
                progress=progress,
            )
    except KeyboardInterrupt:
        tell(f"wattree: finished points are stored in {kept}; run again to go on")
        raise
    writers = {write_design_page: request.report, write_csv: request.csv}
    writers |= {write_parquet: request.parquet}
    for write, path in writers.items():
        if path is not None:
            write(results, path)

    def show(console: Console) -> None:
        show_points(results, console)
        show_answers(results, console)

    deliver(lambda: results_json(results), request.json_path, show)
    if plots:
        from wattree.report.plots.of_design import design_plots

        write_plots(plots, design_plots(results))
    if not results.feasible.any():
        raise typer.Exit(NOTHING_FITS)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show on standard error how far the study is, how fast, and how long it will take."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = terminal(stderr=True)
    if not console.is_terminal:
        yield Lines().report
        return
    columns = (
        TextColumn("points"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("points", total=None, rate="")
        lines = Lines(quiet=True)

        def report(done: int, total: int, before: int) -> None:
            rate = lines.rate(done - before)
            bars.update(task, completed=done, total=total, rate=rate)

        yield report


class Lines:
    """Reports the progress of a run on standard error at intervals.

    Attributes:
        quiet: Only `rate` is wanted.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._began = self._reported_at_s = time.monotonic()

    def rate(self, done: int) -> str:
        """Return how many points were finished in a time."""
        passed = time.monotonic() - self._began
        if not done or passed <= 0:
            return ""
        rate = done / passed
        return f"{rate:.2g} points/s" if rate >= 0.1 else f"{1 / rate:.3g} s a point"

    def report(self, done: int, total: int, before: int) -> None:
        """Print it, unless it was printed a moment ago."""
        now = time.monotonic()
        if done == before and before:
            tell(f"wattree: {before:,} of {counted(total, 'point')} finished before")
        if now - self._reported_at_s < _EVERY_S or done == before:
            return
        self._reported_at_s = now
        left_s = (now - self._began) / (done - before) * (total - done)
        left = f", about {format_time(left_s)} left" if done < total else ""
        tell(f"wattree: {done:,} of {counted(total, 'point')}, {self.rate(done - before)}{left}")

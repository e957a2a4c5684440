"""`wattree design`: which cluster to build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.output import JsonPath, announce_compilation, check_outputs, deliver

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.design import Progress

__all__ = ["design"]

StudyPath = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="Study file (YAML).", show_default=False),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="File of finished points; STUDY.results.sqlite beside the study by default.",
        show_default=False,
    ),
]
On = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where points are evaluated: processes (of this machine), here, ray, or the address "
        "of a Ray cluster (ray://HOST:10001).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Points at once; one for each core by default.", show_default=False
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Only go on with points that are kept; refuse to begin anew."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget the points that are kept.")]
ReportPath = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="PATH",
        help="Write the answers as one HTML page with linked plots, which opens from disk.",
        show_default=False,
    ),
]
CsvPath = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="PATH",
        help="Write a row for each point and workload, in SI units.",
        show_default=False,
    ),
]
ParquetPath = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="PATH",
        help="The same as Parquet, with units in its metadata.",
        show_default=False,
    ),
]


def design(  # noqa: PLR0917 - typer passes options by name
    study: StudyPath,
    store: StorePath = None,
    on: On = "processes",
    workers: Workers = None,
    resume: Resume = False,
    fresh: Fresh = False,
    json_path: JsonPath = None,
    report: ReportPath = None,
    csv: CsvPath = None,
    parquet: ParquetPath = None,
) -> None:
    """Sweep cluster resources together with strategies, and show what is best.

    For every point of the study the best strategy is searched, screened in closed form and
    simulated. Finished points are kept as they finish: an interrupted study goes on where it was.
    Exit code 2 if no point is feasible.

    Example: wattree design examples/design/transformer-1t-expansion.yaml --report study.html
    """
    from wattree.design import default_store, load_study, results_json, run_study
    from wattree.design.export import check_parquet, write_csv, write_parquet
    from wattree.report.design.page import check_report, write_design_page
    from wattree.report.design_table import show_points
    from wattree.report.design_text import show_answers

    check_outputs(json_path, report, csv, parquet, source=study)
    for path, check in ((report, check_report), (parquet, check_parquet)):
        if path is not None:
            check()
    loaded = load_study(study)
    # Nor over the points that are kept, or the study beside them.
    kept = store or default_store(loaded)
    check_outputs(json_path, report, csv, parquet, source=kept)
    announce_compilation()
    try:
        with _progress() as progress:
            results = run_study(
                loaded,
                store=store,
                on=on,
                workers=workers,
                resume=resume,
                fresh=fresh,
                progress=progress,
            )
    except KeyboardInterrupt:
        kept = store or default_store(loaded)
        typer.echo(f"wattree: finished points are kept in {kept}; run again to go on", err=True)
        raise
    writers = ((report, write_design_page), (csv, write_csv), (parquet, write_parquet))
    for path, write in writers:
        if path is not None:
            write(results, path)

    def show(console: Console) -> None:
        show_points(results, console)
        show_answers(results, console)

    deliver(results_json(results), json_path, show)
    if not results.feasible.any():
        raise typer.Exit(2)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show on standard error how far the study is, how fast, and how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from wattree.cli.progress import Lines

    console = Console(stderr=True)
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

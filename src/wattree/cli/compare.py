"""`wattree compare`: jobs and results in comparison, with reasons for differences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from wattree.cli.job_file import print_warnings
from wattree.cli.output import (
    NOTHING_FITS,
    Calibration,
    JsonPath,
    ReportPath,
    announce_waits,
    check_outputs,
    deliver,
)
from wattree.cli.pictures import RUN_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.request import argument, request_command
from wattree.report.html.documents import check_report

#: Files to compare: one alone is no comparison, and a line has room for so many columns.
_FEWEST, _MOST = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFilesRequest:
    """Arguments and options of `wattree compare`."""

    files: list[Path] = argument(
        "FILE...",
        "Two or more: job files (YAML), which are simulated, and results (JSON) of "
        "simulate, train or plan.",
    )
    calibration: Calibration = None
    json_path: JsonPath = None
    report: ReportPath = None
    plot: list[str] | None = plot_option(RUN_PLOTS)


@request_command
def compare(request: CompareFilesRequest) -> None:
    """Compare jobs or results, and explain their differences.

    All are compared with the first. A job and a result of 'wattree train' compare prediction
    and measurement.

    Example: wattree compare a.yaml b.yaml result.json
    """
    from wattree.report.compare_text import show_comparison
    from wattree.search.compared import compare as compared_files

    found = len(request.files)
    if not _FEWEST <= found <= _MOST:
        raise typer.BadParameter(
            f"found {found}, expected {_FEWEST} to {_MOST} files", param_hint="FILE..."
        )
    plots = plots_asked(request.plot, RUN_PLOTS)
    for path in request.files:
        check_outputs(request.json_path, request.report, *plots.values(), source=path)
    check_report(request.report)
    announce_waits()
    comparison = compared_files(request.files, calibration=request.calibration)
    if request.report is not None:
        from wattree.report.html.documents import write_comparison_report

        write_comparison_report(request.report, comparison)
    if plots:
        from wattree.report.plots.of_runs import run_plots

        write_plots(plots, run_plots({run.name: run.figures for run in comparison.runs}))
    for run in comparison.runs:
        print_warnings(Path(run.source), run.warnings)
    deliver(
        comparison.as_json,
        request.json_path,
        lambda console: show_comparison(comparison, console),
    )
    if not any(run.fits for run in comparison.runs):
        raise typer.Exit(NOTHING_FITS)

"""`wattree validate`: predictions against published measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattree.cli.output import (
    Calibration,
    JsonPath,
    MutualSlowdown,
    ReportPath,
    Sharing,
    SharingOption,
    announce_waits,
    check_outputs,
    deliver,
    progress_bars,
)
from wattree.cli.pictures import VALIDATION_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.request import asked, request_command, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """Arguments and options of `wattree validate`."""

    rows: list[Path] | None = asked(
        "FILE", "CSV of measured rows; may be repeated. Without it, the rows that ship."
    )
    calibration: Calibration = None
    fit: bool = switch("--fit", "Refit the calibration; adds the leave-one-source-out error.")
    json_path: JsonPath = None
    report: ReportPath = None
    plot: list[str] | None = plot_option(VALIDATION_PLOTS)
    sharing: SharingOption = Sharing.MAX_MIN
    mutual_slowdown: MutualSlowdown = True


@request_command
def validate(request: ValidateRequest) -> None:
    """Compare predictions with measured training runs.

    The table shows the error by source and quantity. A row that cannot be expressed as a job is
    listed with its reason, never dropped. The calibration that ships was fitted with max-min
    sharing of links and mutual slowdown; other rules use its constants unless --fit is given.

    Example: wattree validate --rows measured.csv --json errors.json
    """
    import wattree
    from wattree.report.html.documents import check_report, write_validation_report

    plots = plots_asked(request.plot, VALIDATION_PLOTS)
    for path in request.rows or [Path()]:
        check_outputs(request.json_path, request.report, *plots.values(), source=path)
    check_report(request.report)
    announce_waits()
    with progress_bars() as progress:
        validation = wattree.validate(
            tuple(request.rows or ()),
            calibration=request.calibration,
            fit=request.fit,
            sharing=request.sharing.value,
            mutual_slowdown=request.mutual_slowdown,
            progress=progress,
        )
    if request.report is not None:
        write_validation_report(request.report, validation)
    if plots:
        from wattree.report.plots.of_validation import validation_plots

        write_plots(plots, validation_plots(validation))
    deliver(
        validation.as_json, request.json_path, lambda console: console.print(validation.table())
    )

"""`wattree explain`: why a run is not as fast as predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattree.cli.job_file import read_job
from wattree.cli.output import (
    Calibration,
    JobPath,
    JsonPath,
    ReportPath,
    announce_waits,
    check_outputs,
    deliver,
    tell,
)
from wattree.cli.pictures import EXPLAINED_PLOTS, plot_option, plots_asked, write_plots
from wattree.cli.request import argument, asked, request_command


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """Arguments and options of `wattree explain`."""

    job: JobPath
    more: list[Path] | None = argument(
        "FILE...", "More traces, as a shell pattern gives them.", value=None
    )
    trace: list[Path] | None = asked(
        "FILE...", "Traces of torch.profiler (.json, .json.gz), one for each rank."
    )
    step_time: str | None = asked(
        "TIME", "Step time without the profiler (which slows the host), such as '12.3 s'."
    )
    calibration: Calibration = None
    json_path: JsonPath = None
    report: ReportPath = None
    plot: list[str] | None = plot_option(EXPLAINED_PLOTS)


@request_command
def explain(request: ExplainRequest) -> None:
    """Explain from traces why a run is slower than predicted.

    Prints predicted and measured time by class, largest differences first, with usual causes. The
    profiler's step() marks the steps. Traces of all ranks show which rank waits for which.

    Example: wattree explain job.yaml --trace traces/rank*.json.gz
    """
    from wattree.kineto.ranks import read_ranks
    from wattree.learn.explain import STEP_TIME, trace_paths
    from wattree.learn.explain import explain as explained
    from wattree.learn.own_steps import parsed_step_time
    from wattree.learn.predicted_step import predicted_step
    from wattree.report.explained_text import show_explanation
    from wattree.report.html.documents import check_report, write_explanation_report

    paths = list(trace_paths(request.trace or (), request.more or ()))
    plots = plots_asked(request.plot, EXPLAINED_PLOTS)
    for path in (request.job, *paths):
        check_outputs(request.json_path, request.report, *plots.values(), source=path)
    check_report(request.report)
    job = read_job(request.job)
    given = request.step_time
    step_s = None if given is None else parsed_step_time(given, STEP_TIME)
    traced = read_ranks(paths)
    announce_waits()
    found = explained(job, traced, predicted_step(job, request.calibration), step_s)
    for note in found.notes:
        tell(f"wattree: {note}")
    if request.report is not None:
        write_explanation_report(request.report, found, request.job.name)
    if plots:
        from wattree.report.plots.of_explained import explained_plots

        write_plots(plots, explained_plots(found))
    deliver(found.as_json, request.json_path, lambda console: show_explanation(found, console))

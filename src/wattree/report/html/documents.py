"""Reports as files: one self-contained HTML document without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from wattree.errors import OutputError, check_packages
from wattree.files import write_atomic
from wattree.report.html.templates import rendered, style
from wattree.report.words import job_in_words, strategy_in_words
from wattree.units import counted

if TYPE_CHECKING:
    from wattree.learn.explain import Explanation
    from wattree.predict import Prediction
    from wattree.report.html.report_view import ReportView
    from wattree.schedule import QueueSchedule
    from wattree.search import Plan
    from wattree.search.compared import RunComparison
    from wattree.validation import Validation

#: Workload → what a report of it is.
_KINDS: Final = {
    "train": "Prediction of one training step",
    "forward": "Prediction of one forward pass",
    "generate": "Prediction of one generated batch",
}
_BASIS = "Intervals hold with 80 % probability; docs/accuracy.md explains them."


def check_report(path: Path | None) -> None:
    """Raise an error before any work if packages are missing or the file name is unsuitable.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
        OutputError: The name ends in neither `.html` nor `.htm`.
    """
    if path is not None:
        check_page_name(path)
        check_packages("jinja2", "matplotlib", needed_for="A report (--report)", extra="report")


def check_page_name(path: Path) -> None:
    """Raise an error for a file name that browsers would not open as a page.

    Raises:
        OutputError: It ends in neither `.html` nor `.htm`.
    """
    if path.suffix.lower() not in {".html", ".htm"}:
        raise OutputError(f"--report: found '{path}', expected a name that ends in .html")


def write_step_report(path: Path, prediction: Prediction) -> None:
    """Write the report of one step."""
    from wattree.report.html.views import step_view

    result = prediction.result
    words = _KINDS[result.workload], job_in_words(result), strategy_in_words(result.strategy)
    _write(path, step_view(prediction), *words)


def write_plan_report(path: Path, plan: Plan) -> None:
    """Write the report of a plan."""
    from wattree.report.html.views import plan_view

    first = plan.best or (plan.ranked[0] if plan.ranked else None)
    where = "this job" if first is None else job_in_words(first.result)
    subtitle = f"The best strategy by {plan.objective}, and why."
    _write(path, plan_view(plan), "Plan", where, subtitle)


def write_comparison_report(path: Path, comparison: RunComparison) -> None:
    """Write the report of a comparison."""
    from wattree.report.html.views import comparison_view

    names = ", ".join(f"{run.name} {Path(run.source).name}" for run in comparison.runs)
    subtitle = ". ".join((*comparison.shortages, "Differences are from the first, A."))
    _write(path, comparison_view(comparison), "Comparison", names, subtitle)


def write_schedule_report(path: Path, schedule: QueueSchedule) -> None:
    """Write the report of a schedule."""
    from wattree.report.html.schedule_view import schedule_view

    title = f"{counted(len(schedule.jobs), 'job')} on {schedule.queue.cluster.label}"
    subtitle = "When each job runs, where, and under which power limit."
    _write(path, schedule_view(schedule), "Schedule", title, subtitle)


def write_explanation_report(path: Path, found: Explanation, job: str) -> None:
    """Write the report that compares a run with its prediction."""
    from wattree.report.html.explained_view import explained_view

    subtitle = "Why the run is not as fast as predicted."
    _write(path, explained_view(found), "A run and its prediction", job, subtitle)


def write_validation_report(path: Path, found: Validation) -> None:
    """Write the report that compares predictions with measurements."""
    from wattree.report.html.validation_view import validation_view

    title = f"{len({each.row.row_id for each in found.scored}):,} measured runs"
    subtitle = "How far predictions are from what was measured, worst rows included."
    _write(path, validation_view(found), "Predictions and measurements", title, subtitle)


def _write(path: Path, report: ReportView, kind: str, title: str, subtitle: str) -> None:
    from markupsafe import Markup

    from wattree import __version__  # reads what is installed, for which others need not wait

    text = rendered(
        "document.html.j2",
        kind=kind,
        title=title,
        subtitle=subtitle,
        version=__version__,
        style=Markup(style()),  # noqa: S704 own file
        body=Markup(rendered("report.html.j2", report=report)),  # noqa: S704 it escapes
        basis=_BASIS,
    )
    write_atomic(path, text)

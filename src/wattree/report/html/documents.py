"""Reports as files: one HTML document that opens from disk, loads nothing and runs no script."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree import __version__
from wattree.errors import check_packages
from wattree.files import write_atomic
from wattree.report.words import strategy_in_words

if TYPE_CHECKING:
    from wattree.predict import Prediction
    from wattree.search import Plan
    from wattree.search.compared import RunComparison

_FOLDER = Path(__file__).parent
_BASIS = "Intervals hold with 80 % probability; docs/accuracy.md says how they are made."


def check_report(path: Path | None) -> None:
    """Refuse a report before any work where what draws it is missing.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    if path is not None:
        check_packages("jinja2", "matplotlib", needed_for="A report (--report)", extra="report")


def write_step_report(path: Path, prediction: Prediction) -> None:
    """Write the report of one step."""
    from wattree.report.html.views import step_view

    result = prediction.result
    body = fragment("step.html.j2", step=step_view(prediction), warning="")
    _write(
        path,
        kind="Prediction of one training step",
        title=f"{result.model} on {result.cluster}",
        subtitle=strategy_in_words(result.strategy),
        body=body,
    )


def write_plan_report(path: Path, plan: Plan) -> None:
    """Write the report of a plan."""
    from wattree.report.html.views import plan_view

    first = plan.best or (plan.ranked[0] if plan.ranked else None)
    where = "this job" if first is None else f"{first.result.model} on {first.result.cluster}"
    body = fragment("plan.html.j2", plan=plan_view(plan))
    subtitle = "Which strategy trains it best, and why."
    _write(path, kind="Plan", title=where, subtitle=subtitle, body=body)


def write_comparison_report(path: Path, comparison: RunComparison) -> None:
    """Write the report of a comparison."""
    from wattree.report.html.views import comparison_view

    body = fragment("compare.html.j2", comparison=comparison_view(comparison))
    names = ", ".join(Path(run.source).name for run in comparison.runs)
    subtitle = "All are related to the first, A."
    _write(path, kind="Comparison", title=names, subtitle=subtitle, body=body)


def fragment(template: str, **context: Any) -> str:
    """Return a part of a page as HTML; texts of the context are escaped."""
    return str(_environment().get_template(template).render(**context))


def style() -> str:
    """Return the style of all pages."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


def _write(path: Path, *, body: str, **words: str) -> None:
    from markupsafe import Markup

    text = fragment(
        "document.html.j2",
        **words,
        version=__version__,
        style=Markup(style()),  # noqa: S704 own file
        body=Markup(body),  # noqa: S704 made of templates that escape
        basis=_BASIS,
    )
    write_atomic(path, text)


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([_FOLDER, _FOLDER.parents[1] / "serve" / "page"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

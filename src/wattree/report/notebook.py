"""Display of results: one line in a terminal, a report's first screen in a notebook."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from wattree.errors import MissingExtraError, check_packages
from wattree.printable import printable
from wattree.report.words import job_in_words, joules, percent, strategy_in_words
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from wattree.design.results import Results
    from wattree.predict import PowerSweep, Prediction, StepEstimate
    from wattree.schedule import QueueSchedule
    from wattree.search import Plan
    from wattree.search.compared import RunComparison
    from wattree.trace import Result
    from wattree.validation import Validation

_WIDTH: Final = 110
_ID: Final = re.compile(r'( id="|href="#|url\(#|labelledby="|describedby=")')
_PRE: Final = '<pre style="line-height:1.25;overflow-x:auto">{code}</pre>'


def line_of(value: object) -> str:
    """Return a result in one line."""
    return printable(_LINES[type(value).__name__](value))


def html_of(value: object) -> str:
    """Return the first screen of a result as HTML; its text without jinja2 or matplotlib."""
    screen = _SCREENS.get(type(value).__name__)
    try:
        check_packages("jinja2", "matplotlib", needed_for="a report", extra="report")
    except MissingExtraError:
        screen = None
    return printable(_text(value) if screen is None else screen(value))


def _result_line(value: Result) -> str:
    strategy = strategy_in_words(value.strategy)
    return f"{value.model} on {value.cluster}, {strategy}: {_step_line(value)}"


def _step_line(value: Result | StepEstimate) -> str:
    memory = value.memory
    return (
        f"{format_time(value.step_time_s)} per step, {format_bytes(memory.peak_bytes)} of "
        f"{format_bytes(memory.capacity_bytes)}{'' if memory.fits else ', does not fit'}, "
        f"{joules(value.energy_j.total)}"
    )


def _plan_line(value: Plan) -> str:
    found = f"{counted(value.candidates, 'strategy')} screened, {value.feasible:,} feasible"
    if value.best is None:
        return f"nothing fits; {found}"
    time = f"{format_time(value.best.result.step_time_s)} per {value.best.result.timed}"
    return f"best by {value.objective}: {value.best.label}, {time}; {found}"


def _comparison_line(value: RunComparison) -> str:
    return ", ".join(
        f"{run.name} {format_time(run.figures['step_time_s'])} per step" for run in value.runs
    )


def _sweep_line(value: PowerSweep) -> str:
    limits = [step.power_limit_w for step in value.steps]
    return (
        f"{value.job}: {len(limits)} limits from {max(limits):.0f} to {min(limits):.0f} W, least "
        f"energy at {value.least_energy_w:.0f} W"
    )


def _study_line(value: Results) -> str:
    found = (
        f"{value.study.name}: {counted(len(value), 'point')}, {int(value.feasible.sum())} feasible"
    )
    best = value.best()
    if best is None:
        return found
    return f"{found}, best by {value.study.objectives[0]}: #{best + 1}"


def _schedule_line(value: QueueSchedule) -> str:
    late = "" if value.meets_deadlines else f", {value.totals.late} late"
    return f"{counted(len(value.jobs), 'job')}{late}, gap {percent(value.gap)}"


def _validation_line(value: Validation) -> str:
    each = {quantity: by_source["all"] for quantity, by_source in value.summary.items()}
    return ", ".join(
        f"{quantity} {percent(errors.mean_abs_error)} mean error over {errors.count} rows"
        for quantity, errors in each.items()
        if errors.mean_abs_error is not None
    )


_LINES: Final[Mapping[str, Callable[[Any], str]]] = {
    "Plan": _plan_line,
    "PowerSweep": _sweep_line,
    "Prediction": lambda value: _result_line(value.result),
    "QueueSchedule": _schedule_line,
    "Result": _result_line,
    "Results": _study_line,
    "RunComparison": _comparison_line,
    "StepEstimate": _step_line,
    "Validation": _validation_line,
}


def _prediction_screen(value: Prediction) -> str:
    from wattree.report.html.views import step_view

    view, result = step_view(value), value.result
    shown = {"cards": view.cards, "plots": view.plots[:1], "lines": value.warnings}
    return _screen(job_in_words(result), strategy_in_words(result.strategy), **shown)


def _result_screen(value: Result) -> str:
    from wattree.report.html.views import step_cards

    title, words = f"{value.model} on {value.cluster}", strategy_in_words(value.strategy)
    return _screen(title, words, cards=step_cards(value.as_json()))


def _estimate_screen(value: StepEstimate) -> str:
    from wattree.report.html.views import step_cards

    return _screen("Estimate of one step", "", cards=step_cards(value.as_json()))


def _plan_screen(value: Plan) -> str:
    from wattree.report.html.views import headline, plan_view

    view = plan_view(value)
    shown = {"cards": view.cards, "lines": view.reasons, "tables": view.tables}
    return _screen("Plan", headline(value), **shown)


def _comparison_screen(value: RunComparison) -> str:
    from wattree.report.html.views import comparison_view

    view = comparison_view(value)
    shown = {"lines": view.reasons, "plots": view.plots[:1], "tables": view.tables}
    return _screen("Comparison", "", **shown)


_SCREENS: Final[Mapping[str, Callable[[Any], str]]] = {
    "Plan": _plan_screen,
    "Prediction": _prediction_screen,
    "Result": _result_screen,
    "RunComparison": _comparison_screen,
    "StepEstimate": _estimate_screen,
}


def _screen(title: str, words: str, **parts: Any) -> str:
    """Return parts of a report as a piece of a page, whose style holds for it alone."""
    from wattree.report.html.templates import rendered, style

    scoped = re.sub(r":root|\bbody(?= \{)", ":scope", style())
    parts = {"cards": (), "lines": (), "plots": (), "tables": ()} | parts
    html = rendered("notebook.html.j2", style=scoped, title=title, words=words, **parts)
    # Ids of two results of a page must differ.
    own = hashlib.sha256(html.encode()).hexdigest()[:8]
    return _ID.sub(rf"\g<1>{own}-", html)


def _text(value: object) -> str:
    """Return terminal output as HTML."""
    console = Console(record=True, file=StringIO(), width=_WIDTH)
    name = type(value).__name__
    if name in _TEXTS:
        module, function, options = _TEXTS[name]
        show = getattr(import_module(f"wattree.report.{module}"), function)
        show(getattr(value, "result", value), console, **options)
    elif name == "Validation":
        console.print(value.table())  # type: ignore[attr-defined]
    else:
        console.print(line_of(value), markup=False, highlight=False)
    return console.export_html(inline_styles=True, code_format=_PRE)


#: Type → what prints it: a module beside this one, its function, options.
_TEXTS: Final[Mapping[str, tuple[str, str, Mapping[str, bool]]]] = {
    "Plan": ("plan_text", "show_plan", {"full": False}),
    "PowerSweep": ("energy_text", "show_power_sweep", {}),
    "Prediction": ("result_text", "show_result", {"full": False}),
    "QueueSchedule": ("schedule_text", "show_schedule", {}),
    "Result": ("result_text", "show_result", {"full": False}),
    "Results": ("design_text", "show_answers", {}),
    "RunComparison": ("compare_text", "show_comparison", {}),
}

"""Energy calibrations, predictions and comparisons as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattree.energy.calibration import CONSTANTS, EnergyCalibration, StageConstant, Status
from wattree.energy.compare import EnergyComparison
from wattree.energy.predict import EnergyForecast, Figure
from wattree.energy.scores import GroupComparison, Score
from wattree.report.parts import INDENT, headed_table
from wattree.report.words import NOT_APPLICABLE, percent, quantity
from wattree.trace import STAGES
from wattree.units import counted, format_time, rounded

#: Lines of a list before the rest is only counted.
_LISTED = 12
_TITLE_WIDTH = 20
#: Samples of a step from which on they are written by exponent.
_MANY = 1e12


def _title(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _notes(console: Console, lines: Sequence[str], title: str) -> None:
    if not lines:
        return
    _title(console, title)
    _list_first(console, lines)


def _list_first(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:_LISTED]:
        console.print(Padding(Text(line), INDENT))
    if len(lines) > _LISTED:
        console.print(Padding(Text(f"and {len(lines) - _LISTED} more"), INDENT))


def show_calibration(calibration: EnergyCalibration, console: Console) -> None:
    """Print constants with intervals and evidence, and what the runs do not determine."""
    runs = ", ".join(f"{len(names)} {name}" for name, names in calibration.runs.items())
    _title(console, f"{calibration.node or 'nodes'} ({calibration.origin}), {runs}")
    console.print(Padding(_constants(calibration), INDENT))
    absent = [n for n, each in calibration.constants.items() if each.status is Status.ABSENT]
    if absent:
        console.print(
            Padding(Text(f"not determined by the runs: {', '.join(absent)}", style="dim"), INDENT)
        )
    scatter = calibration.scatter
    if scatter.known is not None:
        words = f"energy of training runs: root mean square error {percent(scatter.known)}"
        if scatter.unseen is not None:
            words += f"; of models left out of the fit {percent(scatter.unseen)}"
        console.print(Padding(Text(words), INDENT))
    _notes(console, calibration.warnings, "To know")


def _constants(calibration: EnergyCalibration) -> Table:
    """Return the constants by group, narrow enough for 80 columns."""
    table = headed_table("constant", "value", "95 % interval", "runs", "")
    table.columns[-1].justify = "left"
    table.columns[0].no_wrap = True
    group = ""
    for name, constant in calibration.constants.items():
        if constant.status is Status.ABSENT:
            continue
        head, _, own = name.rpartition(".")
        if head != group:
            group = head
            table.add_row(Text(f"{head}.", style="dim"))
        unit = CONSTANTS[name][0]
        table.add_row(f" {own}", *_constant_cells(constant, unit))
    return table


def _constant_cells(constant: StageConstant, unit: str) -> tuple[str, str, str, str]:
    """Return value, interval, runs and status; what has no value has its status for one."""
    runs = f"{constant.runs}"
    if constant.value is None and constant.lower is None and constant.upper is None:
        return NOT_APPLICABLE, str(constant.status), runs, ""
    status = "" if constant.status is Status.FITTED else str(constant.status)
    return _value(constant.value, unit), _range(constant, unit), runs, status


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_APPLICABLE
    if unit == "1":
        return f"{value:.3g}"
    return small(value, unit)


def small(value: float, unit: str) -> str:
    """Return a quantity; what is below the smallest prefix is written with an exponent."""
    size = rounded(value)  # as printed, so that no unit is left with a thousand of it
    if value == 0 or size >= _SMALLEST:
        return quantity(value, unit)
    for scale, prefix in ((1e-12, "p"), (1e-15, "f")):
        if size >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


_SMALLEST, _LARGEST = 1e-9, 1e21


def _range(constant: StageConstant, unit: str) -> str:
    if constant.lower is None and constant.upper is None:
        return NOT_APPLICABLE
    if constant.upper is None:
        return f"at least {_value(constant.lower, unit)}"
    return _between(_value(constant.lower, unit), _value(constant.upper, unit))


def _between(lower: str, upper: str) -> str:
    """Return an interval, its unit once where both ends have it."""
    start, _, mine = lower.partition(" ")
    is_shared = start == "0" or mine == upper.partition(" ")[2]
    return f"{start if is_shared else lower} to {upper}"


def show_forecasts(forecasts: Sequence[EnergyForecast], console: Console) -> None:
    """Print predicted time and energy by stage for each number of nodes."""
    first = forecasts[0]
    _title(
        console, f"{first.model or 'run'} on {first.node or 'nodes'}, {first.iterations} step(s)"
    )
    table = headed_table("nodes", "samples", "step", "energy", "95 % interval", "J/sample")
    stages = headed_table("nodes", "", *STAGES)
    stages.columns[1].justify = "left"
    for each in forecasts:
        table.add_row(
            f"{each.nodes}",
            f"{each.samples:,.0f}" if each.samples < _MANY else f"{each.samples:.2e}",
            _seconds(each.step_s.value),
            _joules(each.energy_j.value),
            _interval(each.energy_j),
            _joules(each.energy_j.value / (each.samples * each.iterations)),
        )
        parts = [each.by_stage[stage] for stage in STAGES]
        whole_j = each.energy_j.value
        shares = (f"{_joules(part.value)} {percent(part.value / whole_j)}" for part in parts)
        stages.add_row(f"{each.nodes}", "energy", *shares)
        stages.add_row("", "95 %", *map(_interval, parts))
    console.print(Padding(table, INDENT))
    console.print(Padding(stages, INDENT))
    lines = list(dict.fromkeys(line for each in forecasts for line in each.warnings))
    _notes(console, lines, "To know")


def _interval(figure: Figure) -> str:
    if figure.lower is None or figure.upper is None:
        return NOT_APPLICABLE
    return _between(_joules(figure.lower), _joules(figure.upper))


def _seconds(time_s: float) -> str:
    return format_time(time_s) if time_s < _LARGEST else f"{time_s:.2e} s"


def _joules(energy_j: float) -> str:
    """Return an energy; what is beyond the prefixes, and so beyond any machine, by exponent."""
    return quantity(energy_j, "J") if energy_j < _LARGEST else f"{energy_j:.2e} J"


def show_comparison(comparison: EnergyComparison, console: Console) -> None:
    """Print a table for each kind of node, and where the stage model is not ahead."""
    for number, group in enumerate(comparison.groups):
        if number:
            console.print()
        _title(
            console,
            f"{group.node or 'nodes'} ({group.origin}): {group.scored} training runs, predicted "
            f"from {counted(group.fitted, 'run')} ({comparison.fit_on})",
        )
        console.print(Padding(_totals(group), INDENT))
        _knows(console, group)
        _parts(console, group)
        _missing(console, group)
        _behind(console, group)
        _notes(console, group.warnings, "To know of the fit")
    console.print(Text(f"Power series: {comparison.series}.", style="dim"))


def _totals(group: GroupComparison) -> Table:
    table = headed_table("mean absolute error", "energy", "95 % interval", "bias", "unseen", "runs")
    table.columns[0].min_width = _TITLE_WIDTH
    for each in group.methods:
        if each.total is None:
            continue
        unseen = [found.mean_abs_error for found in each.left_out.values()]
        table.add_row(
            each.title,
            percent(each.total.mean_abs_error),
            _score_range(each.total),
            f"{100 * each.total.bias:+.1f} %",
            percent(sum(unseen) / len(unseen)) if unseen else NOT_APPLICABLE,
            f"{each.total.count}",
        )
    return table


def _knows(console: Console, group: GroupComparison) -> None:
    """Print the inputs that each model has from the scored runs, and the meaning of `unseen`."""
    titles_by_input: dict[str, list[str]] = {}
    for each in group.methods:
        if each.total is not None:
            titles_by_input.setdefault(each.knows, []).append(each.title.partition(" [")[0])
    titles_by_input = {
        knows: list(dict.fromkeys(titles)) for knows, titles in titles_by_input.items()
    }
    lines = [f"given {knows}: {'; '.join(titles)}" for knows, titles in titles_by_input.items()]
    lines.append("unseen: models of which no run was fitted on")
    for line in lines:
        console.print(Padding(Text(line, style="dim"), INDENT))


def _score_range(found: Score) -> str:
    if found.lower is None or found.upper is None:
        return NOT_APPLICABLE
    return f"{percent(found.lower)} to {percent(found.upper)}"


def _parts(console: Console, group: GroupComparison) -> None:
    """Print errors by model, by number of nodes and by stage."""
    for head, key in (("by model", "by_model"), ("by nodes", "by_nodes"), ("by stage", "by_stage")):
        shown = [each for each in group.methods if getattr(each, key)]
        names = list(dict.fromkeys(name for each in shown for name in getattr(each, key)))
        if not names:
            continue
        console.print()
        table = headed_table(head, *names)
        table.columns[0].min_width = _TITLE_WIDTH
        for each in shown:
            scores = getattr(each, key)
            cells = (
                percent(scores[n].mean_abs_error) if n in scores else NOT_APPLICABLE for n in names
            )
            table.add_row(each.title, *cells)
        console.print(Padding(table, INDENT))


def _missing(console: Console, group: GroupComparison) -> None:
    lines = [f"{each.title}: {each.reason}" for each in group.methods if each.reason]
    _notes(console, lines, "Not scored, or not on every run")


def _behind(console: Console, group: GroupComparison) -> None:
    console.print()
    titles = {each.method: each.title for each in group.methods}
    where = {(each.model, each.nodes) for each in group.behind}
    if next(each for each in group.methods if each.method == "stages").total is None:
        console.print(Text("MC² is not scored."))
        return
    if not group.behind:
        console.print(Text(f"MC² is ahead of all others in each of {group.cells} cells."))
        return
    console.print(Text(f"MC² is not ahead in {len(where)} of {group.cells} cells (model x nodes):"))
    worst = sorted(group.behind, key=lambda each: each.error - each.stage_model_error)
    lines = [
        f"{each.model or 'runs'} on {each.nodes}: {titles[each.method]} {percent(each.error)}, "
        f"MC² {percent(each.stage_model_error)}"
        for each in worst
    ]
    _list_first(console, lines)

"""A run of `train` as text, next to its prediction, and trials of processes per device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from wattree.report.parts import headed_table
from wattree.report.words import NOT_APPLICABLE, percent, significant
from wattree.trace import STAGES, Result, Run, TrainingUse
from wattree.units import counted, format_bytes, format_time, plural

if TYPE_CHECKING:
    from wattree.runtime.tune import Choice, TrialRow, TrialSetting

_NO_METER = "no meter"
#: No table is as wide: what it is measured within, in columns.
_WIDEST = 1000


def show_trained(result: Result, run: Run, comparison: Any, console: Console) -> None:
    """Print the results of a run: loss, speed, stages, traffic, energy.

    Args:
        comparison: Predicted and measured figures, a `Comparison`; None shows none.
    """
    use = result.training
    assert use is not None
    console.print(_headline(result, use), soft_wrap=True)
    for line in _facts(result, run, use):
        console.print(line, soft_wrap=True)
    if comparison is None:
        console.print(_stages(result, use))
    else:
        if comparison.unprofiled:
            console.print(comparison.advice, soft_wrap=True)
        console.print(_compared(comparison, with_errors=not comparison.unprofiled))
        if comparison.advice is not None and not comparison.unprofiled:
            console.print(f"note: {comparison.advice}", soft_wrap=True)
    for note in result.assumed:
        console.print(f"note: {note}", soft_wrap=True)


def show_rivals(found: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print several runs: loss, time, traffic, parameters, energy.

    Args:
        found: Name → result as JSON.
    """
    rows: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "first loss": lambda result: f"{result['training']['losses'][0]:.6g}",
        "loss, mean of the last ten": lambda result: f"{result['training']['loss']:.6g}",
        "steps": lambda result: str(result["training"]["steps"]),
        "step": lambda result: format_time(result["step_time_s"]),
        **{f"  {stage}": _stage_cell(stage) for stage in STAGES},
        "samples/s": lambda result: significant(result["samples_per_s"]),
        "sent by a rank": lambda result: format_bytes(result["training"]["sent_bytes"]),
        "collectives": lambda result: f"{result['training']['collectives']:.3g}",
        "parameters": lambda result: f"{result['parameters']:,}",
        "energy of a step, with PUE": lambda result: _joules(
            result["energy_j"]["total"], unit=" J"
        ),
    }
    cells = ((name, *map(cell, found.values())) for name, cell in rows.items())
    console.print(headed_table("", *found, rows=cells))


def _stage_cell(stage: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(result: Mapping[str, Any]) -> str:
        return format_time(result["training"]["stages"][stage]["exposed_s"])

    return cell


def _headline(result: Result, use: TrainingUse) -> str:
    done = "trained" if result.workload == "train" else "ran forward for"
    ended = "interrupted after" if use.interrupted else done
    since = f" (from step {use.first_step} on)" if use.first_step else ""
    return (
        f"{result.model} on {counted(result.ranks, 'rank')}: {ended} "
        f"{counted(use.steps, 'step')}{since}, "
        f"loss {use.losses[-1] if use.losses else float('nan'):.6g}"
    )


def _facts(result: Result, run: Run, use: TrainingUse) -> list[str]:
    lines = [
        f"{format_time(result.step_time_s)} a step, {significant(result.samples_per_s)} samples/s; "
        f"{counted(use.measured_steps, 'step')} measured"
    ]
    if use.processes_per_device > 1:
        lines.append(
            f"{use.processes_per_device} processes on each device, {use.batch_rule}: "
            f"{counted(use.samples, 'sample')} a step, learning rate × {use.learning_rate_scale:g}"
        )
    if use.target_loss is not None:
        reached = (
            f"reached after {counted(use.target_step, 'step')}"
            if use.target_step
            else "not reached"
        )
        lines.append(f"target loss {use.target_loss:g}: {reached}")
    parts = ", ".join(f"{name} {format_bytes(sent)}" for name, sent in use.sent_by.items())
    lines.append(
        f"{format_bytes(use.sent_bytes)} sent by a rank in a step, "
        f"{use.collectives:.4g} {plural('collective', use.collectives)}"
        f"{f': {parts}' if len(use.sent_by) > 1 else ''}"
    )
    lines.append(
        f"{use.parameters_per_rank:,.0f} parameters a rank, {result.parameters:,} in all; "
        f"peak memory of a process {format_bytes(result.memory.peak_bytes)}"
    )
    if run.meters:
        lines.append(
            f"{run.energy_j:,.4g} J in {run.wall_s:.2f} s, {run.average_w:.4g} W ({run.origin})"
        )
    else:
        lines.append("no energy was read: the run is too short for the meters")
    return lines


def _stages(result: Result, use: TrainingUse) -> Table:
    rows = [
        (
            name,
            format_time(stage.exposed_s),
            percent(stage.exposed_s / result.step_time_s),
            format_time(stage.busy_s),
            _joules(stage.energy_j, " J"),
        )
        for name, stage in use.stages.items()
    ]
    return headed_table("stage", "waited for", "share", "at work", "energy", rows=rows)


def _compared(comparison: Any, *, with_errors: bool) -> Table:
    """Return predicted next to measured; without errors where they would be no one's."""

    def errors(cell: str) -> tuple[str, ...]:
        return (cell,) if with_errors else ()

    table = headed_table(
        *("of a step", "predicted", "measured", *errors("error")),
        *("predicted J", "measured J", *errors("error")),
    )
    for figure in comparison.figures:
        table.add_row(
            figure.name,
            format_time(figure.predicted_s),
            format_time(figure.measured_s),
            *errors(_error(figure.predicted_s, figure.measured_s)),
            _joules(figure.predicted_j),
            _joules(figure.measured_j),
            *errors(_error(figure.predicted_j, figure.measured_j)),
        )
    sent = (comparison.predicted_sent_bytes, comparison.measured_sent_bytes)
    table.add_row("sent by a rank", *map(format_bytes, sent), *errors(_error(*sent)))
    return table


def _joules(energy_j: float | None, unit: str = "") -> str:
    return NOT_APPLICABLE if energy_j is None else f"{energy_j:.3g}{unit}"


def _error(predicted: float | None, measured: float | None) -> str:
    if predicted is None or not measured:
        return NOT_APPLICABLE
    return f"{predicted / measured - 1:+.1%}"


def show_choice(choice: Choice, console: Console) -> None:
    """Print the trials as a table, alternatives with one process, and the choice."""
    table = Table(box=None)
    table.add_column("trial", no_wrap=True)
    for name in ("step", "samples/s", "to q = 1", "energy/sample", "data", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    alone = choice.rows[0]
    for row in choice.rows:
        _add(table, row, alone, choice.chosen)
    if choice.competitors:
        table.add_section()
        for row in choice.competitors:
            _add(table, row, alone, choice.chosen)
    # Figures are whole on a narrow console, too: logs have 80 columns, and its lines may wrap.
    whole = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.width = max(console.width, whole)
    console.print(table)
    console.print("  data: waits for loaders; *: chosen; memory: of one process", highlight=False)
    for row in (*choice.rows, *choice.competitors):
        if row.fault:
            console.print(
                f"  {row.setting.words()}: cannot: {row.fault}", soft_wrap=True, markup=False
            )
    for sentence in choice.why:
        console.print(f"  {sentence}", soft_wrap=True, highlight=False)
    console.print(f"chosen: {choice.chosen.words()}", soft_wrap=True, highlight=False)


def _add(table: Table, row: TrialRow, alone: TrialRow, chosen: TrialSetting) -> None:
    name = row.setting.words() + (" *" if row.setting == chosen else "")
    if row.fault:
        table.add_row(name, "–")
        return
    table.add_row(
        name,
        format_time(row.step_s),
        significant(row.rate),
        f"{row.rate / alone.rate:.2f} x",
        _NO_METER if row.energy_j is None else f"{row.energy_j:.3g} J",
        percent(row.data_share),
        format_bytes(row.memory_bytes),
    )

"""A run and its prediction, and constants learned from own runs, as text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattree.learn.constants import class_words
from wattree.report.parts import headed_table
from wattree.report.words import part_in_words, percent
from wattree.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.learn.calibrate import LearnedCalibration
    from wattree.learn.explain import Explanation

#: Most differences printed with their causes; the others are in the table.
_MOST_FAULTS = 4


def show_explanation(found: Explanation, console: Console) -> None:
    """Print step and classes, predicted and measured, then the faults with their causes."""
    console.print(Text(headline(found), style="bold"))
    console.print(Text(certainty(found)))
    console.print()
    console.print(classes_table(found))
    predicted, measured = found.tensor_bytes
    if measured is not None:
        words = f"\nTensors: {format_bytes(measured)} at most, {format_bytes(predicted)} predicted"
        console.print(Text(words))
    for number, fault in enumerate(found.faults[:_MOST_FAULTS], start=1):
        console.print()
        lost = f"{number}. {format_time(fault.lost_s)} a step: {fault.title}"
        console.print(Text(lost, style="bold"))
        for line in (fault.evidence, *(f"- {cause}" for cause in fault.causes)):
            console.print(Padding(Text(line), (0, 0, 0, 3)))
    if not found.faults:
        console.print("\nNothing takes longer than predicted by 1 % of the step.")


def headline(found: Explanation) -> str:
    """Return both steps in one line."""
    slower = found.measured_s / found.predicted_s - 1.0
    return (
        f"Step {format_time(found.measured_s)} measured, {format_time(found.predicted_s)} "
        f"predicted: {percent(abs(slower))} {'slower' if slower > 0 else 'faster'}"
    )


def certainty(found: Explanation) -> str:
    """Return the interval of the prediction, and where the run is."""
    low, high = map(format_time, found.interval_s)
    where = "within" if found.is_expected else "outside"
    return f"80 % interval of the prediction: {low} to {high}; this run is {where} it"


def classes_table(found: Explanation) -> Table:
    """Return the classes of the step, predicted and measured."""
    rows = [
        (
            part_in_words(each.name),
            format_time(each.predicted_s),
            format_time(each.measured_s),
            _signed(each.difference_s),
            f"{100 * each.difference_s / found.measured_s:+.1f} %",
        )
        for each in found.classes
        if max(each.predicted_s, each.measured_s) > 0
    ]
    table = headed_table("", "predicted", "measured", "difference", "of the step", rows=rows)
    total = found.measured_s - found.predicted_s
    table.add_row(
        "step", format_time(found.predicted_s), format_time(found.measured_s), _signed(total), ""
    )
    hidden = map(format_time, found.hidden_s)
    table.add_row("overlapped communication", *hidden, "", "", style="dim")
    return table


def _signed(time_s: float) -> str:
    return f"{'-' if time_s < 0 else '+'}{format_time(abs(time_s))}"


#: Moves that are too small to be read off a run. Of a logarithm.
_NOTHING = 5e-4


def show_learned(found: LearnedCalibration, console: Console) -> None:
    """Print each run before and after, what moved, and where the constants are."""
    steps = [
        (
            Path(step.job).name,
            format_time(step.measured_s),
            format_time(step.before_s),
            _between(step.before),
            format_time(step.after_s),
            _between(step.after),
        )
        for step in found.steps
    ]
    heads = ("job", "measured", "predicted", "80 % interval", "corrected", "interval")
    console.print(headed_table(*heads, rows=steps))
    console.print()
    moves = [
        (
            class_words(move.name),
            f"x {move.factor:.3f}",
            f"± {100 * move.spread_before:.1f} %",
            f"± {100 * move.spread:.1f} %",
        )
        for move in found.moves
        if abs(math.log(move.factor)) >= _NOTHING
    ]
    sure = ("time", "sure to before", "after")
    console.print(headed_table(f"{found.device}, {found.software}", *sure, rows=moves))
    console.print()
    console.print(f"wrote {found.written}; use it with --calibration", soft_wrap=True)


def _between(span: tuple[float, float]) -> str:
    return f"{format_time(span[0])} to {format_time(span[1])}"

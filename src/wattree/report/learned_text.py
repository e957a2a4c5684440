"""Constants learned from a user's own runs, as text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from wattree.learn.constants import class_words
from wattree.report.parts import headed_table
from wattree.units import format_time

if TYPE_CHECKING:
    from rich.console import Console

    from wattree.learn.calibrate import LearnedCalibration

#: Moves that are too small to be read off a run. Of a logarithm.
_NOTHING = 5e-4


def show_learned(found: LearnedCalibration, console: Console) -> None:
    """Print each run before and after, what moved, and where the constants are."""
    steps = headed_table("job", "measured", "predicted", "80 % interval", "corrected", "interval")
    for step in found.steps:
        steps.add_row(
            Path(step.job).name,
            format_time(step.measured_s),
            format_time(step.before_s),
            _between(step.before),
            format_time(step.after_s),
            _between(step.after),
        )
    console.print(steps)
    console.print()
    moves = headed_table(f"{found.device}, {found.software}", "time", "sure to before", "after")
    for move in found.moves:
        if abs(math.log(move.factor)) >= _NOTHING:
            moves.add_row(
                class_words(move.name),
                f"x {move.factor:.3f}",
                f"± {100 * move.spread_before:.1f} %",
                f"± {100 * move.spread:.1f} %",
            )
    console.print(moves)
    console.print()
    console.print(f"wrote {found.written}; use it with --calibration", soft_wrap=True)


def _between(span: tuple[float, float]) -> str:
    return f"{format_time(span[0])} to {format_time(span[1])}"

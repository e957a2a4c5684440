"""The study's pictures: what was measured, and what was simulated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulated import Case
from tables import grouped

__all__ = ["draw_measured", "draw_simulated"]

_COLORS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8a5a9e", "#c98a1b", "#555555")


def draw_measured(
    runs: Sequence[Mapping[str, Any]], base: Mapping[str, Any], target: float, path: Path
) -> None:
    """Draw losses over steps: dense and phantom stacks of the base shape, by ranks."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for panel, ranks in zip(panels, (2, 4), strict=True):
        colors = iter(_COLORS)
        for (source, width, depth, own_ranks, ghosts, preset), own in sorted(
            grouped(runs).items(), key=lambda item: (item[0][5], item[0][4])
        ):
            is_base = (source, width, depth) == (base["source"], base["width"], base["depth"])
            if not is_base or own_ranks not in {1, ranks}:
                continue
            blocks = list(zip(*(run["losses"] for run in own), strict=True))
            steps = [10 * number + 5 for number in range(len(blocks))]
            color = next(colors)
            panel.plot(
                steps, [statistics.fmean(each) for each in blocks], color=color,
                lw=2.4 if preset == "ddp" else 1.4,
                label="dense (tensor parallel)" if preset == "ddp" else f"phantom, k {ghosts}",
            )  # fmt: skip
            lows, highs = [min(each) for each in blocks], [max(each) for each in blocks]
            panel.fill_between(steps, lows, highs, color=color, alpha=0.15, lw=0)
        panel.axhline(target, color="#888888", lw=1, ls=":")
        panel.set(title=f"{ranks} ranks (measured)", xlabel="step", yscale="log")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    panels[0].set_ylabel(f"loss on {base['source']}, mean and span of seeds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_simulated(cases: Sequence[Case], ghosts: int, claim: float, node: str, path: Path) -> None:
    """Draw energies of a step over those of tensor parallelism over ranks: one number of ghosts."""
    from matplotlib import pyplot as plt

    batches = list(dict.fromkeys(case.batch for case in cases))
    figure, panels = plt.subplots(
        2, len(batches), figsize=(11, 7.4), sharex=True, sharey="row", layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for column, batch in enumerate(batches):
        mine = [case for case in cases if case.batch == batch and case.ghosts == ghosts]
        top, bottom = panels[0][column], panels[1][column]
        widths = list(dict.fromkeys(case.width for case in mine))
        for width, color in zip(widths, _COLORS, strict=False):
            own = [case for case in mine if case.width == width]
            ranks = [case.ranks for case in own]
            same = [case.phantom.energy_j / case.tensor.energy_j for case in own]
            iso = [case.phantom.energy_j / case.iso.energy_j for case in own]
            narrow = f"n {width}, as many weights"
            top.plot(ranks, same, marker="o", color=color, label=f"n {width}, same width")
            top.plot(ranks, iso, marker=".", ls="--", color=color, lw=1, label=narrow)
            for step, style in (("phantom", "-"), ("tensor", ":")):
                steps = [getattr(case, step) for case in own]
                energies = [each.energy_j if each.fits else math.nan for each in steps]
                bottom.plot(
                    ranks,
                    energies,
                    style,
                    marker="o",
                    ms=3,
                    color=color,
                    label=f"n {width}, {step}",
                )
        top.axhline(claim, color="#888888", lw=1, ls=":")
        top.set(title=f"batch {batch}, k {ghosts} (simulated, {node})", yscale="log")
        top.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 1.5], ["0.05", "0.1", "0.2", "0.5", "1", "1.5"])
        bottom.set(xlabel="ranks p", xscale="log", yscale="log")
        ticks = sorted({case.ranks for case in mine})
        bottom.set_xticks(ticks, [str(each) for each in ticks])
        for panel in (top, bottom):
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            if not column:  # colors and lines are the same in all
                panel.legend(fontsize=7)
    panels[0][0].set_ylabel("energy of a step over tensor parallelism's")
    panels[1][0].set_ylabel("energy of a step (J), where it fits")
    figure.savefig(path, dpi=110)
    plt.close(figure)

"""The study's pictures: what was measured, and what was simulated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

__all__ = ["draw_measured", "draw_simulated"]

_COLORS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8a5a9e", "#c98a1b", "#555555")
_RULES = {"fixed-global": "they share the batch", "fixed-per-process": "a batch for each"}


def draw_measured(found: Mapping[str, Any], path: Path) -> None:
    """Draw the gain of the largest number of processes, by batch and loader workers."""
    most = max(row["processes"] for row in found["rows"])
    rows = [row for row in found["rows"] if row["processes"] == most]
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, (rule, title) in zip(panels, _RULES.items(), strict=True):
        own = [row for row in rows if row["rule"] == rule]
        names = [f"batch {row['batch']}\n{row['workers']} workers" for row in own]
        bars = panel.bar(names, [row["gain"] for row in own], color=_COLORS[0], width=0.6)
        panel.bar_label(bars, fmt="%.2f")
        panel.axhline(1, color="#555555", lw=1, ls=":")
        panel.set(title=f"measured, {found['cores']} cores: {title}")
    panels[0].set_ylabel(f"samples/s of q = {most} over q = 1")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_simulated(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw gains over processes, a panel for each model and rule, a line for batch and workers."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, panels = plt.subplots(
        2, len(models), figsize=(13, 6.5), sharex=True, sharey="row", layout="constrained"
    )
    for (line, (rule, title)), (column, model) in itertools.product(
        enumerate(_RULES.items()), enumerate(models)
    ):
        panel = panels[line][column]
        own = [row for row in rows if row["rule"] == rule and row["model"] == model]
        batches = sorted({row["batch"] for row in own})
        for batch, workers in itertools.product(batches, sorted({r["workers"] for r in own})):
            one = [row for row in own if (row["batch"], row["workers"]) == (batch, workers)]
            panel.plot(
                [row["processes"] for row in one], [row["gain"] for row in one], marker="o", ms=3,
                color=_COLORS[batches.index(batch)], ls="--" if workers < 24 else "-",
                label=f"batch {batch}, {workers} workers",
            )  # fmt: skip
        panel.axhline(1, color="#555555", lw=1, ls=":")
        panel.set_title(f"{model}\n{title}", fontsize=10)
        panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("processes on the device")
    panels[0][0].legend(fontsize=7)
    figure.supylabel("simulated A100: samples/s over q = 1")
    figure.savefig(path, dpi=110)
    plt.close(figure)

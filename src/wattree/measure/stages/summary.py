"""A short summary of a run, for the end of a training script's output."""

from __future__ import annotations

from collections.abc import Iterator

from wattree.trace import Run
from wattree.units import counted


def summary_lines(run: Run) -> Iterator[str]:
    """Yield the stages of a run, its energy, and warnings."""
    steps = run.iterations or 1
    energy = f"{run.energy_j:.1f} J, {run.average_w:.1f} W ({run.origin})"
    yield (
        f"wattree: {run.name}: {counted(run.iterations, 'step')} in {run.wall_s:.2f} s on "
        f"{counted(run.nodes, 'node')}, {energy if run.meters else 'no energy was read'}"
    )
    for stage, use in run.stages.items():
        energy = "" if use.energy_j is None else f"  {use.energy_j:10.1f} J"
        share = use.exposed_s / run.wall_s if run.wall_s > 0 else 0.0
        yield (
            f"  {stage:<13}  {use.exposed_s / steps * 1e3:10.3f} ms a step  {share:6.1%}"
            f"  busy {use.busy_s / steps * 1e3:.3f} ms{energy}"
        )
    for line in run.missing:
        yield f"  not read: {line}"
    for line in run.notes:
        yield f"  note: {line}"

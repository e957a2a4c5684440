"""The work of a step of one rank, counted and stated by the user, and the summary of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from wattree.measure.stages.loader import Counts
from wattree.trace import Activity, Run, Work
from wattree.units import counted


def work_of(
    counts: Counts,
    given: Work,
    *,
    activity: Activity,
    flop_per_sample: float | None,
    read_bytes_per_sample: float | None,
    gradient_bytes: float | None,
    is_loaded: bool,
    is_copied: bool,
) -> Work:
    """Return the work of a step.

    Args:
        counts: Of the whole loop.
        given: What a user says of a step; goes before what was counted.
        activity: In a sweep of collectives the gradients are what is all-reduced.
        flop_per_sample: If known. [FLOP]
        read_bytes_per_sample: If known. [B]
        gradient_bytes: Of the model; None without one. [B]
    """
    steps = max(counts.steps, 1)
    samples = given.samples
    if samples is None and counts.samples is not None and is_loaded:
        samples = counts.samples / steps
    reduced_bytes = counts.reduced_bytes / steps if activity is Activity.COLLECTIVE else None
    found = Work(
        samples=samples,
        flop=_times(flop_per_sample, samples),
        read_bytes=_times(read_bytes_per_sample, samples),
        core_s=counts.core_s / steps if is_loaded else None,
        copied_bytes=counts.batch_bytes / steps if is_copied else None,
        gradient_bytes=reduced_bytes or gradient_bytes,
    )
    return replace(found, **{name: n for name, n in asdict(given).items() if n is not None})


def uncounted(counts: Counts, given: Work, activity: Activity) -> list[str]:
    """Return what is unknown about a sweep of collectives."""
    if activity is not Activity.COLLECTIVE or given.network_bytes is not None:
        return []
    others = sorted(set(counts.collectives) - {"all_reduce"})
    return [f"bytes of {name} are not counted; say them: Stages(work=…)" for name in others]


def _times(each: float | None, samples: float | None) -> float | None:
    return None if each is None or samples is None else each * samples


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

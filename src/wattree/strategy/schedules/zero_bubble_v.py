"""ZB-V: two chunks a stage in a V, no bubble in the memory of 1F1B (Qi et al. 2024).

The way of a micro-batch ends where it began, so its gradient comes back after one pass of half
stages rather than two of whole ones, and half as many forwards fill the warm-up. Described in
"Zero Bubble Pipeline Parallelism" (ICLR 2024) and as V-ZB in "Pipeline Parallelism with
Controllable Memory" (NeurIPS 2024). As with ZB-H2, stages start and end one after another.
"""

from __future__ import annotations

from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot


def zero_bubble_v(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return the stage's forwards, input gradients and weight gradients on both chunks."""
    del chunks
    most = max(micro_batches, 2 * stages)
    fresh = most - (2 * stages - 1 - stage)  # forwards that enter in the steady state
    order = in_phases(
        [
            (2 * (stages - stage) - 1, "F0"),
            (stage, "F1 F0"),
            (stages - stage, "F1 I1 W"),
            (fresh, "F0 I0 W F1 I1 W"),
            (most - stages - fresh, "I0 W F1 I1 W"),
            (stage, "I0 I1"),
            (stages - stage, "I0 W"),
            (2 * stage, "W"),
        ]
    )
    return limited(order, [range(micro_batches)] * 2)

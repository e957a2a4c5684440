"""ZB-H2: the warm-up is filled too, with nearly twice 1F1B's memory (Qi et al., ICLR 2024).

Each stage is busy from its first forward to its last weight gradient; stage `s` starts and ends
`s` forwards late. That a step then takes no longer than the work of one stage presumes that a
stage updates its weights, and begins the next step, without waiting for the others.
"""

from __future__ import annotations

from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot

__all__ = ["zero_bubble_h2"]


def zero_bubble_h2(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return forwards until the first gradient comes back, pairs, triples, weight gradients."""
    del chunks
    most = max(micro_batches, 2 * stages - 1)
    ahead = 2 * (stages - stage) - 1
    order = in_phases(
        [
            (ahead, "F0"),
            (2 * stage, "I0 F0"),
            (most - (2 * stages - 1), "I0 W F0"),
            (ahead, "I0 W"),
            (2 * stage, "W"),
        ]
    )
    return limited(order, [range(micro_batches)])

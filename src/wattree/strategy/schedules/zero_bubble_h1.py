"""ZB-H1: weight gradients fill the cool-down, in the memory of 1F1B (Qi et al., ICLR 2024).

Every stage keeps as many micro-batches as the first stage of 1F1B does. A later stage, which
needs fewer for its pairs, lets that many more weight gradients wait for the end.
"""

from __future__ import annotations

from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot


def zero_bubble_h1(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return a warm-up, pairs, triples with the weight gradient, and what is left of it."""
    del chunks
    most = max(micro_batches, stages)
    order = in_phases(
        [
            (stages - stage, "F0"),
            (stage, "I0 F0"),
            (most - stages, "I0 W F0"),
            (stages - stage, "I0 W"),
            (stage, "W"),
        ]
    )
    return limited(order, [range(micro_batches)])

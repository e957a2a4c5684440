"""ZB-H2: a filled warm-up, with nearly twice 1F1B's memory (Qi et al., ICLR 2024).

Each stage is busy from its first forward to its last weight gradient; stage `s` starts and ends
`s` forwards late. That a step then takes no longer than the work of one stage presumes that a
stage updates its weights, and begins the next step, without waiting for the others.
"""

from __future__ import annotations

from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot


def zero_bubble_h2(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return forwards until the first gradient comes back, pairs, triples, weight gradients.

    The paper has at least `2 p - 1` micro-batches. With fewer, a weight gradient takes the place
    of each forward that is missing from the pairs: left out, it would leave the stage idle there
    and be done at the end all the same.
    """
    del chunks
    ahead = min(2 * (stages - stage) - 1, micro_batches)
    pairs = min(2 * stage, micro_batches - ahead)
    triples = max(micro_batches - (2 * stages - 1), 0)
    order = in_phases(
        [
            (ahead, "F0"),
            (pairs, "I0 F0"),
            (triples, "I0 W F0"),
            (micro_batches - pairs - triples, "I0 W"),
            (pairs, "W"),
        ]
    )
    return limited(order, [range(micro_batches)])

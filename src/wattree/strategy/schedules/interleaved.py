"""Interleaved 1F1B: several chunks per stage shrink the bubble (Narayanan et al., SC 2021, §2.2).

Micro-batches advance in rounds of `stages`: a stage runs a round through its first chunk, then
through its next one, so that the first chunk's outputs come back in time. Where `micro_batches`
is no multiple of `stages`, rounds are longer, never shorter: outputs of a short round would come
back after their stage is due to use them, and stages would wait for each other for ever.
"""

from __future__ import annotations

from itertools import pairwise

from wattree.strategy.schedules.slot import Slot, SlotWork


def interleaved(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return the stage's forwards and backwards, alternating after the warm-up."""
    rounds = _rounds(stages, micro_batches)
    forward = [
        Slot(c, m, SlotWork.FORWARD) for batch in rounds for c in range(chunks) for m in batch
    ]
    backward = [
        Slot(c, m, SlotWork.BACKWARD)
        for batch in rounds
        for c in range(chunks - 1, -1, -1)
        for m in batch
    ]
    total = chunks * micro_batches
    # Until the first micro-batch has reached the last chunk of the last stage and come back.
    warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * len(rounds[0]), total)
    order = forward[:warm_up]
    for index in range(total - warm_up):
        order += [forward[warm_up + index], backward[index]]
    order += backward[total - warm_up :]
    return tuple(order)


def _rounds(stages: int, micro_batches: int) -> list[range]:
    """Return the micro-batches of each round, `stages` or more, the longer rounds first.

    Longer ones last would ask for a backward whose forward is yet to come.
    """
    count = max(micro_batches // stages, 1)
    base, longer = divmod(micro_batches, count)
    ends = [index * base + min(index, longer) for index in range(count + 1)]
    return [range(start, end) for start, end in pairwise(ends)]

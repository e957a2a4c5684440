"""Interleaved 1F1B: several chunks per stage shrink the bubble (Narayanan et al., SC 2021, §2.2).

Micro-batches advance in rounds of `stages`: a stage runs a round through its first chunk, then
through its next one, so that the first chunk's outputs come back in time. The last round may be
shorter when `micro_batches` is no multiple of `stages`.
"""

from __future__ import annotations

from wattree.strategy.schedules.slot import Slot

__all__ = ["interleaved"]


def interleaved(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return the stage's forwards and backwards, one of each in turn after the warm-up."""
    forward = _rounds(stages, range(chunks), micro_batches, backward=False)
    backward = _rounds(stages, range(chunks - 1, -1, -1), micro_batches, backward=True)
    total = chunks * micro_batches
    warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    if micro_batches <= stages:
        warm_up = total  # too few micro-batches for a steady state: as GPipe
    order = list(forward[:warm_up])
    for index in range(total - warm_up):
        order += [forward[warm_up + index], backward[index]]
    order += backward[total - warm_up :]
    return tuple(order)


def _rounds(stages: int, chunks: range, micro_batches: int, *, backward: bool) -> list[Slot]:
    order = []
    for first in range(0, micro_batches, stages):
        batch = range(first, min(first + stages, micro_batches))
        order += [Slot(chunk, m, backward) for chunk in chunks for m in batch]
    return order

"""Breadth-first: every micro-batch through a chunk before the next one (Lamy-Poirier, MLSys 2023).

The order of GPipe over looped chunks. All micro-batches through one chunk in a row leave a stage
time to fetch its next chunk and to send the gradients of its last one, at the price of keeping
every activation. The bubble is that of GPipe divided by the chunks of a stage, as long as there
are as many micro-batches as stages.
"""

from __future__ import annotations

from wattree.strategy.schedules.gpipe import gpipe
from wattree.strategy.schedules.slot import Slot


def breadth_first(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return all micro-batches through each chunk in turn, then backward the other way round."""
    return gpipe(stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches)

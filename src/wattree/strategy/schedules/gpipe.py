"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019)."""

from __future__ import annotations

from wattree.strategy.schedules.slot import Slot, SlotWork


def gpipe(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return every forward by chunk and micro-batch, then every backward in reverse chunk order."""
    del stage, stages
    every = range(micro_batches)
    forward = [Slot(c, m, SlotWork.FORWARD) for c in range(chunks) for m in every]
    backward = [Slot(c, m, SlotWork.BACKWARD) for c in reversed(range(chunks)) for m in every]
    return (*forward, *backward)

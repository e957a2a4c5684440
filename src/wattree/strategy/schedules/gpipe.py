"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019)."""

from __future__ import annotations

from wattree.strategy.schedules.slot import Slot

__all__ = ["gpipe"]


def gpipe(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return every forward by chunk and micro-batch, then every backward in reverse chunk order."""
    del stage, stages
    forward = [Slot(c, m, False) for c in range(chunks) for m in range(micro_batches)]
    backward = [Slot(c, m, True) for c in reversed(range(chunks)) for m in range(micro_batches)]
    return (*forward, *backward)

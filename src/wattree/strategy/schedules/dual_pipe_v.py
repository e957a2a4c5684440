"""DualPipeV: DualPipe cut in half and folded, so that parameters are stored once.

Described in the public DualPipe repository (deepseek-ai/DualPipe), after the "cut-in-half" of
Sea AI Lab (2025): a stage of the V plays the part of a stage of DualPipe and of its mirror.
"""

from __future__ import annotations

from wattree.strategy.schedules.dual_pipe import two_sided_phases
from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot


def dual_pipe_v(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return a stage's slots on its chunk of the descending and of the ascending half."""
    del chunks
    each = max(micro_batches, 2 * stages)
    order = in_phases(two_sided_phases(stage, depth=stages, each=each, near=0, far=1))
    return limited(order, [range(micro_batches)] * 2)

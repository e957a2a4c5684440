"""Properties of a pipeline schedule besides its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wattree.strategy.schedules.placement import ChunkPlacement
from wattree.strategy.schedules.slot import Slot

#: What one stage does, in order.
Order = tuple[Slot, ...]


class StageOrder(Protocol):
    """A function that returns the order of one stage."""

    def __call__(self, *, stage: int, stages: int, chunks: int, micro_batches: int) -> Order:
        """Return the slots of `stage` of `stages` for `micro_batches` on its `chunks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A schedule by its rules.

    Attributes:
        order: What a stage does.
        placement: Function of (stages, chunks) that lays chunks on stages.
        chunks: Chunks on each stage; None where the user chooses.
        splits_backward: Whether input and weight gradients are pieces of their own.
        even_stages: Whether stages come in pairs.
        turns: Function of (stages, micro_batches): of how many micro-batches turns are that stages
            repeat, whatever their number, shortest first. Where weight gradients are put off, who
            waits for whom may differ from turn to turn, or hang on how times are rounded.
    """

    order: StageOrder
    placement: Callable[[int, int], ChunkPlacement]
    chunks: int | None = 1
    splits_backward: bool = False
    even_stages: bool = False
    turns: Callable[[int, int], tuple[int, ...]] = lambda _stages, _micro_batches: ()

"""Schedules by name, and the check that an order is legal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wattree.errors import UnknownNameError
from wattree.strategy.schedules.gpipe import gpipe
from wattree.strategy.schedules.interleaved import interleaved
from wattree.strategy.schedules.one_forward_one_backward import one_forward_one_backward
from wattree.strategy.schedules.slot import Slot

__all__ = ["SCHEDULE_ORDERS", "check_order", "stage_order"]

Order = Callable[..., tuple[Slot, ...]]

#: Name → function of (stage, stages, chunks, micro_batches).
SCHEDULE_ORDERS: Mapping[str, Order] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}


def stage_order(
    name: str, *, stage: int, stages: int, chunks: int, micro_batches: int
) -> tuple[Slot, ...]:
    """Return what `stage` does, in order.

    Raises:
        UnknownNameError: There is no such schedule.
    """
    if name not in SCHEDULE_ORDERS:
        raise UnknownNameError(kind="pipeline schedule", name=name, known=SCHEDULE_ORDERS)
    return SCHEDULE_ORDERS[name](
        stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches
    )


def check_order(order: tuple[Slot, ...], *, chunks: int, micro_batches: int) -> list[str]:
    """Return what is wrong with `order`: every task once, forward before its backward."""
    problems = []
    seen: set[Slot] = set()
    for slot in order:
        if slot in seen:
            problems.append(f"{slot} comes twice")
        seen.add(slot)
        forward = Slot(chunk=slot.chunk, micro_batch=slot.micro_batch, backward=False)
        if slot.backward and forward not in seen:
            problems.append(f"{slot} comes before its forward")
    missing = 2 * chunks * micro_batches - len(seen)
    if missing:
        problems.append(f"{missing} task(s) are missing")
    return problems

"""Orders with fewer of the turns that a long schedule repeats, micro-batch after micro-batch.

In the middle of a step each stage does the same again and again, only for later micro-batches. So
turns can be left out there, and what is left is the order of a shorter step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattree.strategy.schedules.schedule import Order
from wattree.strategy.schedules.slot import Slot, SlotWork

#: Turns that are kept besides those in which a pipeline fills and drains.
_SPARE = 3
_WORKS = {work: number for number, work in enumerate(SlotWork)}


class Shortened(NamedTuple):
    """Orders of all stages without some of their turns.

    Attributes:
        orders: What is left.
        turn: Micro-batches of one turn.
        times: Turns that were left out, of each stage.
        length: Slots of one turn.
        middle: Where in each order a turn begins that another like it follows.
    """

    orders: tuple[Order, ...]
    turn: int
    times: int
    length: int
    middle: tuple[int, ...]


@lru_cache(maxsize=128)  # a search asks for few shapes again and again, as it does for orders
def shortened(orders: tuple[Order, ...], micro_batches: int, turn: int) -> Shortened | None:
    """Return shorter orders; None where too little is repeated to be worth it.

    Nor where weight gradients are put off: who waits for whom then differs from turn to turn, or
    hangs on how times are rounded.

    Args:
        orders: Of all stages.
        micro_batches: Of the step.
        turn: Micro-batches of a turn.
    """
    kept = 2 * len(orders) + turn + _SPARE
    times = (micro_batches - kept) // turn
    length, rest = divmod(len(orders[0]) * turn, micro_batches)
    if rest or 2 * kept > micro_batches or any(len(order) != len(orders[0]) for order in orders):
        return None
    if any(slot.work is SlotWork.WEIGHT_GRADIENT for slot in orders[0]):
        return None
    runs = [_repeated(order, length, turn) for order in orders]
    if min(end - begin for begin, end in runs) < times * length:
        return None
    return Shortened(
        orders=tuple(
            _without(order, begin, times * length, times * turn)
            for order, (begin, _) in zip(orders, runs, strict=True)
        ),
        turn=turn,
        times=times,
        length=length,
        middle=tuple((begin + end - times * length) // 2 for begin, end in runs),
    )


def _repeated(order: Order, length: int, turn: int) -> tuple[int, int]:
    """Return the longest run of slots that come again `length` later, for later micro-batches."""
    kinds = [2 * (slot.chunk * len(_WORKS) + _WORKS[slot.work]) + slot.overlaps for slot in order]
    kind, number = np.array(kinds), np.array([slot.micro_batch for slot in order])
    again = (kind[length:] == kind[:-length]) & (number[length:] == number[:-length] + turn)
    return longest_run(again)


def longest_run(holds: Sequence[bool] | np.ndarray) -> tuple[int, int]:
    """Return the longest run of places at which something holds: its begin and its end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    longest = int(np.argmax(edges[1::2] - edges[::2]))
    return int(edges[2 * longest]), int(edges[2 * longest + 1])


def _without(order: Order, begin: int, slots: int, micro_batches: int) -> Order:
    """Return an order without some of its slots, and their micro-batches."""
    later = [
        Slot(slot.chunk, slot.micro_batch - micro_batches, slot.work, slot.overlaps)
        for slot in order[begin + slots :]
    ]
    return (*order[:begin], *later)

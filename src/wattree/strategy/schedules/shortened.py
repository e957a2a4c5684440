"""Orders of a step with fewer micro-batches, in which stages repeat what they do in a long one.

In the middle of a step each stage does the same again and again, turn after turn, only for later
micro-batches. With fewer of them, turns are left out there, and all else is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags
from wattree.strategy.schedules.orders import pipeline_schedule, stage_orders
from wattree.strategy.schedules.schedule import Order
from wattree.strategy.schedules.slot import SlotWork

#: Turns that are kept besides those in which a pipeline fills and drains.
_SPARE = 2
_WORKS = {work: number for number, work in enumerate(SlotWork)}


class Shortened(NamedTuple):
    """Orders of all stages without some of their turns.

    Attributes:
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


@lru_cache(maxsize=64)  # as many as `stage_orders` keeps
def shortened(
    name: str, *, stages: int, chunks: int, micro_batches: int, after: int = 0
) -> Shortened | None:
    """Return shorter orders; None where too little is repeated to be worth it.

    Args:
        stages, chunks, micro_batches: As for `stage_orders`.
        after: Turns are of more micro-batches than this.
    """
    turns = pipeline_schedule(name).turns(stages, micro_batches)
    kept = {turn: 2 * stages + turn + _SPARE for turn in turns if turn > after}
    worth = [turn for turn, left in kept.items() if 2 * left <= micro_batches]
    if not worth:
        return None
    # What repeats in short turns repeats in long ones too; try both where that costs little.
    turn = worth[0] if 2 * sum(kept.values()) <= micro_batches else worth[-1]
    times = (micro_batches - kept[turn]) // turn
    left = micro_batches - times * turn
    orders = stage_orders(name, stages=stages, chunks=chunks, micro_batches=left)
    length = len(orders[0]) // left * turn
    runs = [_repeated(order, length, turn) for order in orders]
    middle = tuple((begin + end) // 2 for begin, end in runs)
    return Shortened(orders=orders, turn=turn, times=times, length=length, middle=middle)


def _repeated(order: Order, length: int, turn: int) -> tuple[int, int]:
    """Return the longest run of slots that come again `length` later, for later micro-batches."""
    kind = np.array([slot.chunk * len(_WORKS) + _WORKS[slot.work] for slot in order])
    number = np.array([slot.micro_batch for slot in order])
    again = (kind[length:] == kind[:-length]) & (number[length:] == number[:-length] + turn)
    return longest_run(again)


def longest_run(holds: Sequence[bool] | Flags) -> tuple[int, int]:
    """Return the longest run of places at which something holds: its begin and its end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    longest = int(np.argmax(edges[1::2] - edges[::2]))
    return int(edges[2 * longest]), int(edges[2 * longest + 1])

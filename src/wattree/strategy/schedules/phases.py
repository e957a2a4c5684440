"""Orders as phases: repeated patterns of slots, one after the other.

A pattern such as `"F0 I1 W1"` names pieces of work and the chunk each is done on. Every chunk
takes its micro-batches in order, each kind of work at its own pace; `W` is the weight gradient
that has waited longest. `F0&B1` are two pieces side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wattree.strategy.schedules.slot import Slot, SlotWork


def in_phases(phases: Sequence[tuple[int, str]]) -> list[Slot]:
    """Return the slots of `phases`, each a pattern and its number of repetitions."""
    done: dict[tuple[SlotWork, int], int] = {}
    waiting: deque[tuple[int, int]] = deque()  # (chunk, micro-batch) of weight gradients
    order = []
    for times, pattern in phases:
        for piece in pattern.replace("&", " &").split() * times:
            overlaps = piece.startswith("&")
            work, number = SlotWork(piece[overlaps]), piece[overlaps + 1 :]
            if work is SlotWork.WEIGHT_GRADIENT:
                order.append(Slot(*waiting.popleft(), work))
                continue
            chunk = int(number)
            # A backward in one piece and an input gradient take micro-batches from one row.
            row = (SlotWork.FORWARD if work is SlotWork.FORWARD else SlotWork.BACKWARD), chunk
            micro_batch = done.get(row, 0)
            done[row] = micro_batch + 1
            order.append(Slot(chunk, micro_batch, work, overlaps))
            if work is SlotWork.INPUT_GRADIENT:
                waiting.append((chunk, micro_batch))
    return order


def limited(order: Sequence[Slot], micro_batches: Sequence[range]) -> tuple[Slot, ...]:
    """Return `order` restricted to this many micro-batches per chunk, numbers unchanged.

    An order that comes to its end still does when a micro-batch is taken out of every stage.

    Args:
        order: Micro-batches of each chunk counted from 0.
        micro_batches: Numbers of those that each chunk has.
    """
    kept: list[Slot] = []
    partner = False  # whether the slot before is there to run alongside
    for slot in order:
        numbers = micro_batches[slot.chunk]
        if slot.micro_batch >= len(numbers):
            partner = False
            continue
        overlaps = slot.overlaps and partner
        kept.append(Slot(slot.chunk, numbers[slot.micro_batch], slot.work, overlaps))
        partner = True
    return tuple(kept)

"""The task tables of a chunk, and the table of each slot of a stage's order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from wattree.compiler.tasks.chunk import BlockParts, ChunkContext
from wattree.compiler.tasks.micro_batch import (
    chunk_backward,
    chunk_forward,
    chunk_input_gradient,
    chunk_weight_gradient,
)
from wattree.compiler.tasks.table import TaskTable
from wattree.strategy.schedules import Order, Slot, SlotWork


class ChunkTables:
    """Task tables of one chunk, by the needs of the micro-batch.

    Those that every step needs are made at once, the others when a slot first asks for them.
    """

    def __init__(
        self,
        blocks: Sequence[BlockParts],
        context: ChunkContext,
        *,
        split: bool = False,
        is_one_of_several: bool = False,
    ) -> None:
        self._blocks, self._context = blocks, context
        self._is_one_of_several = is_one_of_several
        self._made: dict[tuple[object, ...], TaskTable] = {}
        self._updates_arrive = context.moves.overlap.parameters and any(
            group.update_axes for block in blocks for group in block.storage.sync
        )
        self._takes_gradients = any(context.moves.passing_gradients(b.storage) > 0 for b in blocks)
        works = [SlotWork.FORWARD, SlotWork.BACKWARD]
        works += [SlotWork.INPUT_GRADIENT, SlotWork.WEIGHT_GRADIENT] if split else []
        for work in works:
            for turn in (True, False):
                self.of(work, Turn(first=turn and work is SlotWork.FORWARD, last=turn))

    def of(self, work: SlotWork, turn: Turn) -> TaskTable:
        """Return the table for a piece of work on a micro-batch."""
        if work is SlotWork.FORWARD:
            turn = turn._replace(first=turn.first and self._updates_arrive, last=False)
        elif work is SlotWork.INPUT_GRADIENT:
            turn = turn._replace(first=False, last=False)
        elif not self._takes_gradients:
            turn = turn._replace(first=False)
        key = work, turn
        if key not in self._made:
            self._made[key] = self._make(work, turn)
        return self._made[key]

    def _make(self, work: SlotWork, turn: Turn) -> TaskTable:
        blocks, context = self._blocks, self._context
        if work is SlotWork.FORWARD:
            return chunk_forward(
                blocks,
                context,
                first_micro_batch=turn.first,
                gathered=turn.gathered,
                is_one_of_several=self._is_one_of_several,
            )
        if work is SlotWork.INPUT_GRADIENT:
            return chunk_input_gradient(blocks, context, gathered=turn.gathered)
        if work is SlotWork.WEIGHT_GRADIENT:
            return chunk_weight_gradient(
                blocks, context, last_micro_batch=turn.last, first_micro_batch=turn.first
            )
        return chunk_backward(
            blocks,
            context,
            last_micro_batch=turn.last,
            first_micro_batch=turn.first,
            gathered=turn.gathered,
        )


class Turn(NamedTuple):
    """Special properties of a micro-batch in a chunk.

    Attributes:
        first: The first one that the chunk sees in this direction.
        gathered: Its parameters are there, kept since an earlier forward.
    """

    first: bool
    last: bool
    gathered: bool = False


@lru_cache(maxsize=256)  # strategies of a job share the orders of their schedules
def kinds_of(
    order: Order, *, keeps_gathered: bool
) -> tuple[tuple[tuple[Slot, Turn], ...], tuple[int, ...]]:
    """Return a slot of each kind with its special properties, and the kind of every slot.

    Slots of a kind have the same chunk, work and turn, so they take the same table.
    """
    kinds: dict[tuple[object, ...], int] = {}
    first: list[tuple[Slot, Turn]] = []
    kind_of = []
    for slot, turn in zip(order, _turns(order, keeps_gathered=keeps_gathered), strict=True):
        number = kinds.setdefault((slot.chunk, slot.work, turn), len(kinds))
        if number == len(first):
            first.append((slot, turn))
        kind_of.append(number)
    return tuple(first), tuple(kind_of)


def _turns(order: Order, *, keeps_gathered: bool) -> list[Turn]:
    """Return the special properties of each slot.

    Gradients begin with the first backward of a chunk, or the first piece of one that makes
    weight gradients, and are whole after the last. Parameters that are kept after a forward are
    there until the next backward drops them.
    """
    last = {slot.chunk: slot for slot in order if slot.ends}
    seen: set[tuple[int, SlotWork]] = set()
    there: set[int] = set()
    turns = []
    for slot in order:
        chunk, key = slot.chunk, (slot.chunk, slot.work)
        turns.append(
            Turn(
                first=key not in seen,
                last=last.get(chunk) == slot,
                gathered=chunk in there and slot.work is not SlotWork.WEIGHT_GRADIENT,
            )
        )
        seen.add(key)
        if slot.ends:
            seen |= {(chunk, SlotWork.BACKWARD), (chunk, SlotWork.WEIGHT_GRADIENT)}
        if keeps_gathered and slot.work is SlotWork.FORWARD:
            there.add(chunk)
        elif slot.work is not SlotWork.WEIGHT_GRADIENT:
            there.discard(chunk)
    return turns

"""Live tensors of stages whose schedule defers weight gradients, counted along its orders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.block_memory import SplitMemory
from wattree.closed_form.pipeline import StageContents
from wattree.distinct import distinct
from wattree.strategy.schedules import Order, SlotWork, stage_orders

#: Micro-batches after forward and between the two pieces of backward, and whether gradients have
#: come, by chunk; work, None for a forward that takes turns with a backward in the other chunk;
#: chunk.
_State = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], SlotWork | None, int]


def split_live_bytes(
    contents: StageContents,
    memory: Sequence[SplitMemory],
    *,
    saved_bytes: Floats,
    boundary_bytes: Floats,
    micro_batches: Integers,
    block: Integers,
    passing: Floats,
    storage: Integers,
    interleaved: Flags,
) -> Floats:
    """Return the peak of activations and passing gradients of each stage, `(kinds, n)`. [B]

    Twice as many micro-batches as stages and two more hold as much as any larger number does.

    Args:
        memory: Of each program, by piece of its work.
        saved_bytes: What each program keeps, `(programs, distinct)`. [B]
        boundary_bytes: What programs hand on, `(tensors, distinct)`. [B]
        micro_batches: Of each strategy, `(n,)`.
        block: Its column among the distinct ones, `(n,)`.
        passing: Gradients of each program that come and go in a step, `(programs, distinct)`. [B]
        storage: The column of those, `(n,)`.
        interleaved: Whether the two halves of a pair take turns, `(n,)`.
    """
    alike = np.stack([np.minimum(micro_batches, 2 * contents.stages + 2), interleaved])
    live = np.zeros((len(contents.first), len(block)))
    for count, turns in distinct(alike, axis=1).T.tolist():
        mine = np.flatnonzero((alike == [[count], [turns]]).all(axis=0))
        pairs = np.stack([block[mine], storage[mine]])
        (columns, stored), which = np.unique(pairs, axis=1, return_inverse=True)
        for kind in range(len(contents.first)):
            chunks = [
                _Chunk(
                    programs,
                    copies @ boundary_bytes[:, columns],
                    memory,
                    saved_bytes[:, columns],
                    columns,
                    passing=passing[:, stored],
                )
                for programs, copies in zip(
                    contents.programs[kind],
                    contents.boundary_copies[PARTS[contents.virtual], kind],
                    strict=True,
                )
            ]
            states = _states(
                contents.schedule,
                contents.stages,
                contents.virtual,
                count,
                tuple(np.flatnonzero(contents.kind_of_stage == kind).tolist()),
                interleaved=bool(turns),
            )
            most = np.max([_bytes(state, chunks) for state in states], axis=0)
            live[kind, mine] = most[which]
    return live


#: Chunks of a stage → which parts of `StageContents` they are: its first, its last.
PARTS = {1: [2], 2: [0, 2]}


class _Chunk:
    """The memory of one micro-batch in a chunk, by its current piece of work. [B]"""

    def __init__(
        self,
        programs: Sequence[int],
        boundary_copies: Floats,
        memory: Sequence[SplitMemory],
        saved_bytes: Floats,
        columns: Integers,
        *,
        passing: Floats,
    ) -> None:
        waits = [m.waiting[columns] for m in memory]
        self.saved_bytes = sum((saved_bytes[number] for number in programs), boundary_copies)
        self.waiting = sum((waits[number] for number in programs), 0.0 * boundary_copies)
        self.passing = sum((passing[number] for number in programs), 0.0 * boundary_copies)
        #: By work, before each block: what is there, what it needs, and gradients that came.
        self.blocks: dict[SlotWork, list[tuple[Floats, Floats, Floats]]] = {}
        #: The most by work, and the same with gradients that come with it.
        self.most: dict[SlotWork, Floats] = {}
        self.growing: dict[SlotWork, Floats] = {}
        starts = {
            SlotWork.FORWARD: 0.0 * boundary_copies,
            SlotWork.BACKWARD: self.saved_bytes,
            SlotWork.INPUT_GRADIENT: self.saved_bytes,
            SlotWork.WEIGHT_GRADIENT: self.waiting,
        }
        for work, start in starts.items():
            level, most, grown, growing = start, start, start, start
            blocks = self.blocks[work] = []
            for number in programs if work is SlotWork.FORWARD else reversed(programs):
                own, now = memory[number], saved_bytes[number]
                kept = now + own.cached[columns]  # what is cached goes at the end of the chunk
                needs, becomes = {
                    SlotWork.FORWARD: (kept + own.forward[columns], kept),
                    SlotWork.BACKWARD: (own.backward[columns], -now),
                    SlotWork.INPUT_GRADIENT: (own.inputs[columns], waits[number] - now),
                    SlotWork.WEIGHT_GRADIENT: (own.weights[columns], -waits[number]),
                }[work]
                blocks.append((level, needs, grown - level))
                most = np.maximum(most, level + needs)
                growing = np.maximum(growing, grown + needs)
                level = level + becomes
                grown = grown + becomes + passing[number]
            self.most[work], self.growing[work] = most, np.maximum(growing, grown)


def _bytes(state: _State, chunks: Sequence[_Chunk]) -> Floats:
    """Return the peak memory while a stage works. [B]"""
    saved_bytes, waiting, begun, work, at = state
    if work is None:
        total = _pair_bytes(chunks[at], chunks[1 - at], grows=not begun[1 - at])
    elif not begun[at] and work in {SlotWork.BACKWARD, SlotWork.WEIGHT_GRADIENT}:
        total = chunks[at].growing[work]
    else:
        total = chunks[at].most[work]
    for chunk, whole, half, there in zip(chunks, saved_bytes, waiting, begun, strict=True):
        total = total + whole * chunk.saved_bytes + half * chunk.waiting + there * chunk.passing
    return total


def _pair_bytes(ahead: _Chunk, behind: _Chunk, *, grows: bool) -> Floats:
    """Return the most of a forward and a backward that take turns, block by block. [B]

    Either is as far as the other, as a share of its blocks.
    """
    forward, backward = ahead.blocks[SlotWork.FORWARD], behind.blocks[SlotWork.BACKWARD]
    most = behind.saved_bytes
    for step in range(steps := len(forward) * len(backward)):
        here, needs, _ = forward[step * len(forward) // steps]
        there, other_needs, grown = backward[step * len(backward) // steps]
        most = np.maximum(most, here + needs + there + other_needs + grows * grown)
    return most


@lru_cache(maxsize=1024)
def _states(
    schedule: str,
    stages: int,
    chunks: int,
    micro_batches: int,
    chosen: tuple[int, ...],
    *,
    interleaved: bool,
) -> frozenset[_State]:
    """Return what is held in addition to each slot of the chosen stages, each once."""
    count = {"stages": stages, "chunks": chunks, "micro_batches": micro_batches}
    orders = stage_orders(schedule, **count)
    return frozenset().union(
        *(_states_of(orders[stage], chunks, pairs=interleaved) for stage in chosen)
    )


def _states_of(order: Order, chunks: int, *, pairs: bool) -> set[_State]:
    """Return the memory held in addition to each slot of an order, each once."""
    saved_bytes, waiting, begun = [0] * chunks, [0] * chunks, [False] * chunks
    found: set[_State] = set()
    for slot, following in pairwise([*order, None]):
        assert slot is not None
        at, work = slot.chunk, slot.work
        if pairs and following is not None and following.overlaps:
            others = tuple(n - (c == following.chunk) for c, n in enumerate(saved_bytes))
            found.add((others, tuple(waiting), tuple(begun), None, at))
        if work in {SlotWork.BACKWARD, SlotWork.INPUT_GRADIENT}:
            saved_bytes[at] -= 1
        elif work is SlotWork.WEIGHT_GRADIENT:
            waiting[at] -= 1
        if not (pairs and (slot.overlaps or (following is not None and following.overlaps))):
            found.add((tuple(saved_bytes), tuple(waiting), tuple(begun), work, at))
        begun[at] = begun[at] or work in {SlotWork.BACKWARD, SlotWork.WEIGHT_GRADIENT}
        if work is SlotWork.FORWARD:
            saved_bytes[at] += 1
        elif work is SlotWork.INPUT_GRADIENT:
            waiting[at] += 1
    return found

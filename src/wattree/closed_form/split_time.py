"""The time of schedules that defer weight gradients, from the end of each slot of their orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.pipeline import StageContents
from wattree.closed_form.slowdown import OverlapSlowdown
from wattree.distinct import distinct
from wattree.strategy.schedules import (
    PIPELINE_SCHEDULES,
    ChunkPlacement,
    Order,
    Place,
    Slot,
    SlotWork,
    stage_orders,
)
from wattree.strategy.schedules.placement import Hop

#: Rows of durations: each kind of slot, and a forward with the backward that it overlaps.
_WORKS = tuple(SlotWork)
_PAIR = len(_WORKS)
#: Strategies whose slots are evaluated at once: their ends are some megabytes.
_AT_ONCE = 256


class SlotTimes(NamedTuple):
    """Times of slots, `(chunks, kinds, n)` each, with those of transfers, `(n,)`. [s]

    Attributes:
        forward, backward, weight: Of a micro-batch in a chunk; of backward what can be deferred.
        pair: Of a forward in a chunk with a backward in the other.
        interleaved: Whether the two halves of a pair take turns, or run one after the other.
        transfer: From one stage to the next.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    pair: Floats
    interleaved: Flags
    transfer: Floats

    def of(self, rows: Integers) -> SlotTimes:
        """Return the times of some of the strategies."""
        return SlotTimes(
            forward=self.forward[..., rows],
            backward=self.backward[..., rows],
            weight=self.weight[..., rows],
            pair=self.pair[..., rows],
            interleaved=self.interleaved[rows],
            transfer=self.transfer[rows],
        )


def pair_s(
    passes: tuple[Floats, Floats], gaps: tuple[Floats, Floats], slowdown: OverlapSlowdown
) -> Floats:
    """Return the time of a forward in each chunk with a backward in the other. [s]

    With the computation `c` and gaps `g` of a forward and of a backward, in which it waits for
    traffic, a pair takes `f + b` less what its two halves hide of each other's gaps: `g_f` behind
    `c_b`, and of the gaps of backward as much as has a counterpart in forward, `min(g_f, g_b)`,
    behind `c_f`, since the halves take turns from gap to gap.

    Args:
        passes: Forward and backward of a micro-batch in each chunk. [s]
        gaps: The part of either that no computation fills. [s]
    """
    forward, gap = passes[0], gaps[0]
    other, other_gap = passes[1][::-1], gaps[1][::-1]
    hidden = slowdown.hidden_s(gap, other - other_gap)
    hidden = hidden + slowdown.hidden_s(np.minimum(gap, other_gap), forward - gap)
    least = np.maximum(forward, other)
    return np.maximum(forward + other - slowdown.saved_s(hidden), least)


def split_time_s(
    contents: StageContents, times: SlotTimes, micro_batches: Integers, *, blocking: bool
) -> Floats:
    """Return the time of all micro-batches through a pipeline, `(n,)`. [s]

    With `d` the duration of a slot and `x` that of a transfer, a slot ends at

        `end = max(end of the stage's slot before, end of the slot whose result it needs + x) + d`.

    In the middle of a step stages repeat what they do, so more micro-batches than some three times
    the stages add what the last of them added.

    Args:
        micro_batches: Of each strategy, `(n,)`.
        blocking: The next slot of a stage waits for the transfer of the one before.
    """
    # Of two directions, both keep their number, odd or even.
    fewer = contents.stages + 2 + contents.stages % 2
    most = 2 * fewer + contents.stages
    enough = np.where(micro_batches > most, most - (micro_batches - most) % 2, micro_batches)
    found = _ends_s(contents, times, enough, blocking=blocking)
    if len(more := np.flatnonzero(micro_batches > most)):
        before = _ends_s(contents, times.of(more), enough[more] - fewer, blocking=blocking)
        found[more] += (micro_batches - enough)[more] / fewer * (found[more] - before)
    return found


def _ends_s(
    contents: StageContents, times: SlotTimes, micro_batches: Integers, *, blocking: bool
) -> Floats:
    """Return when the last slot of all micro-batches ends, `(n,)`. [s]"""
    durations, found = _durations(contents, times), np.zeros(len(micro_batches))
    alike = np.stack([micro_batches, times.interleaved])
    for count, interleaved in distinct(alike, axis=1).T.tolist():
        mine = np.flatnonzero((alike == [[count], [interleaved]]).all(axis=0))
        levels = _levels(
            contents.schedule,
            contents.stages,
            contents.virtual,
            count,
            interleaved=bool(interleaved),
            blocking=blocking,
        )
        for begin in range(0, len(mine), _AT_ONCE):
            rows = mine[begin : begin + _AT_ONCE]
            found[rows] = _last_end_s(levels, durations[..., rows], times.transfer[rows])
    return found


def _durations(contents: StageContents, times: SlotTimes) -> Floats:
    """Return the durations of slots, `(works, chunks, stages, n)`. [s]"""
    by_work = {
        SlotWork.FORWARD: times.forward,
        SlotWork.BACKWARD: times.backward,
        SlotWork.INPUT_GRADIENT: times.backward - times.weight,
        SlotWork.WEIGHT_GRADIENT: times.weight,
    }
    durations = np.stack([*(by_work[work] for work in _WORKS), times.pair])
    return durations[:, :, contents.kind_of_stage]


class _Level(NamedTuple):
    """Slots that wait for none of each other.

    Attributes:
        begin, end: Their places among all slots; place 0 is the begin of the step.
        after: Places of what each waits for, `(k,)` each: in its stage, then elsewhere. Places of
            transfers come after those of all slots.
        at: Their durations: work, chunk and stage, `(k,)` each.
    """

    begin: int
    end: int
    after: tuple[Integers, ...]
    at: tuple[Integers, ...]


def _last_end_s(levels: Sequence[_Level], durations: Floats, transfer: Floats) -> Floats:
    """Return when the last slot ends, `(n,)`. [s]"""
    count = levels[-1].end
    ends = np.zeros((2 * count, len(transfer)))  # of slots, and of their transfers
    for level in levels:
        start = ends[level.after[0]]
        for places in level.after[1:]:
            np.maximum(start, ends[places], out=start)
        start += durations[level.at]
        ends[level.begin : level.end] = start
        ends[count + level.begin : count + level.end] = start + transfer
    return np.asarray(ends[:count].max(axis=0))


class _Row(NamedTuple):
    """A slot, or a pair that takes turns, with what it waits for: rows, and if their transfers."""

    level: int
    work: int
    chunk: int
    stage: int
    after: tuple[tuple[int, bool], ...]


@lru_cache(maxsize=64)  # as many as `stage_orders` keeps
def _levels(
    name: str, stages: int, chunks: int, micro_batches: int, *, interleaved: bool, blocking: bool
) -> tuple[_Level, ...]:
    """Return the slots of a schedule by level.

    Args:
        interleaved: The halves of pairs take turns.
        blocking: As for `split_time_s`.
    """
    orders = stage_orders(name, stages=stages, chunks=chunks, micro_batches=micro_batches)
    rows = _rows(
        [_pieces(order, interleaved=interleaved) for order in orders],
        PIPELINE_SCHEDULES[name].placement(stages, chunks),
        blocking=blocking,
    )
    level = np.array([row.level for row in rows])
    order = np.argsort(level, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows))
    bounds = np.flatnonzero(np.diff(level[order], prepend=-1, append=level.max() + 1))
    width = max(len(row.after) for row in rows)
    after = np.zeros((width, len(rows)), dtype=np.int64)
    for number, row in enumerate(rows):
        for depth, (other, is_sent) in enumerate(row.after):
            after[depth, number] = place[other] + is_sent * len(rows)
    after, at = after[:, order], np.array([row[1:4] for row in rows]).T[:, order]
    return tuple(
        _Level(
            begin,
            end,
            tuple(
                each[begin:end]
                for depth, each in enumerate(after)
                if depth == 0 or each[begin:end].any()
            ),
            tuple(each[begin:end] for each in at),
        )
        for begin, end in pairwise(bounds[1:].tolist())
    )


def _pieces(order: Order, *, interleaved: bool) -> list[tuple[Slot, ...]]:
    """Return the slots of a stage, those of pairs together if their halves take turns."""
    found: list[tuple[Slot, ...]] = []
    for slot in order:
        if slot.overlaps and interleaved:
            found[-1] = (*found[-1], slot)
        else:
            found.append((slot,))
    return found


def _rows(
    pieces: Sequence[Sequence[tuple[Slot, ...]]], placement: ChunkPlacement, *, blocking: bool
) -> list[_Row]:
    """Return the pieces of all stages, each after those that it waits for."""
    rows = [_Row(0, 0, 0, 0, ())]  # the begin of the step
    made: dict[tuple[Place, int, bool], int] = {}
    at, last = [0] * len(pieces), [(0, False)] * len(pieces)
    while sum(at) < sum(len(own) for own in pieces):
        for stage, own in enumerate(pieces):
            while at[stage] < len(own):
                slots = own[at[stage]]
                hops = [_hop(slot, stage, placement.after, placement.before) for slot in slots]
                keys = [
                    (hop, (hop.place, slot.micro_batch, slot.backward))
                    for hop, slot in zip(hops, slots, strict=True)
                    if hop is not None
                ]
                if any(key not in made for _, key in keys):
                    break
                after = (last[stage], *((made[key], hop.heading != 0) for hop, key in keys))
                level = 1 + max(rows[row].level for row, _ in after)
                work = _PAIR if len(slots) > 1 else _WORKS.index(slots[0].work)
                number = len(rows)
                rows.append(_Row(level, work, slots[0].chunk, stage, after))
                sends = [_hop(s, stage, placement.before, placement.after) for s in slots]
                is_sent = blocking and any(hop is not None and hop.heading for hop in sends)
                last[stage] = number, is_sent
                for slot in slots:
                    if slot.hands_on:
                        made[Place(stage, slot.chunk), slot.micro_batch, slot.backward] = number
                at[stage] += 1
    return rows


def _hop(
    slot: Slot, stage: int, backward: Mapping[Place, Hop], forward: Mapping[Place, Hop]
) -> Hop | None:
    """Return the hop of a slot in one of two directions; None without one."""
    if not slot.hands_on:
        return None
    return (backward if slot.backward else forward).get(Place(stage, slot.chunk))

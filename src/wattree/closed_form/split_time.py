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
    """Times of slots, `(chunks, kinds, n)` each, with those of transfers. [s]

    Attributes:
        forward, backward, weight: Of a micro-batch in a chunk; of backward what can be deferred.
        begin: What a forward and a backward begin with while they wait for other stages, of these.
        pair: Of a forward in a chunk with a backward in the other.
        interleaved: Whether the two halves of a pair take turns, or run one after the other.
        transfer: From one stage to the next, `(borders, n)`.
        shared: Whether what a stage sends in both directions shares links, `(n,)`.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    begin: Floats
    pair: Floats
    interleaved: Flags
    transfer: Floats
    shared: Flags

    def of(self, rows: Integers) -> SlotTimes:
        """Return the times of some of the strategies."""
        return SlotTimes(
            forward=self.forward[..., rows],
            backward=self.backward[..., rows],
            weight=self.weight[..., rows],
            begin=self.begin[..., rows],
            pair=self.pair[..., rows],
            interleaved=self.interleaved[rows],
            transfer=self.transfer[:, rows],
            shared=self.shared[rows],
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

        `end = max(end of the stage's slot before, end of the transfer of what it needs) + d`,

    where gathers that it begins with do not wait for the transfer, and a transfer `x` after it can
    start: behind the one before it in its direction, or in either where they share links.
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
    durations, begins = _durations(contents, times), _begins(contents, times)
    if begins is not None:
        durations -= begins
    found = np.zeros(len(micro_batches))
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
        for at in range(0, len(mine), _AT_ONCE):
            rows = mine[at : at + _AT_ONCE]
            begin = None if begins is None else begins[..., rows]
            found[rows] = _last_end_s(levels, durations[..., rows], begin, times.of(rows))
    return found


def _begins(contents: StageContents, times: SlotTimes) -> Floats | None:
    """Return what slots begin with while they wait, as `_durations`; None for nothing. [s]"""
    if not times.begin.any():
        return None
    forward, backward = times.begin
    none = np.zeros_like(forward)
    by_work = {SlotWork.FORWARD: forward, SlotWork.WEIGHT_GRADIENT: none}
    begins = np.stack([*(by_work.get(work, backward) for work in _WORKS), none])
    return begins[:, :, contents.kind_of_stage]


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
            transfers come after those of all slots: the first of each slot, then the second.
        at: Their durations: work, chunk and stage, `(k,)` each.
        sends: Transfers, the first of slots and then the second, `(k,)` each: the slot, the
            transfer, those before it in its direction and in the other one, and its border.
    """

    begin: int
    end: int
    after: tuple[Integers, ...]
    at: tuple[Integers, ...]
    sends: tuple[Integers, ...]


def _last_end_s(
    levels: Sequence[_Level], durations: Floats, begins: Floats | None, times: SlotTimes
) -> Floats:
    """Return when the last slot ends, `(n,)`. [s]"""
    count, shared = levels[-1].end, times.shared.any()
    ends = np.zeros((3 * count, len(times.shared)))  # of slots, and of their transfers
    for level in levels:
        start = ends[level.after[0]]
        if begins is not None:
            start += begins[level.at]
        for places in level.after[1:]:
            np.maximum(start, ends[places], out=start)
        start += durations[level.at]
        ends[level.begin : level.end] = start
        for slots, places, before, others, borders in level.sends:
            ready = np.maximum(ends[slots], ends[before])
            if shared:
                np.maximum(ready, ends[others] * times.shared, out=ready)
            ends[places] = ready + times.transfer[borders]
    return np.asarray(ends[:count].max(axis=0))


#: The row of a slot, and which of its transfers, 0 for the slot itself.
_End = tuple[int, int]
#: The ends of the transfers before one in its direction and in the other one, and its border.
_Send = tuple[_End, _End, int]


class _Row(NamedTuple):
    """A slot, or a pair that takes turns.

    Attributes:
        after: What it waits for.
        sends: Its transfers.
    """

    level: int
    work: int
    chunk: int
    stage: int
    after: tuple[_End, ...]
    sends: tuple[_Send, ...]


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
        for depth, (other, which) in enumerate(row.after):
            after[depth, number] = place[other] + which * len(rows)
    after, at = after[:, order], np.array([row[1:4] for row in rows]).T[:, order]
    sends = _sends(rows, place, level.max() + 1)
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
            sends[number],
        )
        for number, (begin, end) in enumerate(pairwise(bounds[1:].tolist()), 1)
    )


def _sends(rows: Sequence[_Row], place: Integers, levels: int) -> list[tuple[Integers, ...]]:
    """Return the transfers of each level, as of `_Level`."""
    found: list[tuple[list[tuple[int, ...]], ...]] = [([], []) for _ in range(levels)]
    for number, row in enumerate(rows):
        for which, (before, other, border) in enumerate(row.sends):
            ends = (number, 0), (number, 1 + which), before, other
            places = (place[own] + kind * len(rows) for own, kind in ends)
            found[row.level][which].append((*places, border))
    return [tuple(np.array(each).T for each in both if each) for both in found]


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
    rows = [_Row(0, 0, 0, 0, (), ())]  # the begin of the step
    made: dict[tuple[Place, int, bool], _End] = {}
    sent: dict[tuple[int, int], _End] = {}  # the last one, by stage and direction
    at, last = [0] * len(pieces), [[(0, 0)] for _ in pieces]
    while sum(at) < sum(len(own) for own in pieces):
        for stage, own in enumerate(pieces):
            while at[stage] < len(own):
                slots, number = own[at[stage]], len(rows)
                hops = [_hop(slot, stage, placement.after, placement.before) for slot in slots]
                keys = [
                    (hop.place, slot.micro_batch, slot.backward)
                    for hop, slot in zip(hops, slots, strict=True)
                    if hop is not None
                ]
                if any(key not in made for key in keys):
                    break
                after = (*last[stage], *(made[key] for key in keys))
                level = 1 + max(rows[row].level for row, _ in after)
                work = _PAIR if len(slots) > 1 else _WORKS.index(slots[0].work)
                sends: list[_Send] = []
                for slot in slots:
                    end = number, 0
                    hop = _hop(slot, stage, placement.before, placement.after)
                    if hop is not None and (way := hop.heading):
                        before, other = (sent.get((stage, to), (0, 0)) for to in (way, -way))
                        sends.append((before, other, min(stage, stage + way)))
                        end = sent[stage, way] = number, len(sends)
                    if slot.hands_on:
                        made[Place(stage, slot.chunk), slot.micro_batch, slot.backward] = end
                rows.append(_Row(level, work, slots[0].chunk, stage, after, tuple(sends)))
                waited = range(1, len(sends) + 1) if blocking and sends else (0,)
                last[stage] = [(number, which) for which in waited]
                at[stage] += 1
    return rows


def _hop(
    slot: Slot, stage: int, backward: Mapping[Place, Hop], forward: Mapping[Place, Hop]
) -> Hop | None:
    """Return the hop of a slot in one of two directions; None without one."""
    if not slot.hands_on:
        return None
    return (backward if slot.backward else forward).get(Place(stage, slot.chunk))

"""Layout changes the slow way: executed rank by rank on arrays, and every sequence enumerated.

Nothing here uses the regions, moves or prices of the planner; placements are read afresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from wattree.lowering.reshard import DeviceGrid, TensorPlacement
from wattree.lowering.reshard.moves import MoveKind
from wattree.lowering.reshard.steps import ReshardStep
from wattree.strategy import Mesh

__all__ = ["Held", "execute", "expected", "fewest_elements", "given"]

Array = NDArray[np.int64]
Region = tuple[slice, ...]
#: Rank → its part of the tensor and what it has there, by device.
Held = dict[int, tuple[Region, Array]]


def places(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return the coordinates of a rank, the last axis running fastest."""
    found = {}
    for axis, degree in reversed(mesh.axes):
        rank, found[axis] = divmod(rank, degree)
    return found


def part(mesh: Mesh, at: TensorPlacement, shape: tuple[int, ...], rank: int) -> Region:
    """Return the indices that a rank has of each dim: a part of a part of a part."""
    where, found = places(mesh, rank), []
    for extent, axes in zip(shape, at.shards, strict=True):
        indices = range(extent)
        for axis in axes:
            count, number = len(indices), where[axis]
            degree = dict(mesh.axes)[axis]
            indices = indices[count * number // degree : count * (number + 1) // degree]
        found.append(slice(indices.start, indices.stop))
    return tuple(found)


def split(at: TensorPlacement) -> set[str]:
    """Return the axes that split any dim."""
    return {axis for axes in at.shards for axis in axes}


def given(whole: Array, grid: DeviceGrid, at: TensorPlacement, seed: int) -> Held:
    """Return what devices hold of a tensor: parts of it, or of the summands that make it."""
    random = np.random.default_rng(seed)
    degrees, summed = dict(grid.mesh.axes), sorted(at.partial)
    summands = random.integers(-9, 9, (prod(degrees[axis] for axis in summed), *whole.shape))
    summands[-1] = whole - summands[:-1].sum(axis=0)
    held: Held = {}
    for rank, device in enumerate(grid.devices):
        where, number = places(grid.mesh, rank), 0
        for axis in summed:
            number = number * degrees[axis] + where[axis]
        region = part(grid.mesh, at, whole.shape, rank)
        held[device] = region, summands[number][region].copy()
    return held


def expected(whole: Array, grid: DeviceGrid, at: TensorPlacement, held: Held) -> bool:
    """Return whether every device holds its part of a tensor, or summands of it."""
    for members in groups(grid.mesh, tuple(sorted(at.partial))):
        total: Array | int = 0
        for rank in members:
            region, values = held[grid.devices[rank]]
            if region != part(grid.mesh, at, whole.shape, rank):
                return False
            total = total + values
        if not np.array_equal(total, whole[part(grid.mesh, at, whole.shape, members[0])]):
            return False
    return set(held) == set(grid.devices)


def groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    """Return ranks that differ on `axes` alone."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(degree for _, degree in mesh.axes)):
        key = tuple(place for axis, place in places(mesh, rank).items() if axis not in axes)
        found.setdefault(key, []).append(rank)
    return list(found.values())


# ---------------------------------------------------------------- execution


def execute(step: ReshardStep, held: Held) -> tuple[Held, int]:
    """Return what devices hold after a step, and how many elements were sent."""
    after: Held = {}
    if step.kind is MoveKind.TRANSFER:
        return _messages(step, held)
    mesh, devices = step.source.mesh, step.source.devices
    sent = 0
    for members in groups(mesh, step.axes):
        parts = [held[devices[rank]] for rank in members]
        for number, rank in enumerate(members):
            region = part(mesh, step.after, step.shape, rank)
            values, known = _empty(region), np.zeros(_sizes(region), dtype=np.int64)
            own = parts[number]
            if step.kind is MoveKind.LOCAL:
                zeros = bool(step.after.partial - step.before.partial)
                replica = zeros and number > 0 and not set(step.axes) & split(step.before)
                known[...] = int(zeros)
                _put(values, known, region, (own[0], own[1] * (not replica)))
            elif step.kind in {MoveKind.ALL_REDUCE, MoveKind.REDUCE_SCATTER}:
                for other in parts:
                    summand, seen = _empty(region), np.zeros(_sizes(region), dtype=np.int64)
                    _put(summand, seen, region, other)
                    assert seen.all(), "a summand is missing"
                    values, known = values + summand, known + 1
                others = len(members) - 1
                sent += others * values.size
                if step.kind is MoveKind.ALL_REDUCE:  # added up in parts, which are then gathered
                    sent -= others * values.size
                    sent += 2 * others * values.size if number == 0 else 0
            else:
                _put(values, known, region, own)
                sent += int((known == 0).sum())
                for other in parts:
                    _put(values, known, region, other)
            assert known.all(), "a part is missing"
            after[devices[rank]] = region, values
    return after, sent


def _messages(step: ReshardStep, held: Held) -> tuple[Held, int]:
    after, known, sent = {}, {}, 0
    for rank, device in enumerate(step.target.devices):
        region = part(step.target.mesh, step.after, step.shape, rank)
        after[device] = region, _empty(region)
        known[device] = np.zeros(_sizes(region), dtype=np.int64)
        if device in held:
            _put(after[device][1], known[device], region, held[device])
    for message in step.messages(lambda senders, receivers: abs(senders - receivers)):
        region = tuple(slice(low, high) for low, high in message.region)
        values, seen = _empty(region), np.zeros(_sizes(region), dtype=np.int64)
        _put(values, seen, region, held[message.sender])
        assert seen.all(), "a sender lacks what it sends"
        own, array = after[message.receiver]
        before = int((known[message.receiver] == 0).sum())
        _put(array, known[message.receiver], own, (region, values))
        assert before - int((known[message.receiver] == 0).sum()) == values.size, "sent twice"
        sent += values.size
    assert all(seen.all() for seen in known.values()), "a part is missing"
    return after, sent


def _sizes(region: Region) -> tuple[int, ...]:
    return tuple(each.stop - each.start for each in region)


def _empty(region: Region) -> Array:
    return np.zeros(_sizes(region), dtype=np.int64)


def _put(into: Array, known: Array, at: Region, other: tuple[Region, Array]) -> None:
    """Copy what `other` has of a region into an array of it."""
    lows = [max(a.start, b.start) for a, b in zip(at, other[0], strict=True)]
    highs = [min(a.stop, b.stop) for a, b in zip(at, other[0], strict=True)]
    if any(low >= high for low, high in zip(lows, highs, strict=True)):
        return
    pairs = list(zip(lows, highs, strict=True))
    own = tuple(slice(lo - a.start, hi - a.start) for (lo, hi), a in zip(pairs, at, strict=True))
    from_ = tuple(
        slice(lo - b.start, hi - b.start) for (lo, hi), b in zip(pairs, other[0], strict=True)
    )
    into[own] = other[1][from_]
    known[own] += 1


# ---------------------------------------------------------------- enumeration


def fewest_elements(
    shape: tuple[int, ...],
    source: tuple[DeviceGrid, TensorPlacement],
    target: tuple[DeviceGrid, TensorPlacement],
) -> int:
    """Return the fewest elements that any sequence sends: shortest paths between all placements.

    More is allowed than a planner has: parts may move in any way between ranks with the same
    summands, and land in any placement of whole values on the other mesh.
    """
    (start, have), (end, want) = source, target
    ends = [
        list(
            _placements(start, len(shape), have.partial | (want.partial if start == end else set()))
        ),
        list(_placements(end, len(shape), want.partial)),
    ]
    masks = [_masks(grid, found, shape) for grid, found in zip((start, end), ends, strict=True)]
    first = len(ends[0])
    price = np.full((first + len(ends[1]),) * 2, np.inf)
    for at, (grid, found, mask) in enumerate(zip((start, end), ends, masks, strict=True)):
        low = at * first
        price[low : low + len(found), low : low + len(found)] = _inside(
            grid, found, mask, want.partial if at or start == end else frozenset()
        )
    rank_of = {device: rank for rank, device in enumerate(start.devices)}
    own = np.stack(
        [
            masks[0][:, rank_of[d]] if d in rank_of else np.zeros_like(masks[0][:, 0])
            for d in end.devices
        ],
        axis=1,
    )
    price[:first, first:] = _missing(own, masks[1])
    summands = [bool(at.partial) for found in ends for at in found]
    price[:first, first:][summands[:first], :] = np.inf
    price[:first, first:][:, summands[first:]] = np.inf
    if start == end:  # where nothing has to be moved, the tensor has arrived
        for number, at in enumerate(ends[0]):
            if at in ends[1]:
                price[number, first + ends[1].index(at)] = 0.0
    paid = price[ends[0].index(have)].copy()
    for _ in range(8):  # more steps than any way has
        paid = np.minimum(paid, (paid[:, None] + price).min(axis=0))
    return int(paid[first + ends[1].index(want)])


def _placements(
    grid: DeviceGrid, dims: int, sums: frozenset[str] | set[str]
) -> Iterator[TensorPlacement]:
    axes = [axis for axis, _ in grid.mesh.axes]
    seen = set()
    for order in permutations(axes):
        for slots in product((*range(dims), "replica", "sum"), repeat=len(axes)):
            chosen = list(zip(order, slots, strict=True))
            partial = frozenset(axis for axis, slot in chosen if slot == "sum")
            shards = tuple(tuple(a for a, slot in chosen if slot == dim) for dim in range(dims))
            if partial <= set(sums) and (shards, partial) not in seen:
                seen.add((shards, partial))
                yield TensorPlacement(shards=shards, partial=partial)


def _masks(grid: DeviceGrid, found: list[TensorPlacement], shape: tuple[int, ...]) -> Array:
    """Return 1 where a rank has an element, `(placements, ranks, elements)`."""
    masks = np.zeros((len(found), len(grid.devices), *shape), dtype=np.int64)
    for number, at in enumerate(found):
        for rank in range(len(grid.devices)):
            masks[(number, rank, *part(grid.mesh, at, shape, rank))] = 1
    return masks.reshape(len(found), len(grid.devices), -1)


def _missing(own: Array, wanted: Array) -> NDArray[np.float64]:
    """Return how many elements ranks lack, placements before by placements after."""
    left = own.reshape(len(own), -1).astype(np.float64)
    right = wanted.reshape(len(wanted), -1).astype(np.float64)
    return right.sum(axis=1)[None, :] - left @ right.T


def _inside(
    grid: DeviceGrid, found: list[TensorPlacement], masks: Array, sums: frozenset[str]
) -> NDArray[np.float64]:
    """Return what changes on one mesh send at least."""
    price, degrees = _missing(masks, masks), dict(grid.mesh.axes)
    elements = masks.sum(axis=(1, 2))
    for (i, at), (j, after) in product(enumerate(found), repeat=2):
        if at.partial == after.partial:
            continue
        price[i, j] = np.inf
        summed = at.partial - after.partial
        others = prod(degrees[axis] for axis in summed) - 1
        cut = [
            own[: len(old)] == old and set(own[len(old) :]) <= summed
            for own, old in zip(after.shards, at.shards, strict=True)
        ]
        now = {axis for axes in after.shards for axis in axes}
        if after.partial < at.partial and all(cut):
            if summed <= now:
                price[i, j] = others * elements[j]
            elif not summed & now:
                price[i, j] = 2 * others * elements[j] / (others + 1)
        new = after.partial - at.partial
        kept = [
            old[: len(own)] == own and set(old[len(own) :]) <= new
            for own, old in zip(after.shards, at.shards, strict=True)
        ]
        if after.partial > at.partial and new <= sums and all(kept):
            price[i, j] = 0.0
    return price

"""Rings along all axes of a torus concurrently, as on TPUs."""

from __future__ import annotations

from math import prod

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import REDUCTIONS, Call, algorithm
from wattree.errors import CostError


@algorithm("torus", *REDUCTIONS)
def torus_rings(call: Call) -> MessageSchedule:
    """Return scatters along one axis after the other, and gathers back, all links at work [1, 2].

    The data is cut into as many parts as a device has links, two for each axis. Each part begins
    with another axis or goes around it the other way. Parts do not wait for each other, and are as
    large as makes every link carry the same: `2 (n - 1) / n S` over all links, whatever the lengths
    of the axes [3]. Ranks are in the order of the grid, last axis fastest.

    References:
        [1] N. P. Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer for Machine
            Learning", ISCA 2023, arXiv 2304.01433.
        [2] P. Sack, W. Gropp, "Collective Algorithms for Multiported Torus Networks", ACM TOPC
            1(2), 2015, doi:10.1145/2686882.
        [3] J. Austin et al., "How to Scale Your Model", 2025, part 3: collectives over several
            axes have the bandwidth of all of them.
    """
    n, shape = call.group.ranks, call.group.shape
    if shape is None or prod(shape) != n:
        raise CostError(
            "algorithm 'torus' needs a group that fills a torus, or a whole slice of one; use "
            "'ring'"
        )
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    parts = [_Part(shape, axes, turn, number) for number, turn in enumerate(_turns(len(axes)))]
    lanes, phases = list(zip(parts[::2], parts[1::2], strict=True)), range(len(axes))
    scatter = [_round(lane, phase, reduces=True) for lane in lanes for phase in phases]
    gather = [_round(lane, phase, reduces=False) for lane in lanes for phase in reversed(phases)]
    rounds = {
        "all_reduce": (*scatter, *gather),
        "reduce_scatter": tuple(scatter),
        "all_gather": tuple(gather),
    }[call.kind]
    share = np.repeat(_shares([shape[a] for a in axes]), 2 * n)
    return call.schedule(
        "torus",
        np.concatenate([part.owner for part in parts]),
        rounds,
        chunk_bytes=call.size_bytes / (2 * n) * share,
        pipelined=True,
        lanes=max(len(lanes), 1),
    )


def _shares(lengths: list[int]) -> Floats:
    """Return the share of the data that begins with each axis, so that all axes carry the same."""
    if len(set(lengths)) <= 1:
        return np.full(len(lengths), 1.0 / max(len(lengths), 1))
    order = np.add.outer(range(len(lengths)), range(len(lengths))) % len(lengths)
    along = np.array(lengths)[order]  # of a part that begins with an axis, phase by phase
    carried = np.empty(along.shape)
    # A scatter along an axis sends all but the own part of what scatters before it have left.
    np.put_along_axis(carried, order, (along - 1) / along.cumprod(axis=1), axis=1)
    shares = np.linalg.solve(carried.T, np.ones(len(lengths)))
    return np.asarray(shares / shares.sum())


def _turns(axes: int) -> list[tuple[int, bool]]:
    return [(first, backwards) for first in range(axes) for backwards in (False, True)]


class _Part:
    """One part of the data: the order of its axes, the way round them, and its chunks.

    Chunk x of a part has coordinates in the order of its axes. A ring reduce-scatter along the
    axis of a phase leaves each place with the run of chunks of the next place; coordinates are
    counted along the way the data goes.
    """

    def __init__(
        self, shape: tuple[int, ...], axes: list[int], turn: tuple[int, bool], number: int
    ) -> None:
        first, self._backwards = turn
        self._axes = axes[first:] + axes[:first]
        self.lengths = [shape[axis] for axis in self._axes]
        self._offset = number * prod(shape)
        self._ranks = np.arange(prod(shape)).reshape(shape)
        place = np.indices(shape)
        along = [place[axis] for axis in self._axes]
        if self._backwards:
            along = [length - 1 - at for length, at in zip(self.lengths, along, strict=True)]
        self._along = along
        # What each place ends with: one further along every axis.
        final = [(at + 1) % length for at, length in zip(along, self.lengths, strict=True)]
        self.owner = np.empty(self._ranks.size, dtype=np.int64)
        self.owner[np.ravel_multi_index(final, self.lengths).ravel()] = self._ranks.ravel()

    def messages(self, phase: int, *, reduces: bool) -> tuple[Integers, ...]:
        """Return sender, receiver, base and first chunk of a phase."""
        step = 1 if self._backwards else -1
        receiver = np.roll(self._ranks, step, axis=self._axes[phase])
        base = np.full(self._ranks.shape, self._offset)
        for earlier in range(phase):
            run = prod(self.lengths[earlier + 1 :])
            base += (self._along[earlier] + 1) % self.lengths[earlier] * run
        run = prod(self.lengths[phase + 1 :])
        first = (self._along[phase] + (0 if reduces else 1)) * run
        return tuple(array.ravel() for array in (self._ranks, receiver, base, first))


def _round(lane: tuple[_Part, _Part], phase: int, *, reduces: bool) -> Round:
    """Return the round of one phase of the two parts that begin with one axis."""
    arrays = [part.messages(phase, reduces=reduces) for part in lane]
    sender, receiver, base, first = (np.concatenate(each) for each in zip(*arrays, strict=True))
    length, *later = lane[0].lengths[phase:]
    return round_of(
        sender,
        receiver,
        base=base,
        first=first,
        count=prod(later),
        period=length * prod(later),
        shift=-prod(later),
        repeats=length - 1,
        reduces=reduces,
    )

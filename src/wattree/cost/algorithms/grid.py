"""Rings along all axes of a torus concurrently, as on TPUs."""

from __future__ import annotations

from math import prod

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import ALGORITHMS, Call, ends_of, refuse_kind
from wattree.errors import CostError

_KINDS = ("all_reduce", "all_gather", "reduce_scatter")


@ALGORITHMS.register("torus")
def torus_rings(call: Call) -> MessageSchedule:
    """Return scatters along one axis after the other, and gathers back, all links at work [1, 2].

    The data is cut into as many parts as a device has links, two for each axis. Each part begins
    with another axis or goes around it the other way, so that no two meet on a link in one phase
    where all axes are of one length. Ranks are in the order of the grid, last axis fastest.

    References:
        [1] N. P. Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer for Machine
            Learning", ISCA 2023, arXiv 2304.01433.
        [2] P. Sack, W. Gropp, "Collective Algorithms for Multiported Torus Networks", ACM TOPC
            1(2), 2015, doi:10.1145/2686882.
    """
    refuse_kind("torus", call, _KINDS)
    n, shape = call.group.ranks, call.group.shape
    if shape is None or prod(shape) != n:
        raise CostError(
            "algorithm 'torus' needs a group that fills a torus, or a whole slice of one; use "
            "'ring'"
        )
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    parts = [_Part(shape, axes, turn, number) for number, turn in enumerate(_turns(len(axes)))]
    phases = range(len(axes))
    scatter = [r for phase in phases for r in _merged(parts, phase, reduces=True)]
    gather = [r for phase in reversed(phases) for r in _merged(parts, phase, reduces=False)]
    rounds = {
        "all_reduce": (*scatter, *gather),
        "reduce_scatter": tuple(scatter),
        "all_gather": tuple(gather),
    }[call.kind]
    source, target = ends_of(call.kind, np.concatenate([part.owner for part in parts]))
    return MessageSchedule(
        kind=call.kind,
        algorithm="torus",
        group=call.group,
        chunk_bytes=np.full(n * len(parts), call.size_bytes / (n * len(parts))),
        source=source,
        target=target,
        rounds=rounds,
    )


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
        self._lengths = [shape[axis] for axis in self._axes]
        self._offset = number * prod(shape)
        self._ranks = np.arange(prod(shape)).reshape(shape)
        place = np.indices(shape)
        along = [place[axis] for axis in self._axes]
        if self._backwards:
            along = [length - 1 - at for length, at in zip(self._lengths, along, strict=True)]
        self._along = along
        # What each place ends with: one further along every axis.
        final = [(at + 1) % length for at, length in zip(along, self._lengths, strict=True)]
        self.owner = np.empty(self._ranks.size, dtype=np.int64)
        self.owner[np.ravel_multi_index(final, self._lengths).ravel()] = self._ranks.ravel()

    def key(self, phase: int) -> tuple[int, int]:
        """Return the key by which rounds are merged: the period and the length of the axis."""
        return prod(self._lengths[phase:]), self._lengths[phase]

    def messages(self, phase: int, *, reduces: bool) -> tuple[Integers, ...]:
        """Return sender, receiver, base and first chunk of a phase."""
        step = 1 if self._backwards else -1
        receiver = np.roll(self._ranks, step, axis=self._axes[phase])
        base = np.full(self._ranks.shape, self._offset)
        for earlier in range(phase):
            run = prod(self._lengths[earlier + 1 :])
            base += (self._along[earlier] + 1) % self._lengths[earlier] * run
        run = prod(self._lengths[phase + 1 :])
        first = (self._along[phase] + (0 if reduces else 1)) * run
        return tuple(array.ravel() for array in (self._ranks, receiver, base, first))


def _merged(parts: list[_Part], phase: int, *, reduces: bool) -> list[Round]:
    """Return the rounds of one phase: one for all parts whose axes are of one length."""
    rounds = []
    for period, length in dict.fromkeys(part.key(phase) for part in parts):
        together = [part for part in parts if part.key(phase) == (period, length)]
        arrays = [part.messages(phase, reduces=reduces) for part in together]
        sender, receiver, base, first = (np.concatenate(each) for each in zip(*arrays, strict=True))
        rounds.append(
            round_of(
                sender,
                receiver,
                base=base,
                first=first,
                count=period // length,
                period=period,
                shift=-(period // length),
                repeats=length - 1,
                reduces=reduces,
            )
        )
    return rounds

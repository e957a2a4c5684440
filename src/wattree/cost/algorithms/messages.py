"""A collective as messages: sender, receiver, chunks and order.

The data of a collective is cut into chunks. A chunk begins at one rank, or as one contribution of
every rank that must be added; it ends at one rank, or at all. That, and nothing else, says what
the collective is. How it gets there is a list of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from wattree.arrays import ArrayLike, Floats, Integers
from wattree.cost.algorithms.group import RankGroup

#: In `MessageSchedule.source` every rank has a contribution; in `MessageSchedule.target` every rank
#: ends with it.
EVERY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Messages of one pattern, sent `repeats` times one after the other.

    In repeat t message i carries the chunks `base[i] + (first[i] + t * shift + j) % period` for j
    below `count[i]`. Messages of one hop travel together; a hop follows the one before.

    Attributes:
        sender, receiver: Ranks of the group, or helpers from `ranks` upwards. Shape `(k,)`.
        base, first, count: Chunks carried. Shape `(k,)`.
        period: Length of the block of chunks that indices wrap around in.
        shift: By how much they move with each repeat.
        repeats: How often.
        hop: Place of each message in the order within the round, ascending. Shape `(k,)`.
        reduces: The receiver adds what arrives to what it has; otherwise it stores what arrives.
    """

    sender: Integers
    receiver: Integers
    base: Integers
    first: Integers
    count: Integers
    period: int
    shift: int = 0
    repeats: int = 1
    hop: Integers
    reduces: bool = False

    def hops(self) -> Iterator[slice]:
        """Yield the messages of each hop, in order."""
        edges = np.flatnonzero(np.diff(self.hop)) + 1
        bounds = [0, *edges.tolist(), len(self.hop)]
        for start, end in pairwise(bounds):
            yield slice(start, end)


def round_of(
    sender: ArrayLike,
    receiver: ArrayLike,
    *,
    period: int,
    base: ArrayLike = 0,
    first: ArrayLike = 0,
    count: ArrayLike = 1,
    shift: int = 0,
    repeats: int = 1,
    hop: ArrayLike = 0,
    reduces: bool = False,
) -> Round:
    """Return a round from arrays of any shape that broadcast to one another, in order of hops."""
    arrays = np.broadcast_arrays(sender, receiver, base, first, count, hop)
    flat = [np.ascontiguousarray(array, dtype=np.int64).ravel() for array in arrays]
    if np.any(np.diff(flat[5]) < 0):
        order = np.argsort(flat[5], kind="stable")
        flat = [array[order] for array in flat]
    return Round(
        sender=flat[0],
        receiver=flat[1],
        base=flat[2],
        first=flat[3],
        count=flat[4],
        period=period,
        shift=shift,
        repeats=repeats,
        hop=flat[5],
        reduces=reduces,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSchedule:
    """One collective, ready to be timed, loaded onto links or executed.

    Attributes:
        kind: `all_reduce`, `all_gather`, ….
        algorithm: Its name in `ALGORITHMS`.
        group: Who takes part, and where they sit.
        helpers: Vertices that take part in addition to the ranks: switches that add.
        chunk_bytes: Size of each chunk. Shape `(c,)`. [B]
        source: Rank that has each chunk at the start, or `EVERY`. Shape `(c,)`.
        target: Rank that must have each chunk at the end, or `EVERY`. Shape `(c,)`.
        rounds: In order.
        pipelined: Rounds and hops work on slices of the data at the same time, so that the time
            is that of the busiest link after the latency of all; otherwise each waits for the one
            before.
        lanes: Equally long sequences of rounds that do not wait for each other, if pipelined: the
            latencies of one count.
    """

    kind: str
    algorithm: str
    group: RankGroup
    helpers: tuple[str, ...] = ()
    chunk_bytes: Floats
    source: Integers
    target: Integers
    rounds: tuple[Round, ...]
    pipelined: bool = False
    lanes: int = 1
    _total_bytes: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_total_bytes", np.concatenate([[0.0], self.chunk_bytes.cumsum()]))

    @property
    def ranks(self) -> int:
        """Number of ranks that take part."""
        return self.group.ranks

    @property
    def vertices(self) -> tuple[str, ...]:
        """Name of every participant in the network: ranks, then helpers."""
        return self.group.vertices + self.helpers

    def is_uniform(self) -> bool:
        """Return whether all chunks have one size, so that message sizes are constant."""
        return (
            bool(np.all(self.chunk_bytes == self.chunk_bytes[0])) if self.chunk_bytes.size else True
        )

    def message_bytes(self, each: Round, repeat: int) -> Floats:
        """Return the size of every message of a round in one repeat. Shape `(k,)`. [B]"""
        if self.is_uniform():
            size = float(self.chunk_bytes[0]) if self.chunk_bytes.size else 0.0
            return np.asarray(each.count * size, dtype=np.float64)
        start = (each.first + repeat * each.shift) % each.period
        end = start + each.count
        over = np.maximum(end - each.period, 0)  # what wraps around to the start of the block
        total = self._total_bytes
        straight = total[each.base + end - over] - total[each.base + start]
        return np.asarray(straight + total[each.base + over] - total[each.base])

    def carried_bytes(self, each: Round) -> Floats:
        """Return the bytes of each message of a round over all repeats. Shape `(k,)`. [B]"""
        if self.is_uniform() or each.repeats == 1:
            return self.message_bytes(each, 0) * each.repeats
        total = np.zeros(len(each.sender))
        for repeat in range(each.repeats):
            total += self.message_bytes(each, repeat)
        return total

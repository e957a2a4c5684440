"""Kinds of pipeline stages of many strategies at once: a row for each kind of each strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.pipeline import PAIRED, SPLIT, StageContents, in_flight

Following = Mapping[tuple[str, int, int], Floats]


class StageKinds:
    """The contents of the stages of strategies, for any pipelines.

    Pipelines are few and each has few kinds of stages, so what depends on these alone is stacked
    and looked up. Arrays over strategies have shape `(n,)`, arrays over rows `(rows,)`: the kinds
    of the first strategy, then those of the second.

    Args:
        helds: What stages hold, by pipeline.
        pipeline: Of each strategy, `(n,)`.

    Attributes:
        strategy: Of each row.
        kind: Of each row, a number among the kinds of all pipelines.
        counts, later, behind: As those of `StageContents`, stacked over the kinds of all pipelines.
        ahead_of_first, ahead_of_last, first_chunk: As those of `StageContents`, in the same way.
        last: How often the last chunk of each kind holds each program, `(kinds, programs)`.
        stage: First stage of each row's kind.
        stages, virtual, copies: Of each strategy's pipeline.
        is_split: Whether its schedule is one of `SPLIT`.
        in_phases: Whether all its forwards come before any backward.
        pairs: Whether it overlaps forwards with backwards, most of which are in one piece.
    """

    def __init__(self, helds: Sequence[StageContents], pipeline: Integers) -> None:
        self.helds, self.pipeline = helds, pipeline
        many = np.array([len(contents.first) for contents in helds])
        before, rows = _starts(many), many[pipeline]
        self._starts = _starts(rows)
        self.strategy = np.repeat(np.arange(len(pipeline)), rows)
        place = np.arange(len(self.strategy)) - self._starts[self.strategy]
        self.kind = before[pipeline][self.strategy] + place
        self.counts, self.later, self.behind, self.ahead_of_first, self.ahead_of_last = (
            np.concatenate([getattr(contents, name) for contents in helds])
            for name in ("counts", "later", "behind", "ahead_of_first", "ahead_of_last")
        )
        self.first_chunk = np.concatenate([contents.first_chunk for contents in helds])
        self._parts = np.concatenate([contents.parts for contents in helds], axis=1)
        self.last = self._parts[2]
        self._received = np.concatenate([contents.boundary_copies for contents in helds], axis=1)
        first = np.concatenate([contents.first for contents in helds])
        self.stage = first[self.kind]
        self._stages_of_kind = np.concatenate([contents.stages_of_kind for contents in helds])[
            self.kind
        ]
        #: Share of the ranks of stages of each kind in each pool, `(pools, kinds)`.
        self.shares = np.concatenate(
            [contents.pools[:, contents.first] for contents in helds], axis=1
        )
        self.stages, self.virtual, self.copies = (
            np.array([getattr(contents, name) for contents in helds], dtype=np.float64)[pipeline]
            for name in ("stages", "virtual", "copies")
        )
        self._in_flight: tuple[Integers | None, Floats] = None, np.zeros(0)  # of the last call
        self.is_split = np.array([contents.schedule in SPLIT for contents in helds])[pipeline]
        phases = [contents.schedule in {"gpipe", "breadth-first"} for contents in helds]
        self.in_phases = np.array(phases)[pipeline]
        self.pairs = np.array([contents.schedule in PAIRED for contents in helds])[pipeline]

    @cached_property
    def first_chunks(self) -> tuple[Sequence[tuple[int, ...]], Integers]:
        """The programs of first chunks, distinct ones, and which of them each kind has."""
        every = [chunks[0] for contents in self.helds for chunks in contents.programs]
        found = list(dict.fromkeys(every))
        return found, np.array([found.index(programs) for programs in every])

    @cached_property
    def ends_of_chunks(self) -> Floats:
        """How often each program begins a chunk, and ends one, `(2, kinds, programs)`."""
        found = np.zeros((2, *self.counts.shape))
        for kind, programs in self._chunks():
            found[0, kind, programs[0]] += 1.0
            found[1, kind, programs[-1]] += 1.0
        return found

    @cached_property
    def following(self) -> tuple[Following, Following]:
        """Which block follows which in the forward and in the backward of a micro-batch.

        Pass, block and the next block → how often, by kind. Backward follows the last block of
        forward, and the next forward the first one.
        """
        forward, backward = self._none_following(), self._none_following()
        for kind, programs in self._chunks():
            forward["backward", programs[0], programs[0]][kind] += 1.0
            backward["forward", programs[-1], programs[-1]][kind] += 1.0
            for one, other in pairwise(programs):
                forward["forward", one, other][kind] += 1.0
                backward["backward", other, one][kind] += 1.0
        return forward, backward

    @cached_property
    def following_forward(self) -> tuple[Following, Following]:
        """The same of forward passes alone, one after the other."""
        forward = self._none_following()
        for kind, programs in self._chunks():
            for one, other in pairwise((*programs, programs[0])):
                forward["forward", one, other][kind] += 1.0
        return forward, {}

    def _none_following(self) -> defaultdict[tuple[str, int, int], Floats]:
        return defaultdict(lambda: np.zeros(len(self.counts)))

    def _chunks(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return kind and programs of each chunk of each kind of stage."""
        every = [chunks for contents in self.helds for chunks in contents.programs]
        return [(kind, programs) for kind, chunks in enumerate(every) for programs in chunks]

    @cached_property
    def next_blocks(self) -> tuple[Flags, Flags, Flags]:
        """Which block runs right after which, `(kinds, programs, programs)`.

        In forward and at its end, in backward and at its end, and without that: no forward follows
        the backward of a single micro-batch.
        """
        found = np.zeros((3, *self.counts.shape, self.counts.shape[1]), dtype=bool)
        ahead, behind, single = found
        for each in self.following:
            for (own, one, other), counts in each.items():
                (ahead if own == "forward" else behind)[:, one, other] |= counts > 0
                if own == "backward" and each is self.following[1]:
                    single[:, one, other] |= counts > 0
        return ahead, behind, single

    def most(self, values: Floats) -> Floats:
        """Return the largest of each strategy's rows, `(n,)`."""
        return np.asarray(np.maximum.reduceat(values, self._starts))

    def over_stages(self, values: Floats) -> Floats:
        """Return the sum over the stages of each strategy, `(n,)`."""
        return np.asarray(np.add.reduceat(self._stages_of_kind * values, self._starts))

    def first_row(self, chosen: Flags) -> Integers:
        """Return the first chosen row of each strategy, all of which have one."""
        rows = np.where(chosen, np.arange(len(chosen)), len(chosen))
        return np.asarray(np.minimum.reduceat(rows, self._starts))

    def rows(self, pipeline: int) -> tuple[Integers, Integers]:
        """Return the strategies of one pipeline, and their rows, `(kinds, strategies)`."""
        own = np.flatnonzero(self.pipeline == pipeline)
        kinds = np.arange(len(self.helds[pipeline].first))
        return own, np.asarray(self._starts[own] + kinds[:, None])

    def saved_bytes(self, table: Floats, boundary_bytes: Floats | None = None) -> list[Floats]:
        """Return the saved tensors of each of three parts of each kind, `(kinds, distinct)`.

        Args:
            table: What each program keeps.
            boundary_bytes: Size of each boundary tensor.
        """
        both = zip(self._parts, self._received, strict=True)
        return [
            part @ table + (0.0 if boundary_bytes is None else copies @ boundary_bytes)
            for part, copies in both
        ]

    def chunk_shares(self, table: Floats) -> Floats:
        """Return the share of each part of each kind in what `table` sums to, `(3, kinds, n)`."""
        parts = self._parts @ table
        return np.asarray(parts / np.maximum(parts.sum(axis=0), 1e-30))

    def crossing_bytes(self, boundary_bytes: Floats) -> tuple[Floats, Floats]:
        """Return the bytes that cross a border of each pipeline, on average and at most. [B]

        Args:
            boundary_bytes: Size of each boundary tensor, `(tensors, distinct)`. [B]
        """
        crossings = np.concatenate([contents.crossings for contents in self.helds])
        sizes = crossings @ boundary_bytes / 2  # a tensor and its gradient are two transfers
        starts = _starts(np.array([len(contents.crossings) for contents in self.helds]))
        return sizes[starts], np.maximum.reduceat(sizes, starts)

    def in_flight(self, micro_batches: Integers) -> Floats:
        """Return the peak number of micro-batches with saved activations, `(3, rows)`, by part."""
        if micro_batches is self._in_flight[0]:
            return self._in_flight[1]
        found = np.zeros((3, len(self.strategy)))
        names = np.array([contents.schedule for contents in self.helds])[self.pipeline]
        for name in dict.fromkeys(contents.schedule for contents in self.helds):
            rows = np.flatnonzero((names == name)[self.strategy])
            own = self.strategy[rows]
            found[:, rows] = in_flight(
                name,
                stages=self.stages[own],
                virtual=self.virtual[own],
                stage=self.stage[rows],
                micro_batches=micro_batches[own],
            )
        self._in_flight = micro_batches, found
        return found

    def goes_forward_first(self, micro_batches: Integers) -> Flags:
        """Return whether all forwards of each row come before any backward, `(rows,)`."""
        first = self.in_phases[self.strategy]
        stages, chunks = self.stages[self.strategy], self.virtual[self.strategy]
        ahead = stages - self.stage
        ahead = np.where(chunks > 1, 2 * ahead - 1, ahead)
        return np.asarray(first | (micro_batches[self.strategy] <= ahead))


def slowest(counts: Floats, tables: Sequence[Floats], shares: Floats) -> Floats:
    """Return tables summed over programs, of the slowest pool that has a share.

    Args:
        counts: How often each program is held, `(kinds, programs)`.
        tables: By pool, `(programs, distinct)` each.
        shares: `(pools, kinds)`.
    """
    return most_of_pools([counts @ table for table in tables], shares)


def most_of_pools(values: Sequence[Floats], shares: Floats) -> Floats:
    """Return the largest value of the pools that have a share.

    Args:
        values: By pool, `(kinds, distinct)` each.
        shares: `(pools, kinds)`.
    """
    if len(values) == 1:
        return values[0]
    used = zip(values, shares > 0, strict=True)
    return np.asarray(np.max([np.where(has[:, None], part, -np.inf) for part, has in used], axis=0))


def _starts(counts: Integers) -> Integers:
    """Return where each of consecutive runs begins."""
    return np.asarray(np.cumsum(counts) - counts)

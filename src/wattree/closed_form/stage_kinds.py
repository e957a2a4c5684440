"""Kinds of pipeline stages of many strategies at once: a row for each kind of each strategy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.pipeline import PAIRED, SPLIT, StageContents, in_flight


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
        last: How often the last chunk of each kind holds each program, `(kinds, programs)`.
        stage: First stage of each row's kind.
        stages, virtual, copies: Of each strategy's pipeline.
        is_split: Whether its schedule is one of `SPLIT`.
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
        self.counts = np.concatenate([contents.counts for contents in helds])
        self.later = np.concatenate([contents.later for contents in helds])
        self.behind = np.concatenate([contents.behind for contents in helds])
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
        self.pairs = np.array([contents.schedule in PAIRED for contents in helds])[pipeline]

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
        names = np.array([contents.schedule for contents in self.helds])[self.pipeline]
        first = np.isin(names, ("gpipe", "breadth-first"))[self.strategy]
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
    sums = [counts @ table for table in tables]
    if len(sums) == 1:
        return sums[0]
    used = zip(sums, shares > 0, strict=True)
    return np.asarray(np.max([np.where(has[:, None], part, -np.inf) for part, has in used], axis=0))


def _starts(counts: Integers) -> Integers:
    """Return where each of consecutive runs begins."""
    return np.asarray(np.cumsum(counts) - counts)

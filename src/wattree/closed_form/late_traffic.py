"""Traffic that outlasts the pass alongside it, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.buckets import first_bucket_s, last_bucket_s
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.passes import PassTimes, crowding
from wattree.closed_form.stage_kinds import Following, most_of_pools, slowest
from wattree.closed_form.stage_sums import StageSums
from wattree.lowering.movement import Overlap

#: Copies of shards that a pass waits for.
_COPIED = {"forward": ("copied_out",), "backward": ("copied_again", "copied_in")}


class LateTraffic:
    """How long passes and the end of a step wait for traffic between replicas.

    Args:
        sums: Of tables, by kind of stage.
        overlap: Which traffic runs alongside computation.
        slow: By how much computation is slower than its tables say, `(rows,)`.
    """

    def __init__(self, sums: StageSums, overlap: Overlap, slow: Floats) -> None:
        self._sums, self._overlap, self._slow = sums, overlap, slow
        self.kinds, self.by_pool = sums.kinds, sums.by_pool

    def outlasting_s(self, name: str, own: str, span: PassTimes) -> Floats:
        """Return by how much traffic outlasts the last backward or first forward, `(rows,)`. [s]

        Args:
            name: The table of the traffic.
            own: The table of the pass, `backward` for reductions and `forward` for gathers.
            span: The pass.
        """
        sums, kinds = self._sums, self.kinds
        if name in sums.nothing:
            return np.zeros(len(sums.storage))
        waited = "again" if own == "backward" and "again" not in sums.nothing else ""
        found = self._trailing_s(name, own, waited, span)
        if own == "backward" and kinds.is_split.any():  # weight gradients alone come last
            weight = sums.of_blocks("deferred") * self._slow
            last = PassTimes(
                span=weight, computed=weight, moved=0.0, contention=0.0, slowdown=span.slowdown
            )
            split = self._trailing_s(name, "deferred", "", last)
            found = np.where(kinds.is_split[kinds.strategy], split, found)
        left = (1.0 - span.slowed(name)) * sums.bucketed(name)
        if (kinds.virtual > 1).any():  # other chunks come one after the other
            passes = (1.0 - span.waited_share(name)) * span.span
            if own == "forward":  # gathered a chunk ahead, of as many micro-batches as stages
                passes = passes * kinds.stages[kinds.strategy]
            if waited:
                passes = self._with_gathers_s(name, passes, sums.of_storage(waited))
            found = np.maximum(found, left * sums.storage_rows(sums.by_kind(name)) - passes)
        chunks, which = kinds.first_chunks
        of_chunk = first_bucket_s if own == "forward" else partial(last_bucket_s, name=name)
        ends = [np.stack([of_chunk(each, c) for c in chunks])[which] for each in self.by_pool]
        left = 1.0 - span.slowed(name)
        rows = sums.storage_rows(most_of_pools(ends, kinds.shares))
        return np.maximum(found, left * rows)

    def _trailing_s(self, name: str, own: str, waited: str, lasts: PassTimes) -> Floats:
        """Return by how much traffic of the first chunk's blocks outlasts a pass, `(rows,)`. [s]

        The reductions of a block begin when its backward has ended, and those of the blocks that
        come later in it, so with `t` and `c` the time of a block's traffic and computation,
        backward is `max_k(t_k + ... + t_1 - (c_{k-1} + ... + c_1))` shorter, whose last block is
        the first of the model. It is the same with gathers of a first forward, which waits for them
        from block 1 on. The largest is that of the first or last of equal blocks in a row.

        Args:
            waited: The table of gathers that the pass waits for, empty for none.
        """
        sums, kinds = self._sums, self.kinds
        found, hides = np.zeros(len(sums.storage)), 1.0 - lasts.waited_share(name)
        left = (1.0 - lasts.slowed(name)) * sums.bucketed(name)
        traffic, computed = ([getattr(t, each) for t in self.by_pool] for each in (name, own))
        others = [getattr(each, waited) for each in self.by_pool] if waited else []
        seen: list[Floats] = []
        for ahead in (kinds.ahead_of_first, kinds.ahead_of_last):
            for program, one in enumerate(np.eye(ahead.shape[1])):
                before, has = ahead[:, program], kinds.first_chunk[:, program] > 0
                known = any(np.array_equal(before, other) for other in seen)
                if known or not has.any() or not any(t[program].any() for t in traffic):
                    continue
                seen.append(before)
                counts = before * has[:, None]
                moved = slowest(counts + one * has[:, None], traffic, kinds.shares)
                late = left * sums.storage_rows(moved)
                if counts.any():
                    hidden = hides * sums.block_rows(slowest(counts, computed, kinds.shares))
                    if others:
                        other = sums.storage_rows(slowest(counts, others, kinds.shares))
                        hidden = self._with_gathers_s(name, hidden, other)
                    late -= hidden
                np.maximum(found, late, out=found)
        return found

    def _with_gathers_s(self, name: str, computed: Floats, gathers: Floats) -> Floats:
        """Return the time of a part of backward with the gathers that it waits for. [s]

        Those that computation hides set its pace where they take longer. Links that they share
        with reductions cost time, which that of a micro-batch has for its own reductions alone.
        """
        if name == "once":
            gathers = gathers * (1.0 - crowding(self._sums))
        if self._overlap.hides_backward_gathers:
            return np.maximum(computed, gathers)
        return computed + gathers

    def gathers_s(
        self, forward: PassTimes, backward: PassTimes, *, chunks_begin: bool = False
    ) -> tuple[Floats | float, Floats | float]:
        """Return how long a micro-batch waits for gathers in forward and in backward. [s]

        Where a gather begins with the block before, `p`, a block `q` begins `max(c_p, t_q)` later,
        with `c` the time of a block and `t` that of a gather. Other depths of prefetch are left to
        the sums of all blocks.

        Args:
            forward, backward: Passes of a micro-batch.
            chunks_begin: For the first blocks of chunks alone.
        """
        overlap, sums, kinds = self._overlap, self._sums, self.kinds
        hidden = overlap.hides_forward_gathers and overlap.hides_backward_gathers
        begins = hidden and overlap.forward_ahead == overlap.backward_ahead == 2
        if not begins or "gather" in sums.nothing:
            return 0.0, 0.0
        found = np.zeros((2, len(sums.storage)))
        passes, ahead = {"forward": forward, "backward": backward}, ("backward", "forward")
        trains = self.by_pool[0].setting.trains
        pairs = kinds.following if trains else kinds.following_forward
        for number, tables in enumerate(self.by_pool):
            used = kinds.shares[number] > 0
            each = zip(found, ("gather", "again"), pairs, ahead, strict=True)
            for late, gathered, following, first in each:
                own = {k: n for k, n in following.items() if not chunks_begin or k[0] == first}
                outlasts = self._outlasting_gathers_s(tables, gathered, own, passes)
                np.maximum(late, outlasts * used[kinds.kind], out=late)
        return found[0], found[1]

    def _outlasting_gathers_s(
        self,
        tables: BlockCostTable,
        gathered: str,
        following: Following,
        passes: Mapping[str, PassTimes],
    ) -> Floats:
        """Return the same for the gathers of one pass, with the costs of one pool. [s]"""
        sums, found = self._sums, np.zeros(len(self._sums.storage))
        for (own, program, other), counts in following.items():
            span, moved = passes[own], getattr(tables, gathered)[other]
            computed = getattr(tables, own)[program]
            if moved.max() <= computed.min():
                continue
            copied = sum(getattr(tables, name)[program] for name in _COPIED[own])
            computed = computed[sums.block] + copied[sums.storage]
            moved = (1.0 - span.slowed("gather")) * moved[sums.storage]
            outlasts = np.maximum(moved - (1.0 - span.waited_share("gather")) * computed, 0.0)
            found += counts[self.kinds.kind] * outlasts
        return found

    def begin_s(self, forward: PassTimes, backward: PassTimes) -> Floats:
        """Return the exposed gathers of the first blocks of a stage's chunks, `(rows,)`. [s]

        A stage that waits for what its chunk computes on has them meanwhile.
        """
        kinds, found = self.kinds, np.zeros(len(self._sums.storage))
        for name, ends in zip(self._exposed_gathers, kinds.ends_of_chunks, strict=True):
            if name:
                tables = [getattr(each, name) for each in self.by_pool]
                found += self._sums.storage_rows(slowest(ends, tables, kinds.shares))
        return found + sum(self.gathers_s(forward, backward, chunks_begin=True))

    def chunks_begin_s(self, pipeline: int, own: Integers) -> Floats:
        """Return the same before forward and backward of each chunk, `(2, chunks, kinds, n)`. [s]

        Args:
            own: Strategies of the pipeline.
        """
        contents, at = self.kinds.helds[pipeline], self.by_pool[0].storage_of[own]
        ends = [[(each[0], each[-1]) for each in chunks] for chunks in contents.programs]
        found = np.zeros((2, *np.array(ends).shape[1::-1], len(own)))
        used = contents.pools[:, contents.first, None] > 0
        for late, name, blocks in zip(found, self._exposed_gathers, np.array(ends).T, strict=True):
            for tables, has in zip(self.by_pool, used, strict=True):
                if name:
                    np.maximum(late, getattr(tables, name)[:, at][blocks] * has, out=late)
        return found

    @property
    def _exposed_gathers(self) -> tuple[str, str]:
        """Tables of gathers that forward and backward wait for, empty for none."""
        hides = self._overlap.hides_forward_gathers, self._overlap.hides_backward_gathers
        names = ("gather", "again")
        return tuple(  # type: ignore[return-value]
            "" if hidden or name in self._sums.nothing else name
            for name, hidden in zip(names, hides, strict=True)
        )

    def come_ahead_s(self, name: str) -> Floats:
        """Return the time of traffic that a stage may have before its first forward, `(rows,)`."""
        kinds, depth = self.kinds, self._overlap.forward_ahead
        chunks, which = kinds.first_chunks
        ahead = np.zeros((len(chunks), kinds.counts.shape[1]))
        for number, programs in enumerate(chunks):
            np.add.at(ahead[number], list(programs[:depth]), 1.0)
        found = slowest(ahead[which], [getattr(t, name) for t in self.by_pool], kinds.shares)
        return self._sums.storage_rows(found)

    def earlier_s(self, backward: PassTimes) -> Floats:
        """Return how much earlier than the first stage others end, `(rows,)`. [s]

        By the last backward of a chunk in each stage before it; where weight gradients are
        deferred, these fill that time.
        """
        kinds = self.kinds
        each_s = kinds.over_stages(backward.span) / (kinds.stages * kinds.virtual)
        return np.asarray(kinds.stage * np.where(kinds.is_split, 0.0, each_s)[kinds.strategy])

    @cached_property
    def is_in_turn(self) -> Flags:
        """Whether each stage has one chunk, which works both ways in turn, `(n,)`."""
        return np.asarray(~self.kinds.is_split & (self.kinds.virtual == 1))

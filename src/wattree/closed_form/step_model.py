"""Time of whole steps from the costs of their blocks, and the models of their other figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.borders import Borders
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.pipeline import SPLIT
from wattree.closed_form.slowdown import OverlapSlowdown
from wattree.closed_form.split_memory import PARTS
from wattree.closed_form.split_time import SlotTimes, pair_s, split_time_s
from wattree.closed_form.stage_energy import StageEnergy, Timed
from wattree.closed_form.stage_kinds import StageKinds, slowest
from wattree.closed_form.stage_memory import StageMemory
from wattree.closed_form.stage_sums import StageSums
from wattree.closed_form.stragglers import slowed_kinds
from wattree.cost.colocation import barrier_s
from wattree.cost.update import update_bytes_per_s
from wattree.lowering.movement import bucket_bytes


class StepModel:
    """Figures of whole steps, by formulas over the costs of their blocks.

    Where pools differ, a stage takes as long as the slowest of those that its ranks lie on.

    Args:
        tables: Costs of blocks, by pool.
        kinds: What the stages of the strategies hold.

    Attributes:
        memory: What the ranks of each kind of stage hold.
        energy: What they draw.
    """

    def __init__(self, tables: Sequence[BlockCostTable], kinds: StageKinds) -> None:
        self.by_pool, self.kinds = tables, kinds
        self.tables = tables[0]  # what depends on no device
        self._overlap = self.tables.overlap
        self._borders = Borders(tables, hidden=self._overlap.pipeline)
        self._inputs = Inputs(tables)
        self._sums = StageSums(tables, kinds)
        self.memory = StageMemory(self._sums, self._inputs)
        software, state_bytes = self.tables.setting.software, self.tables.state_bytes
        self._update_rates = [
            update_bytes_per_s(state_bytes, software, self.tables.update_rates, tier2=tier2)
            for tier2 in (False, True)
        ]
        self._micro_batches = self.tables.degrees.micro_batches / kinds.copies
        self._behind = slowed_kinds(self.tables.setting.job, self.tables.ranks, kinds)
        self.energy = StageEnergy(self._sums, self._inputs, self._behind)
        self._slowdown = OverlapSlowdown.of(self.tables.rates)
        self._slow = self.tables.slowdown[kinds.strategy]  # of computation
        if self._behind is not None:
            self._slow = self._slow * self._behind.slowest

    def timed(self) -> Timed:
        """Return the step time of all strategies, and what their energy depends on."""
        slowdown, kinds = self._slowdown, self.kinds
        forward, backward, gather, again, every, exposed, spun = self._spans()
        waited = self._inputs.waited_s(kinds)
        forward_pass = waited + np.maximum(
            forward + slowdown.lost_s(gather), gather + slowdown.waited_s(forward)
        )
        backward_pass = np.maximum(
            backward + slowdown.lost_s(again + every), again + slowdown.waited_s(backward)
        )
        # Gathers must arrive in time; reductions may trail into the next micro-batch.
        compute, moved = forward_pass + backward_pass, gather + again + every
        traffic = moved + slowdown.waited_s(forward + backward)
        both = np.maximum(compute, traffic) + sum(exposed)
        trailing = again + every + slowdown.waited_s(backward) - backward_pass
        several = self._micro_batches[kinds.strategy]
        # The first gather and the last reductions add to computation. Where traffic is what takes
        # the time, it has them already, but waits for the first pass that has any.
        late = np.maximum(trailing, 0.0) + self._first_gather()[kinds.strategy]
        idle = np.where(gather > 0.0, 0.0, forward_pass)
        ends = np.maximum(several * compute + late, several * traffic + idle)
        ends = ends - several * np.maximum(compute, traffic)
        first = self._first_s(both, forward, gather)
        time_s = self._piped_s(both, first)
        if kinds.is_split.any():
            stretch = np.maximum(traffic / np.maximum(compute, 1e-30), 1.0)
            passes = stretch * forward_pass, stretch * backward_pass
            time_s = np.where(kinds.is_split, self._split_s(passes, exposed), time_s)
            updated = kinds.most(self._sums.of_storage("updated"))
            time_s = time_s + self._borders.mirror_s(kinds, updated)
        time_s = time_s + kinds.most(ends)
        time_s = time_s + self._borders.time_s(kinds, self._micro_batches)
        computing, busy = forward + backward, np.maximum(compute - waited, traffic)
        overlapped = several * slowdown.overlapped_s(computing, moved, busy)
        if kinds.is_split.any():  # their last work is of weight gradients alone
            weight = self._sums.of_blocks("deferred") * self._slow
            backward = np.where(kinds.is_split[kinds.strategy], weight, backward)
        time_s, late_s, overlapped = self._with_once(time_s, overlapped, (backward, forward))
        update = self._update_s()
        time_s = time_s + update + self._barrier_s() + self.tables.rates.step_overhead_s
        return Timed(
            step=np.maximum(time_s, self._inputs.period_s(kinds)),
            update=update[kinds.strategy] + self._slow * self._sums.of_storage("copied_once"),
            computing=computing,
            traffic=several * spun + late_s,
            overlapped=overlapped,
        )

    def _spans(self) -> MicroBatchTimes:
        """Return what a micro-batch takes in each kind of stage."""
        overlap, gathers_again = self._overlap, self.tables.gathers_again
        forward, backward = (self._span_s(name) for name in ("forward", "backward"))
        names = ("gather", "every", "copied_out", "copied_in")
        gather, every, out, into = map(self._sums.of_storage, names)
        again = gather if gathers_again else 0.0 * gather
        out, into = self._slow * out, self._slow * into
        forward, backward = forward + out, backward + into + gathers_again * out
        spun = gather + again + every
        ahead = behind = after = 0.0 * gather  # traffic that nothing hides
        # A gather that waits for the block before starts with its bucket, and shares links.
        is_alone = overlap.in_line & {"gradients", "parameters"} or "gather" in self._sums.nothing
        if gathers_again and not is_alone:
            spun = spun + 2.0 * self._buckets.crowding
        if not overlap.hides_forward_gathers:
            ahead, gather = gather, 0.0 * gather
        if not overlap.hides_backward_gathers:
            behind, again = again, 0.0 * again
            if overlap.hides_gradients and overlap.reshard_after_forward:
                # Where weight gradients are deferred, no gathers run alongside their reductions.
                defers = (self.kinds.is_split & ~self.kinds.pairs)[self.kinds.strategy]
                behind = behind + np.where(defers, 0.0, self._buckets.crowding)
        if not overlap.hides_gradients:
            # In line, all are waited for. Otherwise the next block waits for a bucket, but what
            # comes after a chunk does not wait for its last one.
            share = self._buckets.inner / np.maximum(self._buckets.whole, 1e-30)
            after = every * (1.0 if overlap.gradients else share)
            every = every - after
        exposed = Exposed(ahead, behind, after)
        return MicroBatchTimes(forward, backward, gather, again, every, exposed, spun)

    def _first_s(self, both: Floats, forward: Floats, gather: Floats) -> Floats:
        """Return the time of the first micro-batch in stages behind the first, `(rows,)`. [s]

        While they wait for it they gather the parameters of their first blocks. The other gathers
        wait for the first block, and the last block for them. In training, where backward returns
        through all stages, gathers are too rarely the longest to matter.

        Args:
            both: Time of a later micro-batch in a stage. [s]
            forward, gather: Its computation and its gathers that computation hides. [s]
        """
        kinds, depth, slowdown = self.kinds, self._overlap.forward_ahead, self._slowdown
        if self.tables.setting.trains or "gather" in self._sums.nothing:
            return both
        ahead, ends = np.zeros_like(kinds.counts), np.zeros_like(kinds.counts)
        chunks = [chunks[0] for contents in kinds.helds for chunks in contents.programs]
        for kind, programs in enumerate(chunks):
            np.add.at(ahead[kind], list(programs[:depth]), 1.0)
            if len(programs) > depth:
                np.add.at(ends[kind], [programs[0], programs[-1]], 1.0)
        gathered, alone = (
            slowest(counts, [getattr(each, name) for each in self.by_pool], kinds.shares)
            for counts, name in ((ahead, "gather"), (ends, "forward"))
        )
        ahead, ends = gathered[kinds.kind, self._sums.storage], alone[kinds.kind, self._sums.block]
        if not self._overlap.hides_forward_gathers:
            return both - ahead
        saved = np.maximum(ahead + slowdown.waited_s(ends) - ends, 0.0)
        return self._inputs.waited_s(kinds) + np.maximum(
            forward + slowdown.lost_s(gather - ahead), gather + slowdown.waited_s(forward) - saved
        )

    def _piped_s(self, both: Floats, first: Floats) -> Floats:
        """Return the time of all micro-batches through the pipelines, `(n,)`. [s]

        Args:
            both: Time of a micro-batch in a stage. [s]
            first: Time of the first one in a stage behind the first. [s]
        """
        kinds, several = self.kinds, self._micro_batches
        longest, at_first = kinds.most(both), kinds.first_row(kinds.stage == 0)
        once_through = kinds.over_stages(first) + (both - first)[at_first]
        # Chunks of a stage that differ in size even out: forwards run in turn with backwards of
        # other chunks.
        time_s = several * longest + (once_through - longest) / kinds.virtual
        # With fewer micro-batches than stages the first one comes back to an idle stage.
        alone = once_through + (several - 1) * longest / kinds.virtual
        return np.where((kinds.virtual > 1) & (several < kinds.stages), alone, time_s)

    def _split_s(self, passes: tuple[Floats, Floats], exposed: Exposed) -> Floats:
        """Return the same of pipelines that defer weight gradients, 0 for others, `(n,)`. [s]

        A chunk takes its part of what computation takes in its stage.

        Args:
            passes: A micro-batch's forward and backward in a stage. [s]
            exposed: Traffic that they wait for.
        """
        kinds, tables, sums = self.kinds, self.tables, self._sums
        ahead, after = (exposed.forward, exposed.backward), (0.0 * exposed.after, exposed.after)
        forward, backward = (
            own + gathers + reductions
            for own, gathers, reductions in zip(passes, ahead, after, strict=True)
        )
        weight = sums.of_blocks("deferred") * self._slow + exposed.after
        in_line, computed = self._overlap.in_line, ("forward_alone", "backward_alone")
        gaps = [  # what is in line leaves none
            np.maximum(own - sums.of_blocks(name) * self._slow, 0.0) * ~self._is_in_line
            + ("parameters" not in in_line) * gathers
            + ("gradients" not in in_line) * reductions
            for own, name, gathers, reductions in zip(passes, computed, ahead, after, strict=True)
        ]
        names = ("forward", "backward", "deferred", "forward", "backward")
        shares = {name: kinds.chunk_shares(getattr(tables, name)) for name in names}
        interleaved = self.memory.takes_turns()
        found, transfer = np.zeros(len(kinds.pipeline)), self._borders.transfer_s(kinds)
        for pipeline, contents in enumerate(kinds.helds):
            own, rows = kinds.rows(pipeline)
            if contents.schedule not in SPLIT or not len(own):
                continue
            parts, at = PARTS[contents.virtual], (kinds.kind[rows], tables.block_of[own])
            front, behind, late, *idle = (
                shares[name][parts][:, *at] * whole[rows]
                for name, whole in zip(names, (forward, backward, weight, *gaps), strict=True)
            )
            times = SlotTimes(
                forward=front,
                backward=behind,
                weight=late,
                pair=pair_s((front, behind), (idle[0], idle[1]), self._slowdown),
                interleaved=interleaved[own],
                transfer=transfer[own],
            )
            several, blocking = tables.degrees.micro_batches[own], not self._borders.hidden
            found[own] = split_time_s(contents, times, several, blocking=blocking)
        return found

    @property
    def _is_in_line(self) -> Flags:
        """Whether collectives of blocks run on the stream of the computation, `(rows,)`."""
        axes, found = self.tables.degrees.axes, np.zeros(len(self.kinds.pipeline), dtype=bool)
        for kind, axis in (("tensor", "tp"), ("context", "cp")):
            if kind in self._overlap.in_line:
                found |= axes[axis] > 1
        return found[self.kinds.strategy]

    @cached_property
    def _buckets(self) -> Buckets:
        """The buckets of gradients of each micro-batch, by kind of stage, `(rows,)` each."""
        if "every" in self._sums.nothing:
            nothing = np.zeros(len(self._sums.storage))
            return Buckets(nothing, nothing, nothing)
        of_chunk = cache(lambda programs: buckets_of(self.tables, programs))  # most are alike
        by_kind = [
            np.sum([of_chunk(programs) for programs in chunks], axis=0)
            for contents in self.kinds.helds
            for chunks in contents.programs
        ]
        found = np.stack(by_kind, axis=1)[:, self.kinds.kind, self._sums.storage]
        return Buckets(*found)

    def _with_once(
        self, time_s: Floats, overlapped: Floats, passes: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """Return the time with the reductions and gathers that occur once per step. [s]

        Then what these take, and the overlap with that of theirs, `(rows,)` each. [s]

        Args:
            time_s: Without them, `(n,)`. [s]
            overlapped: Without theirs. [s]
            passes: The last backward and the first forward, which may hide them. [s]
        """
        slowdown, overlap = self._slowdown, self._overlap
        names, hides = ("once", "update"), (overlap.hides_gradients, overlap.hides_updates)
        late_s = np.zeros_like(overlapped)
        for name, span, hidden in zip(names, passes, hides, strict=True):
            if name not in self._sums.nothing:
                traffic = self._sums.of_storage(name)
                hidden_s = hidden * slowdown.hidden_s(traffic, span)
                late_s, overlapped = late_s + traffic, overlapped + hidden_s
                time_s = time_s + self.kinds.most(traffic - slowdown.saved_s(hidden_s))
        copied = self.kinds.most(self._sums.of_storage("copied_once"))
        return time_s + self.tables.slowdown * copied, late_s, overlapped

    def _span_s(self, name: str) -> Floats:
        """Return the time of a micro-batch on the slowest rank of each kind of stage. [s]"""
        span = self._sums.of_blocks(name)
        if self._behind is not None:
            span = span + self._sums.of_blocks(f"{name}_alone") * (self._behind.slowest - 1.0)
        return np.asarray(span * self.tables.slowdown[self.kinds.strategy])

    def _update_s(self) -> Floats:
        """Return the time of the longest update of a stage's parameters. [s]"""
        kinds, updated = self.kinds, self._sums.of_storage("updated")
        if self._behind is not None:
            updated = updated * self._behind.slowest
        state_bytes = self.tables.state_bytes
        if len(self.by_pool) == 1:
            traffic = self.tables.update_bytes(kinds.most(updated))
            near, tier2 = self._update_rates
            if self.tables.update_rates.expanded is None:
                return np.asarray(traffic / near)
            near = np.asarray(near)[self.tables.storage_of]
            if "tier2_updated" in self._sums.nothing:
                return np.asarray(traffic / near)
            rows = self.tables.update_bytes(kinds.most(self._sums.of_storage("tier2_updated")))
            return np.asarray(traffic / near + rows / tier2)
        slowness = [1 / each.rates.update_bytes_per_s(state_bytes) for each in self.by_pool]
        used = np.where(kinds.shares > 0, np.array(slowness)[:, None], -np.inf)
        traffic = self.tables.update_bytes(updated)
        return kinds.most(traffic * used.max(axis=0)[kinds.kind])

    def _barrier_s(self) -> Floats:
        """Return the wait of a process for others of its device at the end of a step. [s]"""
        micro_batches = self.tables.degrees.micro_batches
        if (processes := self.tables.options.colocation.processes) == 1:
            return np.zeros(len(micro_batches))
        variance = self.kinds.most(self._sums.of_blocks("variance_s2"))
        return barrier_s(micro_batches * variance, processes=processes)

    def _first_gather(self) -> Floats:
        """Return the exposed gather of the first block's parameters, `(n,)`. [s]"""
        gathers = [each.gather[0, self.tables.storage_of] for each in self.by_pool]
        if len(gathers) == 1:
            return np.asarray(gathers[0])
        used = np.array([contents.pools[:, 0] > 0 for contents in self.kinds.helds]).T
        both = zip(gathers, used[:, self.kinds.pipeline], strict=True)
        return np.asarray(np.max([np.where(has, each, -np.inf) for each, has in both], axis=0))


class Exposed(NamedTuple):
    """Traffic that a micro-batch waits for in each kind of stage, `(rows,)` each. [s]

    Attributes:
        forward, backward: Of parameters.
        after: Of gradients.
    """

    forward: Floats
    backward: Floats
    after: Floats


class MicroBatchTimes(NamedTuple):
    """What a micro-batch takes in each kind of stage, `(rows,)` each. [s]

    Attributes:
        forward, backward: Computation, with copies of shards.
        gather, again, every: Gathers before forward and backward and reductions, which computation
            may hide.
        exposed: Traffic that nothing hides.
        spun: All traffic, counted twice where two collectives share links.
    """

    forward: Floats
    backward: Floats
    gather: Floats
    again: Floats
    every: Floats
    exposed: Exposed
    spun: Floats


class Buckets(NamedTuple):
    """Time of the buckets of a micro-batch, `(distinct,)` each. [s]

    Attributes:
        inner: Of all but the last of each chunk.
        crowding: Of inner ones together with the gather of the block that comes next.
    """

    inner: Floats
    whole: Floats
    crowding: Floats


def buckets_of(tables: BlockCostTable, programs: Sequence[int]) -> Buckets:
    """Return the buckets of a chunk.

    Args:
        programs: Of the chunk, in model order.
    """
    full = bucket_bytes(tables.options.traffic)
    time_s = size = inner = crowding = np.zeros(tables.every.shape[1])
    for following, number in reversed(list(pairwise(programs))):
        time_s, size = time_s + tables.every[number], size + tables.reduced_bytes[number]
        leaves = size >= full
        inner = inner + np.where(leaves, time_s, 0.0)
        together = np.minimum(time_s, tables.gather[following])
        crowding = crowding + np.where(leaves, together, 0.0)
        time_s, size = np.where(leaves, 0.0, time_s), np.where(leaves, 0.0, size)
    whole = sum((tables.every[number] for number in programs), np.zeros_like(inner))
    return Buckets(inner=inner, whole=whole, crowding=crowding)

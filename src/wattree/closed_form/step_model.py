"""Time of whole steps from the costs of their blocks, and the models of their other figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.borders import Borders, Transfers
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.late_traffic import LateTraffic
from wattree.closed_form.looped_time import LoopedStages, looped_time_s
from wattree.closed_form.micro_batch import Exposed, MicroBatchTimes, micro_batch_times
from wattree.closed_form.passes import PassTimes, contention
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
from wattree.cost.update import update_bytes_per_s, update_products_s


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
        self._late = LateTraffic(self._sums, self._overlap, self._slow)

    def timed(self) -> Timed:
        """Return the step time of all strategies, and what their energy depends on."""
        kinds = self.kinds
        first_pass, last_pass, gather, again, every, exposed, crowded, spun = self._micro_batch()
        waited = self._inputs.waited_s(kinds)
        ahead, behind = first_pass.waited_s("gather"), last_pass.waited_s("every")
        late_ahead, late_behind = self._late.gathers_s(first_pass, last_pass)
        forward_pass = waited + np.maximum(
            first_pass.span + first_pass.slowed("gather") * gather + late_ahead, gather + ahead
        )
        backward_pass = np.maximum(
            last_pass.span
            + np.maximum(
                last_pass.slowed("gather") * again + last_pass.slowed("every") * every + crowded,
                last_pass.slowed("gather") * again + late_behind,
            ),
            again + behind,
        )
        # Gathers must arrive in time; reductions may trail into the next micro-batch.
        compute, moved = forward_pass + backward_pass, gather + again + every
        traffic = moved + ahead + behind
        both = np.maximum(compute, traffic) + sum(exposed)
        trailing = again + every + behind - backward_pass
        if self._overlap.hides_gradients:
            trailing = np.maximum(trailing, self._late.outlasting_s("every", "backward", last_pass))
        several = self._micro_batches[kinds.strategy]
        # The first gather and the last reductions add to computation. Where traffic is what takes
        # the time, it has them already, but waits for the first pass that has any.
        late = np.maximum(trailing - self._late.earlier_s(last_pass), 0.0)
        late = late + self._first_gather()[kinds.strategy]
        idle = np.where(gather > 0.0, 0.0, forward_pass - ahead)
        ends = np.maximum(several * compute + late, several * traffic + idle)
        ends = ends - several * np.maximum(compute, traffic)
        # Stages behind the first wait for what is computed before them, not for reductions.
        trains = self.tables.setting.trains
        alone = compute + sum(exposed) - self._late.begin_s(first_pass, last_pass)
        first = alone if trains else self._first_s(both, first_pass, gather)
        time_s = self._piped_s(both, first, forward_pass + exposed.forward)
        if kinds.is_split.any():
            split_s = self._split_s((forward_pass, backward_pass), exposed)
            split_s = np.maximum(split_s, kinds.most(several * traffic))
            time_s = np.where(kinds.is_split, split_s, time_s)
            updated = kinds.most(self._sums.of_storage("updated"))
            time_s = time_s + self._borders.mirror_s(kinds, updated)
        time_s = time_s + kinds.most(ends)
        computing, busy = first_pass.span + last_pass.span, np.maximum(compute - waited, traffic)
        slowdown = self._sums.slowdown("gather", "every")
        overlapped = several * slowdown.overlapped_s(computing, moved, busy)
        time_s, late_s, overlapped = self._with_once(time_s, overlapped, (last_pass, first_pass))
        update = self._update_s()
        time_s = time_s + update + self._barrier_s() + self.tables.rates.step_overhead_s
        return Timed(
            step=np.maximum(time_s, self._inputs.period_s(kinds)),
            update=update[kinds.strategy] + self._slow * self._sums.of_storage("copied_once"),
            computing=computing,
            traffic=several * (spun + self._sending_s) + late_s,
            overlapped=overlapped,
        )

    def _micro_batch(self) -> MicroBatchTimes:
        """Return what a micro-batch takes in each kind of stage."""
        sums, slow = self._sums, self._slow
        out, again, into = map(sums.of_storage, ("copied_out", "copied_again", "copied_in"))
        shared, slowdown, passes = contention(sums), cache(sums.slowdown), []
        for name, copied in (("forward", out), ("backward", into + again)):
            span = computed = self._span_s(name) + slow * copied
            moved: Floats | float = 0.0
            if "block_moved" not in sums.nothing:
                computed = slow * (sums.of_blocks(f"{name}_alone") + copied)
                moved = sums.of_blocks(f"{name}_moved")
            passes.append(
                PassTimes(
                    span=span,
                    computed=computed,
                    moved=moved,
                    contention=shared,
                    slowdown=slowdown,
                )
            )
        return micro_batch_times(sums, self._overlap, *passes)

    def _first_s(self, both: Floats, forward: PassTimes, gather: Floats) -> Floats:
        """Return the time of the first micro-batch in stages behind the first, `(rows,)`. [s]

        While they wait for it they gather the parameters of their first blocks. The other gathers
        wait for the first block, and the last block for them. In training, where backward returns
        through all stages, gathers are too rarely the longest to matter.

        Args:
            both: Time of a later micro-batch in a stage. [s]
            forward, gather: Its computation and its gathers that computation hides. [s]
        """
        kinds, depth, slowdown = (
            self.kinds,
            self._overlap.forward_ahead,
            forward.slowdown("gather"),
        )
        if "gather" in self._sums.nothing:
            return both
        ahead, ends = self._late.come_ahead_s("gather"), np.zeros_like(kinds.counts)
        chunks, which = kinds.first_chunks
        for kind, number in enumerate(which.tolist()):
            if len(programs := chunks[number]) > depth:
                np.add.at(ends[kind], [programs[0], programs[-1]], 1.0)
        alone = slowest(ends, [each.forward for each in self.by_pool], kinds.shares)
        ends = self._sums.block_rows(alone)
        if not self._overlap.hides_forward_gathers:
            return both - ahead
        saved = np.maximum(ahead + slowdown.waited_s(ends) - ends, 0.0)
        return self._inputs.waited_s(kinds) + np.maximum(
            forward.span + forward.slowed("gather") * (gather - ahead),
            gather + forward.waited_s("gather") - saved,
        )

    def _piped_s(self, both: Floats, first: Floats, forward: Floats) -> Floats:
        """Return the time of all micro-batches through the pipelines, `(n,)`. [s]

        Args:
            both: Time of a micro-batch in a stage. [s]
            first: Time of the first one in a stage behind the first. [s]
            forward: Of a micro-batch, its forward. [s]
        """
        kinds, at_first = self.kinds, self.kinds.first_row(self.kinds.stage == 0)
        longest = kinds.most(both)
        own = LoopedStages(
            longest=longest,
            through=kinds.over_stages(first) + (both - first)[at_first],
            forward=np.minimum(kinds.most(forward) / np.maximum(longest, 1e-30), 1.0),
            stages=kinds.stages,
            virtual=kinds.virtual,
            in_phases=kinds.in_phases,
        )
        hidden = self._borders.hidden
        return looped_time_s(own, self._micro_batches, self._transfers, hidden=hidden)

    @cached_property
    def _transfers(self) -> Transfers:
        return self._borders.transfers(self.kinds)

    @property
    def _sending_s(self) -> Floats:
        """How long a stage sends tensors and gradients of a micro-batch, `(rows,)`; a mean. [s]"""
        kinds, found = self.kinds, self._transfers
        # Orders that defer weight gradients turn around in a stage.
        back = np.where(kinds.is_split, 0.0, kinds.virtual - 1.0) * found.longest
        return np.asarray(2.0 * (kinds.virtual * found.through + back) / kinds.stages)[
            kinds.strategy
        ]

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
        found, shared = np.zeros(len(kinds.pipeline)), self._borders.are_alike(kinds)
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
                begin=self._late.chunks_begin_s(pipeline, own),
                pair=pair_s((front, behind), (idle[0], idle[1]), self._slowdown),
                interleaved=interleaved[own],
                transfer=self._borders.hops_s(kinds, own),
                shared=shared[own],
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

    def _with_once(
        self, time_s: Floats, overlapped: Floats, passes: tuple[PassTimes, PassTimes]
    ) -> tuple[Floats, Floats, Floats]:
        """Return the time with the reductions and gathers that occur once per step. [s]

        Then what these take, and the overlap with that of theirs, `(rows,)` each. [s] Stages end
        one after the other, the first one last.

        Args:
            time_s: Without them, `(n,)`. [s]
            overlapped: Without theirs. [s]
            passes: The last backward and the first forward, which may hide them. [s]
        """
        overlap, late_s = self._overlap, np.zeros_like(overlapped)
        hides = overlap.hides_gradients, overlap.hides_updates
        spans = zip(("once", "update"), ("backward", "forward"), passes, hides, strict=True)
        for name, own, span, hidden in spans:
            if name not in self._sums.nothing:
                added = traffic = self._sums.of_storage(name)
                late_s = late_s + traffic
                if hidden:
                    outlasts = self._late.outlasting_s(name, own, span)
                    added = span.slowed(name) * traffic + outlasts
                    overlapped = overlapped + span.computed_share * np.maximum(
                        traffic - outlasts, 0.0
                    )
                if name == "once":
                    added = np.maximum(added - self._late.earlier_s(passes[0]), 0.0)
                most = self.kinds.most(added)
                if name == "update" and hidden:
                    # Stages begin one after the other, those behind with what came meanwhile.
                    came = (self.kinds.stage > 0) * self._late.come_ahead_s(name)
                    each = self.kinds.over_stages(np.maximum(added - came, 0.0))
                    most = np.where(self._late.is_in_turn, each, most)
                time_s = time_s + most
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
        kinds, tables, behind = self.kinds, self.tables, self._behind
        slow = 1.0 if behind is None else behind.slowest
        updated, wider, flop = (
            self._sums.of_storage(name) * slow for name in ("updated", "wider_state", "update_flop")
        )
        traffic, state_bytes = tables.update_bytes(updated, wider), tables.state_bytes
        processes = tables.options.colocation.processes
        if not tables.setting.job.cluster.is_mixed:
            near, tier2 = self._update_rates
            products = update_products_s(flop, tables.rates, processes=processes)
            if tables.update_rates.expanded is None:
                return kinds.most(traffic / near + products)
            own = kinds.most(traffic / np.asarray(near)[self._sums.storage] + products)
            if "tier2_updated" in self._sums.nothing:
                return own
            rows = tables.update_bytes(kinds.most(self._sums.of_storage("tier2_updated")))
            return np.asarray(own + rows / tier2)
        slowness = np.array(
            [
                (
                    1 / each.rates.update_bytes_per_s(state_bytes),
                    update_products_s(1.0, each.rates, processes=processes),
                )
                for each in self.by_pool
            ]
        )
        used = np.where(kinds.shares[:, :, None] > 0, slowness[:, None, :], -np.inf).max(axis=0)
        per_byte, per_flop = used[kinds.kind].T
        return kinds.most(traffic * per_byte + flop * per_flop)

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

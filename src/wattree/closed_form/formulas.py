"""Step time, memory, energy and power of whole steps, from the costs of their blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.energy_use import standing_w
from wattree.accounts.overhead import process_bytes
from wattree.closed_form.borders import Borders
from wattree.closed_form.buckets import Buckets, buckets_of
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.overlap_slowdown import Beside
from wattree.closed_form.pipeline import SPLIT
from wattree.closed_form.split_memory import split_live_bytes
from wattree.closed_form.stage_kinds import StageKinds, slowest
from wattree.closed_form.stragglers import slowed_kinds
from wattree.closed_form.tables import Tables
from wattree.cost.colocation import barrier_s
from wattree.cost.update import update_bytes_per_s

__all__ = ["Formulas"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Tables of parameters that are zero unless something is sharded, reduced or offloaded.
_OFTEN_NOTHING = (
    "gather",
    "every",
    "once",
    "update",
    "gathered",
    "staged",
    "often_j",
    "far_resident",
    "far_kept",
    "far_updated",
)


class Formulas:
    """Figures of whole steps, by formulas over the costs of their blocks.

    Where pools differ, a stage takes as long as the slowest of those that its ranks lie on.

    Args:
        tables: Costs of blocks, by pool.
        kinds: What the stages of the strategies hold.
    """

    def __init__(self, tables: Sequence[Tables], kinds: StageKinds) -> None:
        self.by_pool, self.kinds = tables, kinds
        self.tables = tables[0]  # what depends on no device
        self._overlap = self.tables.overlap
        self._borders = Borders(tables, hidden=self._overlap.pipeline)
        self._inputs = Inputs(tables)
        software, state_bytes = self.tables.setting.software, self.tables.state_bytes
        self._update_rates = [
            update_bytes_per_s(state_bytes, software, self.tables.update_rates, far=far)
            for far in (False, True)
        ]
        micro_batches = self.tables.degrees.micro_batches
        self._micro_batches = micro_batches / kinds.copies
        self._block = self.tables.block_of[kinds.strategy]
        self._storage = self.tables.storage_of[kinds.strategy]
        ranks = self.tables.ranks
        self._behind = slowed_kinds(self.tables.setting.job, ranks, kinds)
        # Much is nothing under most options.
        self._nothing = frozenset(
            name for name in _OFTEN_NOTHING if not any(getattr(each, name).any() for each in tables)
        )

    def _of_blocks(self, name: str) -> Floats:
        """Return a table of blocks summed over those of each kind of stage, `(rows,)`."""
        return np.asarray(self._slowest(name)[self.kinds.kind, self._block])

    def _of_storage(self, name: str) -> Floats:
        """Return a table of parameters summed over the blocks of each kind of stage."""
        if name in self._nothing:
            return np.zeros(len(self._storage))
        return np.asarray(self._slowest(name)[self.kinds.kind, self._storage])

    def _slowest(self, name: str) -> Floats:
        """Return `table` of the slowest pool of each kind of stage, `(kinds, distinct)`."""
        kinds = self.kinds
        return slowest(kinds.counts, [getattr(each, name) for each in self.by_pool], kinds.shares)

    def _over_pools(self, name: str) -> Floats:
        """Return `table` averaged over the ranks of each kind of stage, `(kinds, distinct)`."""
        sums = [self.kinds.counts @ getattr(tables, name) for tables in self.by_pool]
        if len(sums) == 1:
            return np.asarray(sums[0])
        both = zip(self.kinds.shares[:, :, None], sums, strict=True)
        return np.asarray(sum(share * part for share, part in both))

    def step_time_s(self) -> Floats:
        """Return the step time of all strategies, `(n,)`. [s]"""
        rates, overlap, kinds = self.tables.rates, self._overlap, self.kinds
        slow = self.tables.slowdown[kinds.strategy]
        if self._behind is not None:
            slow = slow * self._behind.slowest
        forward, backward = (self._span_s(name) for name in ("forward", "backward"))
        gather, every = (self._of_storage(name) for name in ("gather", "every"))
        again = gather if overlap.reshard_after_forward else 0.0 * gather
        in_line = 0.0 * gather  # traffic that nothing hides
        if not overlap.hides_forward_gathers:
            in_line, gather = in_line + gather, 0.0 * gather
        buckets = self._buckets()
        if not overlap.hides_backward_gathers:
            in_line, again = in_line + again, 0.0 * again
            # A gather that waits for the block before starts with its bucket, and shares links.
            if overlap.hides_gradients and overlap.reshard_after_forward:
                in_line = in_line + buckets.crowding
        if not overlap.hides_gradients:
            # In line, all are waited for. Otherwise the next block waits for a bucket, but what
            # comes after a chunk does not wait for its last one.
            share = buckets.inner / np.maximum(buckets.whole, 1e-30)
            exposed = every * (1.0 if overlap.gradients else share)
            in_line, every = in_line + exposed, every - exposed
        beside = Beside(rates.overlap_compute_rate, rates.overlap_communication_rate)
        forward_pass = self._inputs.waited_s(kinds) + np.maximum(
            forward + beside.lost_s(gather), gather + beside.waited_s(forward)
        )
        backward_pass = np.maximum(
            backward + beside.lost_s(again + every), again + beside.waited_s(backward)
        )
        # Gathers must arrive in time; reductions may trail into the next micro-batch.
        compute = forward_pass + backward_pass
        traffic = gather + again + every + beside.waited_s(forward + backward)
        both = np.maximum(compute, traffic) + in_line
        trailing = again + every + beside.waited_s(backward) - backward_pass
        several = self._micro_batches[kinds.strategy]
        # The first gather and the last reductions add to computation. Where traffic is what takes
        # the time, it has them already, but waits for the first pass that has any.
        late = np.maximum(trailing, 0.0) + self._first_gather()[kinds.strategy]
        idle = np.where(gather > 0.0, 0.0, forward_pass)
        ends = np.maximum(several * compute + late, several * traffic + idle)
        ends = ends - several * np.maximum(compute, traffic)
        time_s = self._piped_s(both, slow, (forward_pass, backward_pass)) + kinds.most(ends)
        time_s = time_s + self._borders.time_s(kinds, self._micro_batches)
        time_s = self._with_once(time_s, (backward, forward))
        time_s = time_s + self._ends_s() + rates.step_overhead_s
        return np.asarray(np.maximum(time_s, self._inputs.period_s(kinds)))

    def _piped_s(self, both: Floats, slow: Floats, passes: tuple[Floats, Floats]) -> Floats:
        """Return the time of all micro-batches through the pipelines, `(n,)`. [s]

        Args:
            both: Time of a micro-batch in a stage. [s]
            slow: Factors on computation.
            passes: Its forward and its backward. [s]
        """
        kinds, several = self.kinds, self._micro_batches
        longest, once_through = kinds.most(both), kinds.over_stages(both)
        # Chunks of a stage that differ in size even out: forwards run in turn with backwards of
        # other chunks.
        time_s = several * longest + (once_through - longest) / kinds.virtual
        # With fewer micro-batches than stages the first one comes back to an idle stage.
        alone = once_through + (several - 1) * longest / kinds.virtual
        time_s = np.where((kinds.virtual > 1) & (several < kinds.stages), alone, time_s)
        if not kinds.is_split.any():
            return np.asarray(time_s)
        weight = self._of_blocks("deferred") * slow
        parts = (passes[0], passes[1] - weight, weight)
        means = [kinds.over_stages(part) / kinds.stages for part in parts]
        split = several * longest + kinds.split_bubble_s(*means)
        return np.asarray(np.where(kinds.is_split, split, time_s))

    def _buckets(self) -> Buckets:
        """Return the buckets of gradients of each micro-batch, by kind of stage, `(rows,)` each."""
        if "every" in self._nothing:
            nothing = np.zeros(len(self._storage))
            return Buckets(nothing, nothing, nothing)
        by_kind = [
            np.sum([buckets_of(self.tables, programs) for programs in chunks], axis=0)
            for held in self.kinds.helds
            for chunks in held.programs
        ]
        found = np.stack(by_kind, axis=1)[:, self.kinds.kind, self._storage]
        return Buckets(*found)

    def _with_once(self, time_s: Floats, passes: tuple[Floats, Floats]) -> Floats:
        """Return the time with reductions and gathers that come once in a step. [s]

        Args:
            time_s: Without them. [s]
            passes: The last backward and the first forward, which may hide them. [s]
        """
        rates, overlap = self.tables.rates, self._overlap
        beside = Beside(rates.overlap_compute_rate, rates.overlap_communication_rate)
        names, hides = ("once", "update"), (overlap.hides_gradients, overlap.hides_updates)
        for name, span, hidden in zip(names, passes, hides, strict=True):
            if name not in self._nothing:
                added_s = beside.added_s(self._of_storage(name), span, overlap=hidden)
                time_s = time_s + self.kinds.most(added_s)
        return time_s

    def _span_s(self, name: str) -> Floats:
        """Return the time of a micro-batch in the slowest rank of each kind of stage. [s]"""
        span = self._of_blocks(name)
        if self._behind is not None:
            span = span + self._of_blocks(f"{name}_alone") * (self._behind.slowest - 1.0)
        return np.asarray(span * self.tables.slowdown[self.kinds.strategy])

    def _ends_s(self) -> Floats:
        """Return what ends a step: waiting for others of the device, and the longest update. [s]"""
        return np.asarray(self._update_s() + self._barrier_s())

    def _update_s(self) -> Floats:
        """Return the time of the longest update of a stage's parameters. [s]"""
        kinds, updated = self.kinds, self._of_storage("updated")
        if self._behind is not None:
            updated = updated * self._behind.slowest
        state_bytes = self.tables.state_bytes
        if len(self.by_pool) == 1:
            traffic = self.tables.update_bytes(kinds.most(updated))
            near, far = self._update_rates
            if self.tables.update_rates.expanded is None:
                return np.asarray(traffic / near)
            near = np.asarray(near)[self.tables.storage_of]
            if "far_updated" in self._nothing:
                return np.asarray(traffic / near)
            rows = self.tables.update_bytes(kinds.most(self._of_storage("far_updated")))
            return np.asarray(traffic / near + rows / far)
        slowness = [1 / each.rates.update_bytes_per_s(state_bytes) for each in self.by_pool]
        used = np.where(kinds.shares > 0, np.array(slowness)[:, None], -np.inf)
        traffic = self.tables.update_bytes(updated)
        return kinds.most(traffic * used.max(axis=0)[kinds.kind])

    def _barrier_s(self) -> Floats:
        """Return what a process waits for others of its device at the end of a step. [s]"""
        micro_batches = self.tables.degrees.micro_batches
        if (processes := self.tables.options.colocation.processes) == 1:
            return np.zeros(len(micro_batches))
        variance = self.kinds.most(self._of_blocks("variance_s2"))
        return barrier_s(micro_batches * variance, processes=processes)

    def _first_gather(self) -> Floats:
        """The first block's parameters arrive before anything hides them, `(n,)`."""
        gathers = [each.gather[0, self.tables.storage_of] for each in self.by_pool]
        if len(gathers) == 1:
            return np.asarray(gathers[0])
        used = np.array([held.pools[:, 0] > 0 for held in self.kinds.helds]).T
        both = zip(gathers, used[:, self.kinds.pipeline], strict=True)
        return np.asarray(np.max([np.where(has, each, -np.inf) for each, has in both], axis=0))

    def tensor_bytes(self) -> Floats:
        """Return the peak of live tensors of each kind of stage, `(rows,)`. [B]"""
        kinds, live = self.kinds, np.zeros(len(self._block))
        if not kinds.is_split.all():
            live = self._saved_bytes() + self._working_bytes()
        if kinds.is_split.any():
            live = np.where(kinds.is_split[kinds.strategy], self._split_bytes(), live)
        if not self._overlap.reshard_after_forward:
            live = live + self._of_storage("gathered")
        alone = (kinds.counts > 0) * self.tables.buffers
        alone = alone.max(axis=1)[kinds.kind] * (kinds.stages == 1)[kinds.strategy]
        inputs = self._inputs.device_bytes(kinds)
        return np.asarray(self._of_storage("resident") + (live + alone) + inputs)

    def _saved_bytes(self) -> Floats:
        """Return what each kind of stage keeps for backward when that is most, `(rows,)`. [B]"""
        kinds, alive = self.kinds, self.kinds.in_flight(self.tables.degrees.micro_batches)
        saved = np.zeros(len(self._block))
        for kept, count in zip(
            kinds.kept(self.tables.kept, self.tables.handed), alive, strict=True
        ):
            if count.any():  # a stage with one chunk has only a last one
                saved += kept[kinds.kind, self._block] * count
        return saved

    def _split_bytes(self) -> Floats:
        """Return activations and gathered parameters where weight gradients are made apart. [B]"""
        kinds, tables = self.kinds, self.tables
        live, pieces = np.zeros(len(self._block)), tables.split_memory()
        for pipeline, held in enumerate(kinds.helds):
            own, rows = kinds.rows(pipeline)
            if held.schedule not in SPLIT or not len(own):
                continue
            live[rows] = split_live_bytes(
                held,
                pieces,
                kept=tables.kept,
                handed=tables.handed,
                micro_batches=tables.degrees.micro_batches[own],
                block=tables.block_of[own],
            )
        if self._overlap.gathered_copies and "gathered" not in self._nothing:
            programs = range(kinds.counts.shape[1])
            gathered = [
                np.where((kinds.counts[:, each] > 0)[kinds.kind], self._gathered(each), 0.0)
                for each in programs
            ]
            live = live + np.max(gathered, axis=0)
        return live

    def _gathered(self, program: int) -> Floats:
        """Return the parameters that are gathered while a block is at work, `(rows,)`. [B]"""
        copies, gathered = self._overlap.gathered_copies, self.tables.gathered
        own = min(copies, 2) * gathered[program][self._storage]
        if copies > 2:  # those farther ahead are of the blocks that there are most of
            common = self.kinds.counts.argmax(axis=1)[self.kinds.kind]
            own = own + (copies - 2) * gathered[common, self._storage]
        return np.asarray(own)

    def _working_bytes(self) -> Floats:
        """Return what the hungriest block of each kind of stage needs for a moment. [B]"""
        kinds, tables = self.kinds, self.tables
        held = kinds.counts > 0
        need = tables.moment - kinds.later @ tables.kept  # `(kinds, programs, distinct)`
        need = np.where(held[:, :, None], need, -np.inf)
        copies, stages_gradients = self._overlap.gathered_copies, self._overlap.hides_gradients
        gathers = bool(copies) and "gathered" not in self._nothing
        stages_gradients = stages_gradients and "staged" not in self._nothing
        if not gathers and not stages_gradients:
            return np.asarray(need.max(axis=1)[kinds.kind, self._block])
        working = np.full(len(self._block), -np.inf)
        for program in range(held.shape[1]):
            own = need[:, program][kinds.kind, self._block]
            if gathers:
                own = own + self._gathered(program)
            if stages_gradients:
                own = own + self._staged(program)[kinds.kind, self._storage]
            working = np.maximum(working, own)
        return working

    def _staged(self, program: int) -> Floats:
        """Return the gradients under reduction when a program goes backward, `(kinds, distinct)`.

        They are of what went backward before it.
        """
        later = self.kinds.later[:, program] > 0
        found = np.zeros((len(later), self.tables.staged.shape[1]))
        for before, staged in zip(later.T, self.tables.staged, strict=True):
            found = np.maximum(found, np.where(before[:, None], staged, 0.0))
        return found

    def placed_bytes(self) -> Floats:
        """Return what each kind of stage has in expanded memory by class, `(rows,)`. [B]"""
        kinds, placed = self.kinds, self._of_storage("far_resident")
        if "far_kept" in self._nothing:
            return np.asarray(placed)
        alive = kinds.in_flight(self.tables.degrees.micro_batches)
        for kept, count in zip(kinds.kept(self.tables.far_kept), alive, strict=True):
            placed = placed + kept[kinds.kind, self._block] * count
        return np.asarray(placed)

    def fullest(self, tensors: Floats) -> tuple[Floats, Integers]:
        """Return the live tensors of the fullest rank, and the pool of its device, `(n,)`. [B]

        Args:
            tensors: Of each kind of stage, as `tensor_bytes` returns them. [B]
        """
        kinds = self.kinds
        if len(self.by_pool) == 1:
            return kinds.most(tensors), np.zeros(len(kinds.pipeline), dtype=np.int64)
        calibration = self.tables.setting.calibration
        needs = []
        for tables, share in zip(self.by_pool, kinds.shares, strict=True):
            device = tables.pool.node.device
            need = process_bytes(tensors, calibration, device) / device.memory_bytes
            needs.append(np.where(share[kinds.kind] > 0, need, -np.inf))
        pool = np.argmax([kinds.most(need) for need in needs], axis=0)
        need = np.choose(pool[kinds.strategy], needs)
        row = kinds.first_row(need == kinds.most(need)[kinds.strategy])
        return tensors[row], pool

    def dynamic_j(self) -> Floats:
        """Return the energy above rest of a step on all devices, before PUE, `(n,)`. [J]"""
        kinds, at_block = self.kinds, (self.kinds.kind, self._block)
        at_storage, several = (kinds.kind, self._storage), self._micro_batches[kinds.strategy]
        stage = self._over_pools("block_j")[at_block]
        if "often_j" not in self._nothing:
            stage = stage + self._over_pools("often_j")[at_storage]
        stage = several * stage + self._over_pools("rarely_j")[at_storage]
        if self._behind is not None:
            names = ("forward_alone", "backward_alone")
            alone = sum(self._over_pools(name)[at_block] for name in names)
            added_w = self._behind.added_w(self.tables.rates.power)
            stage = stage + several * alone * (added_w * self.tables.pool.node.host.behind)
        all_j = kinds.over_stages(stage) * self.tables.ranks / kinds.stages
        return np.asarray(all_j + self._inputs.energy_j(kinds))

    def energy_j(self, time_s: Floats, dynamic_j: Floats) -> Floats:
        """Return the energy of a step: what stands through it, and what its work adds. [J]"""
        pue = self.tables.setting.job.cluster.site.pue
        return np.asarray((self._standing_w() * time_s + dynamic_j) * pue)

    def peak_power_w(self) -> Floats:
        """Return the power while every rank runs the hungriest layer. [W]"""
        program = self.tables.program
        layers = {
            number
            for number, instance in zip(program.instances, program.model.instances, strict=True)
            if instance.is_layer
        }
        total_w = self._standing_w()
        left = self.tables.ranks
        for tables in self.by_pool:
            devices = np.minimum(left, tables.pool.devices)
            left = left - devices
            dynamic_w = _hungriest_w(tables, layers)
            total_w = total_w + devices * dynamic_w[tables.block_of]
        return np.asarray(total_w)

    def _standing_w(self) -> Floats:
        """Return what the nodes of each strategy draw whatever runs. [W]"""
        cluster = self.tables.setting.job.cluster
        counts, which = np.unique(self.tables.ranks, return_inverse=True)
        watts = [sum(standing_w(cluster, cluster.pool_nodes(int(count)))) for count in counts]
        return np.array(watts)[which]


def _hungriest_w(tables: Tables, layers: set[int]) -> Floats:
    """Return the power above rest of one device in its hungriest layer. [W]"""
    dynamic_w = np.zeros(tables.forward.shape[1])
    for number in layers:
        for energy, span in (
            (tables.forward_j, tables.forward),
            (tables.backward_j, tables.backward),
        ):
            watts = energy[number] / np.maximum(span[number], 1e-12)
            dynamic_w = np.maximum(dynamic_w, watts)
    return dynamic_w

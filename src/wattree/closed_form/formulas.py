"""Step time, memory, energy and power of whole steps, from the costs of their blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.energy_use import standing_w
from wattree.accounts.memory_use import process_bytes
from wattree.closed_form.borders import Borders
from wattree.closed_form.buckets import Buckets, buckets_of
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.overlap_slowdown import Beside
from wattree.closed_form.pipeline import SPLIT, Held, in_flight, split_bubble_s
from wattree.closed_form.split_memory import split_live_bytes
from wattree.closed_form.stragglers import Stragglers, slowed_stages
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
    """

    def __init__(self, tables: Sequence[Tables]) -> None:
        self.by_pool = tables
        self.tables = tables[0]  # what depends on no device
        self._overlap = self.tables.overlap
        self._borders = Borders(tables, hidden=self._overlap.pipeline)
        self._inputs = Inputs(tables)
        software, state_bytes = self.tables.setting.software, self.tables.state_bytes
        self._update_rates = [
            update_bytes_per_s(state_bytes, software, self.tables.update_rates, far=far)
            for far in (False, True)
        ]
        # Much is nothing under most switches; pipelines are many, and each would add it up again.
        self._nothing = frozenset(
            name for name in _OFTEN_NOTHING if not any(getattr(each, name).any() for each in tables)
        )

    def _of_blocks(self, held: Held, name: str, index: Integers) -> Floats:
        """Return a table of blocks summed over those of each kind of stage, `(kinds, n)`."""
        return self._slowest(held, name).take(self.tables.block_of[index], axis=1)

    def _of_storage(self, held: Held, name: str, index: Integers) -> Floats:
        """Return a table of parameters summed over the blocks of each kind of stage."""
        if name in self._nothing:
            return np.zeros((len(held.first), len(index)))
        return self._slowest(held, name).take(self.tables.storage_of[index], axis=1)

    def _slowest(self, held: Held, name: str) -> Floats:
        """Return `table` of the slowest pool of each kind of stage, `(kinds, distinct)`."""
        sums = [held.counts @ getattr(tables, name) for tables in self.by_pool]
        return sums[0] if len(sums) == 1 else _most(sums, held.pools[:, held.first])

    def _over_pools(self, held: Held, name: str) -> Floats:
        """Return `table` averaged over the ranks of each kind of stage, `(kinds, distinct)`."""
        sums = [held.counts @ getattr(tables, name) for tables in self.by_pool]
        if len(sums) == 1:
            return np.asarray(sums[0])
        shares = held.pools[:, held.first, None]
        return np.asarray(sum(share * part for share, part in zip(shares, sums, strict=True)))

    def step_time_s(self, index: Integers, held: Held) -> Floats:
        """Return the step time of the strategies at `index`, whose stages hold `held`. [s]"""
        rates, overlap = self.tables.rates, self._overlap
        behind = self._behind(held, index)
        slow = self.tables.slowdown[index] * (1.0 if behind is None else behind.slowest)
        forward, backward = (
            self._span_s(held, name, index, behind) for name in ("forward", "backward")
        )
        gather, every = (self._of_storage(held, name, index) for name in ("gather", "every"))
        again = gather if overlap.reshard_after_forward else 0.0 * gather
        in_line = 0.0 * gather  # traffic that nothing hides
        if not overlap.hides_forward_gathers:
            in_line, gather = in_line + gather, 0.0 * gather
        buckets = self._buckets(held, index)
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
        forward_pass = self._inputs.waited_s(index, held) + np.maximum(
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
        micro_batches = self.tables.degrees.micro_batches[index].astype(np.float64)
        micro_batches = micro_batches / held.copies
        # The first gather and the last reductions add to computation. Where traffic is what takes
        # the time, it has them already, but waits for the first pass that has any.
        late = np.maximum(trailing, 0.0) + self._first_gather(index, held)
        idle = np.where(gather > 0.0, 0.0, forward_pass)
        ends = np.maximum(micro_batches * compute + late, micro_batches * traffic + idle)
        ends = ends - micro_batches * np.maximum(compute, traffic)
        slowest = both.max(axis=0)
        stages, virtual = held.stages, held.virtual
        once_through = held.stages_of_kind @ both
        # Chunks of a stage that differ in size even out: forwards run in turn with backwards of
        # other chunks.
        time_s = micro_batches * slowest + (once_through - slowest) / virtual
        if held.schedule in SPLIT:
            weight = self._of_blocks(held, "deferred", index) * slow
            parts = (forward_pass, backward_pass - weight, weight)
            means = [held.stages_of_kind @ part / stages for part in parts]
            time_s = micro_batches * slowest + split_bubble_s(held, *means)
        elif virtual > 1:
            # With fewer micro-batches than stages the first one comes back to an idle stage.
            alone = once_through + (micro_batches - 1) * slowest / virtual
            time_s = np.where(micro_batches < stages, alone, time_s)
        time_s = time_s + ends.max(axis=0)
        if stages > 1:
            time_s = time_s + self._borders.time_s(index, held, virtual, micro_batches)
        time_s = self._with_once(time_s, index, held, (backward, forward))
        time_s = time_s + self._ends_s(index, held, behind) + rates.step_overhead_s
        return np.asarray(np.maximum(time_s, self._inputs.period_s(index, held)))

    def _buckets(self, held: Held, index: Integers) -> Buckets:
        """Return the buckets of gradients of each micro-batch, by kind of stage."""
        if "every" in self._nothing:
            nothing = np.zeros((len(held.first), len(index)))
            return Buckets(nothing, nothing, nothing)
        by_kind = [
            np.sum([buckets_of(self.tables, programs) for programs in chunks], axis=0)
            for chunks in held.programs
        ]
        found = np.stack(by_kind, axis=1)[:, :, self.tables.storage_of[index]]
        return Buckets(*found)

    def _with_once(
        self, time_s: Floats, index: Integers, held: Held, passes: tuple[Floats, Floats]
    ) -> Floats:
        """Return the time with reductions and gathers that come once in a step. [s]

        Args:
            time_s: Without them. [s]
            index: Of strategies.
            held: What their stages hold.
            passes: The last backward and the first forward, which may hide them. [s]
        """
        rates, overlap = self.tables.rates, self._overlap
        beside = Beside(rates.overlap_compute_rate, rates.overlap_communication_rate)
        names, hides = ("once", "update"), (overlap.hides_gradients, overlap.hides_updates)
        for name, span, hidden in zip(names, passes, hides, strict=True):
            if name not in self._nothing:
                moved_s = self._of_storage(held, name, index)
                time_s = time_s + beside.added_s(moved_s, span, overlap=hidden).max(axis=0)
        return time_s

    def _behind(self, held: Held, index: Integers) -> Stragglers | None:
        ranks = self.tables.ranks[index]
        return slowed_stages(self.tables.setting.job, ranks, held.kind_of_stage)

    def _span_s(self, held: Held, name: str, index: Integers, behind: Stragglers | None) -> Floats:
        """Return the time of a micro-batch in the slowest rank of each kind of stage. [s]"""
        span = self._of_blocks(held, name, index)
        if behind is not None:
            alone = self._of_blocks(held, f"{name}_alone", index)
            span = span + alone * (behind.slowest - 1.0)
        return span * self.tables.slowdown[index]

    def _ends_s(self, index: Integers, held: Held, behind: Stragglers | None) -> Floats:
        """Return what ends a step: waiting for others of the device, and the longest update. [s]"""
        return np.asarray(self._update_s(index, held, behind) + self._barrier_s(index, held))

    def _update_s(self, index: Integers, held: Held, behind: Stragglers | None) -> Floats:
        """Return the time of the longest update of a stage's parameters. [s]"""
        updated = self._of_storage(held, "updated", index)
        if behind is not None:
            updated = updated * behind.slowest
        state_bytes = self.tables.state_bytes
        if len(self.by_pool) == 1:
            traffic = self.tables.update_bytes(updated.max(axis=0))
            near, far = self._update_rates
            if self.tables.update_rates.expanded is None:
                return np.asarray(traffic / near)
            near = np.asarray(near)[self.tables.storage_of[index]]
            if "far_updated" in self._nothing:
                return np.asarray(traffic / near)
            elements = self._of_storage(held, "far_updated", index).max(axis=0)
            rows = self.tables.update_bytes(elements)
            return np.asarray(traffic / near + rows / far)
        slowness = [
            np.full((len(held.first), 1), 1 / t.rates.update_bytes_per_s(state_bytes))
            for t in self.by_pool
        ]
        traffic = self.tables.update_bytes(updated)
        return np.asarray((traffic * _most(slowness, held.pools[:, held.first])).max(axis=0))

    def _barrier_s(self, index: Integers, held: Held) -> Floats:
        """Return what a process waits for others of its device at the end of a step. [s]"""
        if (processes := self.tables.switches.processes_per_device) == 1:
            return np.zeros(len(index))
        variance = self._of_blocks(held, "variance_s2", index).max(axis=0)
        return barrier_s(self.tables.degrees.micro_batches[index] * variance, processes=processes)

    def _first_gather(self, index: Integers, held: Held) -> Floats:
        """The first block's parameters arrive before anything hides them."""
        column = self.tables.storage_of[index]
        if len(self.by_pool) == 1:
            return np.asarray(self.tables.gather[0, column])
        used = zip(self.by_pool, held.pools[:, 0] > 0, strict=True)
        return np.asarray(np.max([t.gather[0, column] for t, is_used in used if is_used], axis=0))

    def tensor_bytes(self, index: Integers, held: Held) -> Floats:
        """Return the peak of live tensors of each kind of stage, `(kinds, n)`. [B]"""
        resident = self._of_storage(held, "resident", index)
        if held.schedule in SPLIT:
            live = self._split_live(index, held)
        else:
            live = self._saved(index, held) + self._working(index, held)
        if not self._overlap.reshard_after_forward:
            live = live + self._of_storage(held, "gathered", index)
        if held.stages == 1:
            live = live + self.tables.buffers[held.counts[0] > 0].max(initial=0.0)
        return np.asarray(resident + live + self._inputs.device_bytes(index, held))

    def _saved(self, index: Integers, held: Held) -> Floats:
        """Return what each kind of stage keeps for backward when that is most. [B]"""
        alive = in_flight(held.schedule, held, self.tables.degrees.micro_batches[index])
        block = self.tables.block_of[index]
        saved = np.zeros((len(held.first), len(index)))
        for part, copies, count in zip(held.parts, held.received, alive, strict=True):
            if isinstance(count, float) and not count:
                continue  # a stage with one chunk has only a last one
            kept = part @ self.tables.kept + copies @ self.tables.handed
            saved += kept.take(block, axis=1) * count
        return saved

    def _working(self, index: Integers, held: Held) -> Floats:
        """Return the most that the block at work needs beyond what is kept then. [B]"""
        block, storage = self.tables.block_of[index], self.tables.storage_of[index]
        working = np.full((len(held.first), len(index)), -np.inf)
        for kind, program in zip(*np.nonzero(held.counts), strict=True):
            dropped = held.later[kind, program] @ self.tables.kept
            need = (self.tables.moment[program] - dropped)[block]
            need = need + self._gathered(held, int(kind), int(program))[storage]
            if (staged := self._staged(held.later[kind, program])) is not None:
                need = need + staged[storage]
            working[kind] = np.maximum(working[kind], need)
        return working

    def _gathered(self, held: Held, kind: int, program: int) -> Floats:
        """Return the parameters that are gathered while a block of `program` is at work. [B]"""
        copies, gathered = self._overlap.gathered_copies, self.tables.gathered
        # Those farther ahead are of the blocks that there are most of.
        common = int(np.argmax(held.counts[kind]))
        return np.asarray(
            min(copies, 2) * gathered[program] + max(copies - 2, 0) * gathered[common]
        )

    def _split_live(self, index: Integers, held: Held) -> Floats:
        """Return activations and gathered parameters where weight gradients are made apart. [B]"""
        tables = self.tables
        live = split_live_bytes(
            held,
            tables.pieces,
            kept=tables.kept,
            handed=tables.handed,
            micro_batches=tables.degrees.micro_batches[index],
            block=tables.block_of[index],
        )
        for kind, counts in enumerate(held.counts):
            programs = np.flatnonzero(counts).tolist()
            most = np.max([self._gathered(held, kind, each) for each in programs], axis=0)
            live[kind] += most[tables.storage_of[index]]
        return live

    def placed_bytes(self, index: Integers, held: Held) -> Floats:
        """Return what each kind of stage has in expanded memory by class, `(kinds, n)`. [B]"""
        placed = self._of_storage(held, "far_resident", index)
        if "far_kept" in self._nothing:
            return np.asarray(placed)
        alive = in_flight(held.schedule, held, self.tables.degrees.micro_batches[index])
        for part, count in zip(held.parts, alive, strict=True):
            kept = part @ self.tables.far_kept
            placed = placed + kept.take(self.tables.block_of[index], axis=1) * count
        return np.asarray(placed)

    def fullest(self, kinds: Floats, index: Integers, held: Held) -> tuple[Floats, Integers]:
        """Return the live tensors of the fullest rank, and the pool of its device. [B]

        Args:
            kinds: Live tensors of each kind of stage, `tensor_bytes` of the others. [B]
            index: Of strategies.
            held: What their stages hold.
        """
        if len(self.by_pool) == 1:
            return kinds.max(axis=0), np.zeros(len(index), dtype=np.int64)
        setting = self.tables.setting
        shares = []
        for tables, used in zip(self.by_pool, held.pools[:, held.first] > 0, strict=True):
            device = tables.pool.node.device
            need = process_bytes(kinds, setting.calibration, device) / device.memory_bytes
            shares.append(np.where(used[:, None], need, -np.inf))
        which = np.stack(shares).reshape(-1, len(index)).argmax(axis=0)
        pool, kind = np.divmod(which, len(kinds))
        return kinds[kind, np.arange(len(index))], pool

    def _staged(self, later: Floats) -> Floats | None:
        """Return the gradients under reduction while blocks go backward after those of `later`."""
        if not self._overlap.hides_gradients or "staged" in self._nothing or not later.any():
            return None
        return np.asarray(self.tables.staged[later > 0].max(axis=0))

    def dynamic_j(self, index: Integers, held: Held) -> Floats:
        """Return the energy above rest of a step on all devices, before PUE. [J]"""
        micro_batches = self.tables.degrees.micro_batches[index] / held.copies
        block, storage = self.tables.block_of[index], self.tables.storage_of[index]
        stage = self._over_pools(held, "block_j").take(block, axis=1)
        if "often_j" not in self._nothing:
            stage = stage + self._over_pools(held, "often_j").take(storage, axis=1)
        rarely = self._over_pools(held, "rarely_j").take(storage, axis=1)
        stage = micro_batches * stage + rarely
        if (behind := self._behind(held, index)) is not None:
            names = ("forward_alone", "backward_alone")
            alone = sum(self._over_pools(held, n).take(block, axis=1) for n in names)
            added_w = behind.added_w(self.tables.rates.power) * self.tables.pool.node.host.behind
            stage = stage + micro_batches * alone * added_w
        all_j = held.stages_of_kind @ stage * self.tables.ranks[index] / held.stages
        return np.asarray(all_j + self._inputs.energy_j(index, held))

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


def _most(parts: Sequence[Floats], shares: Floats) -> Floats:
    """Return the largest of tables by pool, of those pools that have a share.

    Args:
        parts: By pool, `(..., distinct)` each.
        shares: `(pools, ...)`.
    """
    used = zip(parts, shares > 0, strict=True)
    masked = [np.where(has[..., None], part, -np.inf) for part, has in used]
    return np.asarray(np.max(masked, axis=0))


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

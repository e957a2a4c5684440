"""Step time, memory, energy and power of whole steps, from the costs of their blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.compile import update_traffic_bytes
from wattree.predict.energy_use import standing_w
from wattree.predict.pipeline import FOLLOWING, SPLIT, Held, in_flight, split_bubble_s
from wattree.predict.tables import Tables, habit
from wattree.strategy import AXES

__all__ = ["Formulas"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Formulas:
    """Figures of whole steps, by formulas over the costs of their blocks."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def _of_blocks(self, held: Held, table: Floats, index: Integers) -> Floats:
        """Return `table` of the blocks, `(programs, distinct)`, summed over stages' blocks."""
        return np.take(held.counts @ table, self.tables.block_of[index], axis=1)

    def _of_storage(self, held: Held, table: Floats, index: Integers) -> Floats:
        """Return `table` of the parameters, `(programs, distinct)`, summed over stages' blocks."""
        return np.take(held.counts @ table, self.tables.storage_of[index], axis=1)

    def step_time_s(self, index: Integers, held: Held) -> Floats:
        """Return the step time of the strategies at `index`, whose stages hold `held`. [s]"""
        rates, software = self.tables.rates, self.tables.setting.software
        slow = self.tables.slowdown[index]
        forward = self._of_blocks(held, self.tables.forward, index) * slow
        backward = self._of_blocks(held, self.tables.backward, index) * slow
        gather, every, once, update = (
            self._of_storage(held, table, index)
            for table in (
                self.tables.gather,
                self.tables.every,
                self.tables.once,
                self.tables.update,
            )
        )
        overlap_gradients = habit(
            choice=self.tables.switches.overlap_gradients, default=software.overlap_gradients
        )
        overlap_parameters = habit(
            choice=self.tables.switches.overlap_parameters, default=software.overlap_parameters
        )
        in_line = 0.0 * gather  # traffic that nothing hides
        if not overlap_parameters:
            in_line, gather = in_line + 2 * gather, 0.0 * gather
        if not overlap_gradients:
            in_line, every = in_line + every, 0.0 * every
        lost = 1.0 - rates.overlap_compute_rate
        forward_pass = np.maximum(forward + lost * gather, gather)
        backward_pass = np.maximum(backward + lost * (gather + every), gather)
        # Gathers must arrive in time; reductions may trail into the next micro-batch.
        both = np.maximum(forward_pass + backward_pass, 2 * gather + every) + in_line
        trailing = np.maximum(gather + every - backward_pass, 0.0).max(axis=0)
        micro_batches = self.tables.degrees.micro_batches[index].astype(np.float64)
        micro_batches = micro_batches / held.copies
        slowest = both.max(axis=0)
        stages, virtual = held.stages, held.virtual
        once_through = held.stages_of_kind @ both
        if held.schedule in FOLLOWING:
            slowest = slowest + self._uneven_s(index, held) * slow
        time_s = micro_batches * slowest + (once_through - slowest) / virtual
        if held.schedule in SPLIT:
            weight = self._of_blocks(held, self.tables.deferred, index) * slow
            parts = (forward_pass, backward_pass - weight, weight)
            means = [held.stages_of_kind @ part / stages for part in parts]
            time_s = micro_batches * slowest + split_bubble_s(held, *means)
        elif virtual > 1:
            # With fewer micro-batches than stages the first one comes back to an idle stage.
            alone = once_through + (micro_batches - 1) * slowest / virtual
            time_s = np.where(micro_batches < stages, alone, time_s)
        time_s = time_s + trailing + self._first_gather(index)
        if stages > 1:
            time_s = time_s + self._transfers(index, stages, virtual, micro_batches)
        time_s = time_s + _beside(once, backward, lost, overlap=overlap_gradients).max(axis=0)
        time_s = time_s + _beside(update, forward, lost, overlap=overlap_parameters).max(axis=0)
        updated = self._of_storage(held, self.tables.updated, index)
        traffic = update_traffic_bytes(updated.max(axis=0), self.tables.state_bytes, software)
        return np.asarray(time_s + traffic / rates.memory_bytes_per_s + rates.step_overhead_s)

    def _first_gather(self, index: Integers) -> Floats:
        """The first block's parameters arrive before anything hides them."""
        return np.asarray(self.tables.gather[0, self.tables.storage_of[index]])

    def _uneven_s(self, index: Integers, held: Held) -> Floats:
        """Return what a micro-batch waits because chunks of one round differ among stages. [s]

        Stages take turns at the same chunk, so each chunk takes as long as its largest part.
        """
        if held.virtual == 1:
            return np.zeros(len(index))
        span = self.tables.forward + self.tables.backward
        chunks = (held.chunks @ span).max(axis=1).sum(axis=0)
        return np.asarray((chunks - (held.counts @ span).max(axis=0))[self.tables.block_of[index]])

    def _transfers(
        self, index: Integers, stages: int, virtual: int, micro_batches: Floats
    ) -> Floats:
        links = self.tables.rates.links
        size = np.max([c.boundary_bytes for c in self.tables.costs], axis=0)[
            self.tables.block_of[index]
        ]
        stride = np.prod(
            [self.tables.degrees.axes[axis][index] for axis in AXES if axis != "pp"], axis=0
        )
        crosses = stride >= self.tables.pool.domain_devices
        one = np.where(crosses, size / links.adapter_bytes_per_s, size / links.scale_up_bytes_per_s)
        beyond = stride >= self.tables.leaf_devices
        one = np.maximum(one, np.where(beyond, size / links.uplink_bytes_per_s, 0.0))
        one = one + links.alpha_s / 2 + np.where(crosses, links.alpha_network_s, 0.0)
        fill = 2 * (stages - 1) * one
        if self.tables.setting.software.overlap_pipeline:
            return np.asarray(fill)
        return np.asarray(fill + 2 * one * micro_batches * virtual)

    def tensor_bytes(self, index: Integers, held: Held) -> Floats:
        """Return the peak of live tensors over stages. [B]"""
        resident = self._of_storage(held, self.tables.resident, index)
        alive = in_flight(held.schedule, held, self.tables.degrees.micro_batches[index])
        block, storage = self.tables.block_of[index], self.tables.storage_of[index]
        saved = np.zeros_like(resident)
        for part, count in zip(held.parts, alive, strict=True):
            saved += np.take(part @ self.tables.kept, block, axis=1) * count
        working = np.full_like(saved, -np.inf)
        for kind, program in zip(*np.nonzero(held.counts), strict=True):
            need = (self.tables.moment[program] - held.later[kind, program] @ self.tables.kept)[
                block
            ]
            need = need + 2 * self.tables.gathered[program][storage]
            working[kind] = np.maximum(working[kind], need)
        if held.stages == 1:
            working = working + self.tables.buffers[held.counts[0] > 0].max(initial=0.0)
        return np.asarray((resident + saved + working).max(axis=0))

    def dynamic_j(self, index: Integers, held: Held) -> Floats:
        """Return the energy above rest of a step on all devices, before PUE. [J]"""
        micro_batches = self.tables.degrees.micro_batches[index] / held.copies
        stage = self._of_blocks(held, self.tables.block_j, index)
        stage = stage + self._of_storage(held, self.tables.often_j, index)
        stage = micro_batches * stage + self._of_storage(held, self.tables.rarely_j, index)
        return np.asarray(held.stages_of_kind @ stage * self.tables.ranks[index] / held.stages)

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
        dynamic_w = np.zeros(self.tables.forward.shape[1])
        for number in layers:
            for energy, span in (
                (self.tables.forward_j, self.tables.forward),
                (self.tables.backward_j, self.tables.backward),
            ):
                watts = energy[number] / np.maximum(span[number], 1e-12)
                dynamic_w = np.maximum(dynamic_w, watts)
        return np.asarray(self._standing_w() + self.tables.ranks * dynamic_w[self.tables.block_of])

    def _standing_w(self) -> Floats:
        """Return what the nodes of each strategy draw whatever runs. [W]"""
        cluster = self.tables.setting.job.cluster
        counts, which = np.unique(self.tables.ranks, return_inverse=True)
        return np.array([sum(standing_w(cluster, int(count))) for count in counts])[which]


def _beside(traffic: Floats, compute: Floats, lost: float, *, overlap: bool) -> Floats:
    """Return what traffic adds to a step: all of it, or what compute does not hide."""
    if not overlap:
        return traffic
    hidden = np.minimum(traffic, compute)
    return traffic - hidden + lost * hidden

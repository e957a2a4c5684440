"""Step time and memory in closed form, for arrays of strategies at once.

The same block programs and cost functions as the executor's; only the play of a whole step is
replaced by formulas: streams of a block in order, the slowest stage times the micro-batches
plus the pipeline's filling, traffic of replicas against the compute that hides it. Screens
spaces too large to simulate and serves as the smooth model that calibration linearises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import Pipelining, phase_span_s
from wattree.compiler.compile import update_traffic_bytes
from wattree.compiler.evaluate import BlockCosts, Placement, block_costs, collective_costs
from wattree.compiler.program import CollectiveKind, Scale
from wattree.compiler.stages import cut_chunks
from wattree.compiler.storage import Storage, SyncGroup, block_storage, optimizer_state_bytes
from wattree.predict.setting import Setting
from wattree.strategy import AXES, Schedule, StrategyOptions
from wattree.strategy.presets import tree_of

__all__ = ["Degrees", "Estimates", "estimate"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Arrays of degrees, one entry per strategy.

    Attributes:
        axes: Axis → degrees, for every axis of `AXES`, shape `(n,)`.
        micro_batch: Samples per forward pass and replica, `(n,)`.
        virtual_stages: `(n,)`.
        micro_batches: Per step and replica, `(n,)`.
    """

    axes: Mapping[str, Integers]
    micro_batch: Integers
    virtual_stages: Integers
    micro_batches: Integers

    @classmethod
    def of(cls, options: Sequence[StrategyOptions], global_batch: int) -> Degrees:
        """Return the degrees of `options`."""
        return cls(
            axes={axis: np.array([getattr(o, axis) for o in options]) for axis in AXES},
            micro_batch=np.array([o.micro_batch for o in options]),
            virtual_stages=np.array([o.virtual_stages for o in options]),
            micro_batches=np.array(
                [global_batch // (o.replicas * o.micro_batch) for o in options]
            ),
        )

    def take(self, index: Integers) -> Degrees:
        """Return the entries at `index`."""
        return Degrees(
            axes={axis: values[index] for axis, values in self.axes.items()},
            micro_batch=self.micro_batch[index],
            virtual_stages=self.virtual_stages[index],
            micro_batches=self.micro_batches[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Step time and peak of live tensors on the fullest rank, `(n,)` each."""

    step_time_s: Floats
    tensor_bytes: Floats


def estimate(setting: Setting, switches: StrategyOptions, degrees: Degrees) -> Estimates:
    """Return estimates for strategies that share `switches` and differ in `degrees`.

    Args:
        setting: The job.
        switches: Sharding, recomputation, sequence parallelism, schedule, overlap; its own
            degrees are ignored.
        degrees: Arrays of degrees.
    """
    active = frozenset(axis for axis, values in degrees.axes.items() if (values > 1).any())
    tree = tree_of(_wide(switches, degrees), setting.model.layers)
    program = compile_model(setting.model, tree, active)
    screen = _Screen(setting, switches, degrees, program)
    time_s = np.zeros(len(degrees.micro_batch))
    memory = np.zeros_like(time_s)
    pairs = np.stack([degrees.axes["pp"], degrees.virtual_stages], axis=1)
    for stages, virtual in np.unique(pairs, axis=0):
        index = np.flatnonzero((pairs[:, 0] == stages) & (pairs[:, 1] == virtual))
        counts = _stage_counts(program, int(stages), int(virtual), switches)
        time_s[index] = screen.step_time_s(index, counts, int(virtual))
        memory[index] = screen.tensor_bytes(index, counts, int(virtual))
    return Estimates(step_time_s=time_s, tensor_bytes=memory)


def _wide(switches: StrategyOptions, degrees: Degrees) -> StrategyOptions:
    """Return the switches with a tensor degree above 1, so that its splits are in the tree."""
    tensor = int(degrees.axes["tp"].max())
    return replace(switches, tp=tensor, virtual_stages=1, stage_layers=None)


def _stage_counts(
    program: ModelProgram, stages: int, virtual: int, switches: StrategyOptions
) -> Floats:
    """Return how often each stage holds each program, `(stages, programs)`."""
    schedule = Schedule(virtual_stages=virtual, stage_layers=switches.stage_layers)
    chunks = cut_chunks(program, stages, schedule)
    counts = np.zeros((stages, len(program.programs)))
    for chunk, instances in enumerate(chunks):
        for instance in instances:
            counts[chunk % stages, program.instances[instance]] += 1
    return counts


class _Screen:
    """Costs of every program for every strategy, and the formulas over them."""

    def __init__(
        self,
        setting: Setting,
        switches: StrategyOptions,
        degrees: Degrees,
        program: ModelProgram,
    ) -> None:
        self.setting, self.switches, self.degrees = setting, switches, degrees
        rates, software = setting.rates, setting.software
        values = {axis: v.astype(np.float64) for axis, v in degrees.axes.items()}
        self.scale = Scale(
            micro_batch=degrees.micro_batch.astype(np.float64),
            sequence=float(setting.job.data.sequence_length),
            degrees=values,
            batch_axes=program.batch_axes,
        )
        self.placement = Placement(inside=_inside(values, setting.job.cluster.domain_devices))
        self.costs = [
            block_costs(p, self.scale, self.placement, rates, software) for p in program.programs
        ]
        self.state_bytes = optimizer_state_bytes(setting.job.optimizer)
        self.storage = [
            block_storage(p, self.scale, software, self.state_bytes) for p in program.programs
        ]
        overlap = _habit(switches.overlap_tensor, software.overlap_tensor)
        pipelining = Pipelining(
            tensor_exposed_share=rates.tensor_exposed_share if overlap else 1.0,
            context_exposed_share=0.0,
        )
        self.forward = np.array([phase_span_s(c.forward, pipelining) for c in self.costs])
        self.backward = np.array(
            [
                phase_span_s(c.recomputation, pipelining) + phase_span_s(c.backward, pipelining)
                for c in self.costs
            ]
        )
        nodes = np.maximum(
            np.prod(list(values.values()), axis=0) / setting.job.cluster.node.devices, 1.0
        )
        self.slowdown = 1.0 + rates.straggling * np.log2(nodes)
        self._traffic()

    def _traffic(self) -> None:
        """Time of each program's gathers, reductions and updates, `(programs, n)` each."""
        rows: dict[str, list[Floats]] = {
            "gather": [],
            "every": [],
            "once": [],
            "update": [],
        }
        zero = np.zeros_like(self.scale.micro_batch)
        for storage in self.storage:
            gather, every, once, update = zero, zero, zero, zero
            for sync in storage.sync:
                gather = gather + self._time(
                    CollectiveKind.ALL_GATHER, sync.gather_axes, sync.gather_bytes
                )
                reduce_s = self._reduction(sync)
                if sync.every_micro_batch:
                    every = every + reduce_s
                else:
                    once = once + reduce_s
                update = update + self._time(
                    CollectiveKind.ALL_GATHER, sync.update_axes, sync.gather_bytes
                )
            for name, value in zip(rows, (gather, every, once, update), strict=True):
                rows[name].append(value)
        self.gather, self.every, self.once, self.update = (np.array(v) for v in rows.values())

    def _reduction(self, sync: SyncGroup) -> Floats:
        scattered = self._time(CollectiveKind.REDUCE_SCATTER, sync.scatter_axes, sync.reduce_bytes)
        size = sync.reduce_bytes / self.scale.degree(sync.scatter_axes)
        return scattered + self._time(CollectiveKind.ALL_REDUCE, sync.reduce_axes, size)

    def _time(self, kind: CollectiveKind, axes: tuple[str, ...], size_bytes: Floats) -> Floats:
        if not axes:
            return np.zeros_like(size_bytes)
        group = self.placement.group(axes, self.scale)
        latency, work, *_ = collective_costs(kind, size_bytes, group, self.setting.rates)
        return np.where(size_bytes > 0, latency + work, 0.0)

    def step_time_s(self, index: Integers, counts: Floats, virtual: int) -> Floats:
        """Return the step time of the strategies at `index`, whose stages hold `counts`. [s]"""
        rates, software = self.setting.rates, self.setting.software
        slow = self.slowdown[index]
        forward = counts @ self.forward[:, index] * slow
        backward = counts @ self.backward[:, index] * slow
        gather, every = counts @ self.gather[:, index], counts @ self.every[:, index]
        once, update = counts @ self.once[:, index], counts @ self.update[:, index]
        lost = 1.0 - rates.overlap_compute_rate
        forward_pass = np.maximum(forward + lost * gather, gather)
        backward_pass = np.maximum(backward + lost * (gather + every), gather + every)
        both = forward_pass + backward_pass
        micro_batches = self.degrees.micro_batches[index].astype(np.float64)
        slowest = both.max(axis=0)
        stages = len(counts)
        time_s = micro_batches * slowest + (both.sum(axis=0) - slowest) / virtual
        time_s = time_s + self._first_gather(index)
        if stages > 1:
            time_s = time_s + self._transfers(index, stages, virtual, micro_batches)
        overlap_gradients = _habit(self.switches.overlap_gradients, software.overlap_gradients)
        overlap_parameters = _habit(self.switches.overlap_parameters, software.overlap_parameters)
        time_s = time_s + _beside(once, backward, lost, overlap=overlap_gradients).max(axis=0)
        time_s = time_s + _beside(update, forward, lost, overlap=overlap_parameters).max(axis=0)
        updated = counts @ np.array([s.updated_elements[index] for s in self.storage])
        traffic = update_traffic_bytes(updated.max(axis=0), self.state_bytes, software)
        return np.asarray(time_s + traffic / rates.memory_bytes_per_s + rates.step_overhead_s)

    def _first_gather(self, index: Integers) -> Floats:
        """The first block's parameters arrive before anything hides them."""
        return np.asarray(self.gather[0, index])

    def _transfers(
        self, index: Integers, stages: int, virtual: int, micro_batches: Floats
    ) -> Floats:
        links = self.setting.rates.links
        size = np.max([c.boundary_bytes[index] for c in self.costs], axis=0)
        stride = np.prod(
            [self.degrees.axes[axis][index] for axis in AXES if axis != "pp"], axis=0
        )
        crosses = stride >= self.setting.job.cluster.domain_devices
        one = np.where(
            crosses, size / links.adapter_bytes_per_s, size / links.scale_up_bytes_per_s
        )
        one = one + links.alpha_s / 2 + np.where(crosses, links.alpha_network_s, 0.0)
        fill = 2 * (stages - 1) * one
        if self.setting.software.overlap_pipeline:
            return np.asarray(fill)
        return np.asarray(fill + 2 * one * micro_batches * virtual)

    def tensor_bytes(self, index: Integers, counts: Floats, virtual: int) -> Floats:
        """Return the peak of live tensors over stages. [B]"""
        stages = len(counts)
        resident = counts @ np.array(
            [(s.parameters + s.gradients + s.optimizer)[index] for s in self.storage]
        )
        kept, again, transient = (
            np.array(rows)
            for rows in zip(*(_block_memory(c, index) for c in self.costs), strict=True)
        )
        gathered = np.array([_gathered(s, index) for s in self.storage])
        saved = counts @ kept
        in_flight = _in_flight(
            self.switches.schedule if virtual == 1 else "interleaved",
            stages,
            virtual,
            self.degrees.micro_batches[index],
        )
        held = (counts > 0)[:, :, None]
        working = np.where(held, (again + transient + 2 * gathered)[None], 0.0).max(axis=1)
        return np.asarray((resident + saved * in_flight + working).max(axis=0))


def _habit(choice: bool | None, software: bool) -> bool:
    return software if choice is None else choice


def _beside(traffic: Floats, compute: Floats, lost: float, *, overlap: bool) -> Floats:
    """Return what traffic adds to a step: all of it, or what compute does not hide."""
    if not overlap:
        return traffic
    hidden = np.minimum(traffic, compute)
    return traffic - hidden + lost * hidden


def _inside(values: Mapping[str, Floats], domain: int) -> dict[str, Floats]:
    """Return the members of each axis's groups that share a scale-up domain."""
    inside: dict[str, Floats] = {}
    stride = np.ones_like(next(iter(values.values())))
    for axis in reversed(AXES):
        inside[axis] = np.clip(np.floor(domain / stride), 1.0, values[axis])
        stride = stride * values[axis]
    return inside


def _block_memory(costs: BlockCosts, index: Integers) -> tuple[Floats, Floats, Floats]:
    """Return what one block keeps, makes again, and needs for a moment. [B]"""
    zero = np.zeros(len(index))
    kept, again = zero, zero
    if costs.program.backward:
        for row, tensor in zip(costs.saved_bytes, costs.program.saved, strict=True):
            share = tensor.share if tensor.recomputed else 0.0
            kept = kept + (1.0 - share) * row[index]
            again = again + share * row[index]
    transient = zero
    if len(costs.backward.steps):
        transient = costs.backward.transient_bytes[:, index].max(axis=0)
    return kept, again, transient


def _gathered(storage: Storage, index: Integers) -> Floats:
    total = np.zeros(len(index))
    for sync in storage.sync:
        if sync.gather_axes:
            total = total + sync.gather_bytes[index]
    return total


def _in_flight(schedule: str, stages: int, virtual: int, micro_batches: Integers) -> Floats:
    """Return micro-batches whose activations each stage holds at most, `(stages, n)`."""
    stage = np.arange(stages)[:, None]
    count = micro_batches[None, :].astype(np.float64)
    if schedule == "gpipe":
        return np.broadcast_to(count, (stages, len(micro_batches)))
    if virtual == 1:
        return np.minimum(stages - stage, count)
    chunks = (stages - stage - 1) * 2 + (virtual - 1) * stages + 1.0
    whole = np.where(count <= stages, count * virtual, chunks)
    return np.minimum(whole, count * virtual) / virtual

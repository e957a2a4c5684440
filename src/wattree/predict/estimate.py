"""Step time and memory in closed form, for arrays of strategies at once.

The same block programs and cost functions as the executor's; only the play of a whole step is
replaced by formulas: streams of a block in order, the slowest stage times the micro-batches
plus the pipeline's filling, traffic of replicas against the compute that hides it. Screens
spaces too large to simulate and serves as the smooth model that calibration linearises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import Pipelining, phase_span_s
from wattree.compiler.compile import buffer_bytes, update_traffic_bytes
from wattree.compiler.evaluate import (
    BlockCosts,
    PhaseCosts,
    Placement,
    block_costs,
    collective_costs,
)
from wattree.compiler.program import CollectiveKind, CollectiveStep, ComputeStep, Scale
from wattree.compiler.stages import cut_chunks
from wattree.compiler.storage import Storage, SyncGroup, block_storage, optimizer_state_bytes
from wattree.predict.energy_use import device_energy_j, standing_w
from wattree.predict.setting import Setting
from wattree.strategy import AXES, Schedule, StrategyOptions
from wattree.strategy.presets import tree_of

__all__ = ["Degrees", "Estimates", "Screened", "Shared", "estimate", "screened"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Above any degree, micro-batch or number of virtual stages.
_MANY = 2**20


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
            micro_batches=np.array([global_batch // (o.replicas * o.micro_batch) for o in options]),
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
    """Figures of a step, `(n,)` each.

    Attributes:
        step_time_s: Its length. [s]
        tensor_bytes: Peak of live tensors on the fullest rank. [B]
        energy_j: Of the whole job, PUE included. [J]
        peak_power_w: Of the job's nodes while every rank runs the hungriest layer, before PUE.
            [W]
    """

    step_time_s: Floats
    tensor_bytes: Floats
    energy_j: Floats
    peak_power_w: Floats


def estimate(
    setting: Setting,
    switches: StrategyOptions,
    degrees: Degrees,
    *,
    shared: Shared | None = None,
) -> Estimates:
    """Return estimates for strategies that share `switches` and differ in `degrees`.

    Args:
        setting: The job.
        switches: Sharding, recomputation, sequence parallelism, schedule, overlap; its own
            degrees are ignored.
        degrees: Arrays of degrees.
        shared: Kept from call to call, it saves compiling the same programs again.
    """
    return screened(setting, switches, degrees, shared=shared).estimates(setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What estimates of one job and model can share, filled as they are made.

    Attributes:
        programs: Switches and axes → block programs.
        held: Instances, stages, virtual stages, given cut → what stages hold.
    """

    programs: dict[tuple[StrategyOptions, frozenset[str]], ModelProgram] = field(
        default_factory=dict
    )
    held: dict[tuple[object, ...], _Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Strategies whose blocks are compiled, to be estimated under one or more calibrations.

    Attributes:
        switches: What they share.
        degrees: What they differ in.
        program: Their block programs.
        shared: What was compiled before.
    """

    switches: StrategyOptions
    degrees: Degrees
    program: ModelProgram
    shared: Shared

    def estimates(self, setting: Setting) -> Estimates:
        """Return step times and memory under the rates of `setting`."""
        degrees = self.degrees
        screen = _Screen(setting, self.switches, degrees, self.program)
        time_s = np.zeros(len(degrees.micro_batch))
        memory, dynamic_j = np.zeros_like(time_s), np.zeros_like(time_s)
        pairs = degrees.axes["pp"] * _MANY + degrees.virtual_stages
        order = np.argsort(pairs, kind="stable")
        for index in np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1):
            if not len(index):
                continue
            stages, virtual = divmod(int(pairs[index[0]]), _MANY)
            key = self.program.instances, stages, virtual, self.switches.stage_layers
            held = self.shared.held.get(key)
            if held is None:
                held = _held_by_stages(self.program, stages, virtual, self.switches)
                self.shared.held[key] = held
            time_s[index] = screen.step_time_s(index, held)
            memory[index] = screen.tensor_bytes(index, held)
            dynamic_j[index] = screen.dynamic_j(index, held)
        energy_j = screen.energy_j(time_s, dynamic_j)
        return Estimates(
            step_time_s=time_s,
            tensor_bytes=memory,
            energy_j=energy_j,
            peak_power_w=screen.peak_power_w(),
        )


def screened(
    setting: Setting,
    switches: StrategyOptions,
    degrees: Degrees,
    *,
    shared: Shared | None = None,
) -> Screened:
    """Return strategies ready for estimates; arguments as for `estimate`.

    Args:
        setting: The job.
        switches: What the strategies share.
        degrees: What they differ in.
        shared: Kept from call to call, it saves compiling again what only degrees change.
    """
    shared = shared or Shared()
    active = frozenset(axis for axis, values in degrees.axes.items() if (values > 1).any())
    # Neither schedules nor degrees (above 1) change a tree.
    wide = _wide(switches, degrees)
    key = replace(wide, tp=min(wide.tp, 2), schedule="1f1b"), active
    if key not in shared.programs:
        tree = tree_of(wide, setting.model.layers)
        shared.programs[key] = compile_model(setting.model, tree, active)
    return Screened(switches=switches, degrees=degrees, program=shared.programs[key], shared=shared)


def _wide(switches: StrategyOptions, degrees: Degrees) -> StrategyOptions:
    """Return the switches with a tensor degree above 1, so that its splits are in the tree."""
    tensor = int(degrees.axes["tp"].max())
    return replace(switches, tp=tensor, virtual_stages=1, stage_layers=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What pipeline stages hold; stages that hold the same programs are one kind.

    Attributes:
        stages, virtual: Of the pipeline.
        counts: How often each kind of stage holds each program, `(kinds, programs)`.
        chunks: The same by virtual stage and stage, `(virtual, stages, programs)`.
        parts: The same for its first chunk, the chunks between and its last chunk (a stage with
            one chunk has only a last one), `(3, kinds, programs)`.
        later: What follows the last instance of each program in a stage, by program: backward
            has dropped it when it reaches that instance, `(kinds, programs, programs)`.
        stages_of_kind: Stages of each kind, `(kinds,)`.
        first: First stage of each kind: under most schedules it has most in flight, `(kinds,)`.
    """

    stages: int
    virtual: int
    counts: Floats
    chunks: Floats
    parts: Floats
    later: Floats
    stages_of_kind: Floats
    first: Integers


def _held_by_stages(
    program: ModelProgram, stages: int, virtual: int, switches: StrategyOptions
) -> _Held:
    """Return what the stages of a pipeline hold."""
    name = "interleaved" if virtual > 1 else switches.schedule
    schedule = Schedule(name=name, virtual_stages=virtual, stage_layers=switches.stage_layers)
    chunks = cut_chunks(program, stages, schedule)
    held = np.zeros((len(program.instances) + 1, len(program.programs)))
    held[np.arange(1, len(held)), program.instances] = 1.0
    held = np.cumsum(held, axis=0)
    ends = np.cumsum([len(chunk) for chunk in chunks])
    per_chunk = np.diff(held[np.concatenate(([0], ends))], axis=0)
    per_chunk = per_chunk.reshape(virtual, stages, -1)
    begin = per_chunk[0] if virtual > 1 else np.zeros_like(per_chunk[0])
    parts = np.stack([begin, per_chunk[1:-1].sum(axis=0), per_chunk[-1]], axis=1)
    kinds, first, many = np.unique(parts, axis=0, return_index=True, return_counts=True)
    return _Held(
        stages=stages,
        virtual=virtual,
        counts=kinds.sum(axis=1),
        chunks=per_chunk,
        parts=np.ascontiguousarray(kinds.transpose(1, 0, 2)),
        later=np.stack([_later(program, chunks[stage - stages]) for stage in first]),
        stages_of_kind=many.astype(np.float64),
        first=first,
    )


def _later(program: ModelProgram, chunk: Sequence[int]) -> Floats:
    """Return for each program how often each program follows its last instance in a chunk."""
    count = len(program.programs)
    later, seen = np.zeros((count, count)), np.zeros(count)
    met: set[int] = set()
    for instance in reversed(chunk):
        number = program.instances[instance]
        if number not in met:
            later[number] = seen
            met.add(number)
        seen[number] += 1
    return later


def _distinct(*columns: NDArray[np.float64]) -> tuple[Integers, Integers]:
    """Return the first row of each distinct combination, and which one every row has."""
    key = np.zeros(len(columns[0]))
    for column in columns:  # degrees and micro-batches are whole and below `_MANY`
        _, numbers = np.unique(key * _MANY + column, return_inverse=True)
        key = numbers.astype(np.float64)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


class _Screen:
    """Costs of every program for every distinct degree, and the formulas over them.

    What one block costs depends on tp, cp, ep and the micro-batch alone; what its parameters
    take and move depends on all axes but pp. Both are evaluated once for each combination that
    occurs, which is far less often than strategies do, and looked up.
    """

    def __init__(
        self,
        setting: Setting,
        switches: StrategyOptions,
        degrees: Degrees,
        program: ModelProgram,
    ) -> None:
        self.setting, self.switches, self.degrees = setting, switches, degrees
        self.program = program
        rates, software = setting.rates, setting.software
        values = {axis: v.astype(np.float64) for axis, v in degrees.axes.items()}
        domain = setting.job.cluster.domain_devices
        micro_batch = degrees.micro_batch.astype(np.float64)
        # Blocks: replicas beyond ep change nothing inside a block, so they count as 1 here.
        first, self.block_of = _distinct(values["tp"], values["cp"], values["ep"], micro_batch)
        ones = np.ones(len(first))
        own = {axis: values[axis][first] if axis in ("tp", "cp", "ep") else ones for axis in AXES}
        block_scale = _scale(own, micro_batch[first], setting, program)
        placement = Placement(inside=_inside(own, domain))
        self.costs = [
            block_costs(p, block_scale, placement, rates, software) for p in program.programs
        ]
        # Storage: the micro-batch does not matter.
        first, self.storage_of = _distinct(*(values[axis] for axis in AXES if axis != "pp"))
        own = {axis: v[first] for axis, v in values.items()}
        own["pp"] = np.ones(len(first))
        self.storage_scale = _scale(own, np.ones(len(first)), setting, program)
        self.storage_placement = Placement(inside=_inside(own, domain))
        self.state_bytes = optimizer_state_bytes(setting.job.optimizer)
        self.storage = [
            block_storage(p, self.storage_scale, software, self.state_bytes)
            for p in program.programs
        ]
        overlap = _habit(choice=switches.overlap_tensor, default=software.overlap_tensor)
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
        self.ranks = np.prod(list(values.values()), axis=0)
        nodes = np.maximum(self.ranks / setting.job.cluster.node.devices, 1.0)
        self.slowdown = 1.0 + rates.straggling * np.log2(nodes)
        self._traffic()
        self._memory()
        self._energy()

    def _memory(self) -> None:
        """Bytes of each program: resident, gathered, kept, and needed for a moment."""
        self.resident = np.array([s.parameters + s.gradients + s.optimizer for s in self.storage])
        self.gathered = np.array([_gathered(s) for s in self.storage])
        self.updated = np.array([s.updated_elements for s in self.storage])
        kept, moment = zip(*(_block_memory(c) for c in self.costs), strict=True)
        self.kept, self.moment = np.array(kept), np.array(moment)
        self.buffers = np.array(
            [buffer_bytes(s.sync, self.setting.software, 1) for s in self.storage]
        )

    def _energy(self) -> None:
        """Energy above rest of each program: by micro-batch (blocks, traffic) and by step. [J]"""
        none = np.zeros(1, dtype=bool)
        second = self._device_j(np.zeros(1), np.zeros(1), np.ones(1), ~none)  # of communication
        traffic = update_traffic_bytes(self.updated, self.state_bytes, self.setting.software)
        busy_s = traffic / self.setting.rates.memory_bytes_per_s
        phases = [
            (self._phase_j(c.forward), self._phase_j(c.recomputation) + self._phase_j(c.backward))
            for c in self.costs
        ]
        self.forward_j, self.backward_j = (np.array(rows) for rows in zip(*phases, strict=True))
        self.block_j = self.forward_j + self.backward_j
        self.often_j = second * (2 * self.gather + self.every)
        self.rarely_j = second * (self.once + self.update)
        self.rarely_j = self.rarely_j + self._device_j(0 * traffic, traffic, busy_s, none)

    def _traffic(self) -> None:
        """Time of each program's gathers, reductions and updates, `(programs, n)` each."""
        rows: dict[str, list[Floats]] = {
            "gather": [],
            "every": [],
            "once": [],
            "update": [],
        }
        zero = np.zeros_like(self.storage_scale.micro_batch)
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
        size = sync.reduce_bytes / self.storage_scale.degree(sync.scatter_axes)
        return scattered + self._time(CollectiveKind.ALL_REDUCE, sync.reduce_axes, size)

    def _time(self, kind: CollectiveKind, axes: tuple[str, ...], size_bytes: Floats) -> Floats:
        if not axes:
            return np.zeros_like(size_bytes)
        group = self.storage_placement.group(axes, self.storage_scale)
        latency, work, *_ = collective_costs(kind, size_bytes, group, self.setting.rates)
        return np.where(size_bytes > 0, latency + work, 0.0)

    def _of_blocks(self, held: _Held, table: Floats, index: Integers) -> Floats:
        """Return `table` of the blocks, `(programs, distinct)`, summed over stages' blocks."""
        return np.take(held.counts @ table, self.block_of[index], axis=1)

    def _of_storage(self, held: _Held, table: Floats, index: Integers) -> Floats:
        """Return `table` of the parameters, `(programs, distinct)`, summed over stages' blocks."""
        return np.take(held.counts @ table, self.storage_of[index], axis=1)

    def step_time_s(self, index: Integers, held: _Held) -> Floats:
        """Return the step time of the strategies at `index`, whose stages hold `held`. [s]"""
        rates, software = self.setting.rates, self.setting.software
        slow = self.slowdown[index]
        forward = self._of_blocks(held, self.forward, index) * slow
        backward = self._of_blocks(held, self.backward, index) * slow
        gather, every, once, update = (
            self._of_storage(held, table, index)
            for table in (self.gather, self.every, self.once, self.update)
        )
        overlap_gradients = _habit(
            choice=self.switches.overlap_gradients, default=software.overlap_gradients
        )
        overlap_parameters = _habit(
            choice=self.switches.overlap_parameters, default=software.overlap_parameters
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
        micro_batches = self.degrees.micro_batches[index].astype(np.float64)
        slowest = both.max(axis=0)
        stages, virtual = held.stages, held.virtual
        once_through = held.stages_of_kind @ both
        slowest = slowest + self._uneven_s(index, held) * slow
        time_s = micro_batches * slowest + (once_through - slowest) / virtual
        if virtual > 1:
            # With fewer micro-batches than stages the first one comes back to an idle stage.
            alone = once_through + (micro_batches - 1) * slowest / virtual
            time_s = np.where(micro_batches < stages, alone, time_s)
        time_s = time_s + trailing + self._first_gather(index)
        if stages > 1:
            time_s = time_s + self._transfers(index, stages, virtual, micro_batches)
        time_s = time_s + _beside(once, backward, lost, overlap=overlap_gradients).max(axis=0)
        time_s = time_s + _beside(update, forward, lost, overlap=overlap_parameters).max(axis=0)
        updated = self._of_storage(held, self.updated, index)
        traffic = update_traffic_bytes(updated.max(axis=0), self.state_bytes, software)
        return np.asarray(time_s + traffic / rates.memory_bytes_per_s + rates.step_overhead_s)

    def _first_gather(self, index: Integers) -> Floats:
        """The first block's parameters arrive before anything hides them."""
        return np.asarray(self.gather[0, self.storage_of[index]])

    def _uneven_s(self, index: Integers, held: _Held) -> Floats:
        """Return what a micro-batch waits because chunks of one round differ among stages. [s]

        Stages take turns at the same chunk, so each chunk takes as long as its largest part.
        """
        if held.virtual == 1:
            return np.zeros(len(index))
        span = self.forward + self.backward
        chunks = (held.chunks @ span).max(axis=1).sum(axis=0)
        return np.asarray((chunks - (held.counts @ span).max(axis=0))[self.block_of[index]])

    def _transfers(
        self, index: Integers, stages: int, virtual: int, micro_batches: Floats
    ) -> Floats:
        links = self.setting.rates.links
        size = np.max([c.boundary_bytes for c in self.costs], axis=0)[self.block_of[index]]
        stride = np.prod([self.degrees.axes[axis][index] for axis in AXES if axis != "pp"], axis=0)
        crosses = stride >= self.setting.job.cluster.domain_devices
        one = np.where(crosses, size / links.adapter_bytes_per_s, size / links.scale_up_bytes_per_s)
        one = one + links.alpha_s / 2 + np.where(crosses, links.alpha_network_s, 0.0)
        fill = 2 * (stages - 1) * one
        if self.setting.software.overlap_pipeline:
            return np.asarray(fill)
        return np.asarray(fill + 2 * one * micro_batches * virtual)

    def tensor_bytes(self, index: Integers, held: _Held) -> Floats:
        """Return the peak of live tensors over stages. [B]"""
        resident = self._of_storage(held, self.resident, index)
        in_flight = _in_flight(
            self.switches.schedule if held.virtual == 1 else "interleaved",
            held,
            self.degrees.micro_batches[index],
        )
        block, storage = self.block_of[index], self.storage_of[index]
        saved = np.zeros_like(resident)
        for part, count in zip(held.parts, in_flight, strict=True):
            saved += np.take(part @ self.kept, block, axis=1) * count
        working = np.full_like(saved, -np.inf)
        for kind, program in zip(*np.nonzero(held.counts), strict=True):
            need = (self.moment[program] - held.later[kind, program] @ self.kept)[block]
            need = need + 2 * self.gathered[program][storage]
            working[kind] = np.maximum(working[kind], need)
        if held.stages == 1:
            working = working + self.buffers[held.counts[0] > 0].max(initial=0.0)
        return np.asarray((resident + saved + working).max(axis=0))

    def dynamic_j(self, index: Integers, held: _Held) -> Floats:
        """Return the energy above rest of a step on all devices, before PUE. [J]"""
        micro_batches = self.degrees.micro_batches[index].astype(np.float64)
        stage = self._of_blocks(held, self.block_j, index)
        stage = stage + self._of_storage(held, self.often_j, index)
        stage = micro_batches * stage + self._of_storage(held, self.rarely_j, index)
        return np.asarray(held.stages_of_kind @ stage * self.ranks[index] / held.stages)

    def energy_j(self, time_s: Floats, dynamic_j: Floats) -> Floats:
        """Return the energy of a step: what stands through it, and what its work adds. [J]"""
        pue = self.setting.job.cluster.site.pue
        return np.asarray((self._standing_w() * time_s + dynamic_j) * pue)

    def peak_power_w(self) -> Floats:
        """Return the power while every rank runs the hungriest layer. [W]"""
        program = self.program
        layers = {
            number
            for number, instance in zip(program.instances, program.model.instances, strict=True)
            if instance.is_layer
        }
        dynamic_w = np.zeros(self.forward.shape[1])
        for number in layers:
            for energy, span in ((self.forward_j, self.forward), (self.backward_j, self.backward)):
                watts = energy[number] / np.maximum(span[number], 1e-12)
                dynamic_w = np.maximum(dynamic_w, watts)
        return np.asarray(self._standing_w() + self.ranks * dynamic_w[self.block_of])

    def _standing_w(self) -> Floats:
        cluster = self.setting.job.cluster
        nodes = np.ceil(self.ranks / cluster.node.devices)
        one, several = (standing_w(cluster, count) for count in (1, 2))
        return np.asarray(np.where(nodes > 1, several, one) * nodes)

    def _phase_j(self, phase: PhaseCosts) -> Floats:
        """Return the energy above rest of one micro-batch through a block's phase. [J]"""
        moves = [isinstance(step, CollectiveStep) for step in phase.steps]
        energy = self._device_j(
            phase.flop,
            phase.traffic_bytes,
            phase.latency_s + phase.work_s,
            np.array(moves, dtype=bool)[:, None],
        )
        return np.asarray(energy.sum(axis=0))

    def _device_j(
        self, flop: Floats, traffic: Floats, busy_s: Floats, moves: NDArray[np.bool_]
    ) -> Floats:
        return device_energy_j(
            self.setting.job.cluster,
            self.setting.precision,
            flop=flop,
            traffic_bytes=traffic,
            busy_s=busy_s,
            communicates=moves,
        )


def _habit(*, choice: bool | None, default: bool) -> bool:
    return default if choice is None else choice


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


def _scale(
    values: Mapping[str, Floats], micro_batch: Floats, setting: Setting, program: ModelProgram
) -> Scale:
    return Scale(
        micro_batch=micro_batch,
        sequence=float(setting.job.data.sequence_length),
        degrees=values,
        batch_axes=program.batch_axes,
    )


def _block_memory(costs: BlockCosts) -> tuple[Floats, Floats]:
    """Return what one block keeps, and the most it needs beyond that while it runs. [B]"""
    program = costs.program
    zero = np.zeros(len(costs.boundary_bytes))
    kept = zero
    made: dict[int, Floats] = {}  # forward step → what it makes and keeps
    again = zero
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        if not program.backward:
            continue
        share = tensor.share if tensor.recomputed else 0.0
        kept, again = kept + (1.0 - share) * row, again + share * row
        at = max(tensor.producer, 0)
        made[at] = made.get(at, zero) + (1.0 - share) * row
    forward = _most_held([costs.forward], made, {}) - kept
    if not program.backward:
        return kept, np.maximum(forward, 0.0)
    return kept, np.maximum(forward, _backward_most_held(costs, again))


def _backward_most_held(costs: BlockCosts, again: Floats) -> Floats:
    """Return the most that backward holds beyond what forward kept. [B]"""
    program = costs.program
    before = len(costs.recomputation.steps)
    last_of = {
        step.path: before + index
        for index, step in enumerate(program.backward)
        if isinstance(step, ComputeStep)
    }
    dropped: dict[int, Floats] = {}
    end = before + len(program.backward) - 1
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        at = last_of.get(tensor.consumer, end)
        dropped[at] = dropped.get(at, 0.0 * row) + row
    return _most_held([costs.recomputation, costs.backward], {0: again}, dropped)


def _most_held(
    phases: Sequence[PhaseCosts], made: Mapping[int, Floats], dropped: Mapping[int, Floats]
) -> Floats:
    """Return the most that steps in order hold above where they began. [B]

    What is gathered stays to the end; what an operator needs for itself goes with it.

    Args:
        phases: One after another, steps numbered through.
        made: Step → what it allocates for longer.
        dropped: Step → what goes when it is done.
    """
    held = np.zeros(phases[0].work_s.shape[1])
    most = held
    number = 0
    for phase in phases:
        for index, step in enumerate(phase.steps):
            held = held + made.get(number, 0.0)
            if isinstance(step, CollectiveStep):
                held = held + phase.transient_bytes[index]
                most = np.maximum(most, held)
            else:
                most = np.maximum(most, held + phase.transient_bytes[index])
            held = held - dropped.get(number, 0.0)
            number += 1
    return most


def _gathered(storage: Storage) -> Floats:
    total = np.zeros(len(storage.parameters))
    for sync in storage.sync:
        if sync.gather_axes:
            total = total + sync.gather_bytes
    return total


def _in_flight(
    schedule: str, held: _Held, micro_batches: Integers
) -> tuple[Floats | float, Floats | float, Floats]:
    """Return micro-batches whose activations are kept when most are, for each part of `held`.

    Interleaved stages run rounds of as many micro-batches as there are stages through one chunk
    after another. Backward begins when the last chunk is reached, `2 (stages - stage) - 1`
    micro-batches into its round; what goes beyond the round enters the first chunk again.
    """
    stages, stage = held.stages, held.first[:, None]
    count = micro_batches[None, :].astype(np.float64)
    if schedule == "gpipe":
        return count, count, count
    if held.virtual == 1:
        return 0.0, 0.0, np.minimum(stages - stage, count)
    ahead = 2.0 * (stages - stage) - 1.0
    again = np.clip(ahead - stages, 0.0, np.maximum(count - stages, 0.0))
    in_round = np.minimum(count, stages)
    # Too few micro-batches for a steady state: all forwards come first.
    last = np.where(count <= stages, in_round, np.minimum(ahead, stages))
    return in_round + again, in_round, last

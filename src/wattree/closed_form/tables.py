"""Costs of blocks and of their parameters, once for each combination of degrees that occurs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.expansion import Expansion
from wattree.closed_form.block_memory import (
    block_memory,
    gathered_bytes,
    split_memory,
    staged_bytes,
)
from wattree.closed_form.degrees import MANY, Degrees
from wattree.closed_form.pipeline import SPLIT, deferred_s
from wattree.closed_form.stragglers import computing_s
from wattree.cost.update import update_bytes_per_s, update_traffic_bytes
from wattree.energy import dynamic_energy_j
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram
from wattree.lowering.costs import (
    PhaseCosts,
    Placement,
    block_costs,
    collective_costs,
)
from wattree.lowering.movement import resolved_overlap
from wattree.lowering.overlap import Pipelining, hidden_beside, phase_span_s
from wattree.lowering.program import CollectiveKind, CollectiveStep, Scale, TokenLoad
from wattree.lowering.setting import Setting
from wattree.lowering.storage import SyncGroup, block_storage, buffer_bytes, optimizer_state_bytes
from wattree.lowering.token_load import tokens_of
from wattree.strategy import AXES, TIME_SLICED, ExpertLoad, Offload, StrategyOptions

__all__ = ["Tables"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Tables:
    """Costs of every program for every distinct degree, on the devices of one pool.

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
        *,
        pool: int,
        spilled: Floats | None = None,
    ) -> None:
        self.setting, self.switches, self.degrees = setting, switches, degrees
        self.program = program
        colocation = switches.colocation
        self.rates = setting.pool_rates[pool].shared(
            colocation.processes, in_turn=colocation.sharing == TIME_SLICED
        )
        software, cluster = setting.software, setting.job.cluster
        self.pool = cluster.pools[pool]
        values = {axis: v.astype(np.float64) for axis, v in degrees.axes.items()}
        domain = self.pool.domain_devices
        self.leaf_devices = self.pool.node.devices * cluster.fabric.leaf_nodes
        micro_batch = degrees.micro_batch.astype(np.float64)
        # Blocks: replicas beyond ep change nothing inside a block, so they count as 1 here.
        self.ranks = np.prod(list(values.values()), axis=0)
        # Where links are played, it matters how full a domain is of groups.
        filled = np.zeros_like(micro_batch)
        if self.rates.collectives.looks_at_any():
            filled = np.minimum(self.ranks, float(domain))
        tier = Expansion.of(setting.job.cluster, switches, spilled)
        first, self.block_of = _distinct(
            values["tp"], values["cp"], values["ep"], micro_batch, filled, *tier.told(values["pp"])
        )
        rates = tier.rates(self.rates, program.model, first, values["pp"])
        ones = np.ones(len(first))
        own = {axis: values[axis][first] if axis in ("tp", "cp", "ep") else ones for axis in AXES}
        placement = _placement(own, domain, self.leaf_devices, filled[first])
        sequence = setting.job.data.sequence_length
        scale = program.scale(own, micro_batch[first], sequence=sequence)
        self.costs = self.mean_costs = [
            block_costs(p, scale, placement, rates, software) for p in program.programs
        ]
        if switches.expert_load is not None:
            # All wait for the busiest rank; energy is that of all ranks together.
            self.costs, self.mean_costs = (
                [block_costs(p, loaded, placement, rates, software) for p in program.programs]
                for loaded in _loaded(switches.expert_load, scale, setting, program)
            )
        # Storage: the micro-batch does not matter.
        without_stages = (values[axis] for axis in AXES if axis != "pp")
        first, self.storage_of = _distinct(*without_stages, filled, *tier.told(values["pp"]))
        self.update_rates = tier.rates(self.rates, program.model, first, values["pp"])
        own = {axis: v[first] for axis, v in values.items()}
        own["pp"] = np.ones(len(first))
        self.storage_scale = program.scale(own, np.ones(len(first)), sequence=sequence)
        self.storage_placement = _placement(own, domain, self.leaf_devices, filled[first])
        self.state_bytes = optimizer_state_bytes(setting.job.optimizer)
        self.storage = [
            block_storage(
                p,
                self.storage_scale,
                software,
                self.state_bytes,
                reduce_every_micro_batch=switches.reduce_every_micro_batch,
                samples=float(colocation.process_batch(setting.job.data.global_batch)),
                offload=tier.reached,
            )
            for p in program.programs
        ]
        self.overlap = resolved_overlap(switches, software)
        pipelining = Pipelining.of(rates, self.overlap)
        self.forward = np.array([phase_span_s(c.forward, pipelining) for c in self.costs])
        self.backward = np.array(
            [
                phase_span_s(c.recomputation, pipelining) + phase_span_s(c.backward, pipelining)
                for c in self.costs
            ]
        )
        self.deferred = np.array([deferred_s(c) for c in self.costs])
        if colocation.is_several:
            variances = [
                c.shared.variance_s2 if c.shared else np.zeros(len(ones)) for c in self.costs
            ]
            self.variance_s2 = np.array(variances)
        nodes = np.maximum(_nodes(cluster, self.ranks), 1.0)
        self.slowdown = 1.0 + rates.straggling * np.log2(nodes)
        if cluster.slowdown:
            self.forward_alone = np.array([computing_s(c.forward) for c in self.costs])
            self.backward_alone = np.array(
                [computing_s(c.recomputation) + computing_s(c.backward) for c in self.costs]
            )
        self._traffic()
        self._memory(tier.reached)
        self._energy(pipelining)

    def update_bytes(self, elements: Floats) -> Floats:
        """Return the memory traffic of the updates of a device. [B]"""
        processes = self.switches.processes_per_device
        software = self.setting.software
        return update_traffic_bytes(elements, self.state_bytes, software, processes=processes)

    def _memory(self, reached: Offload) -> None:
        """Bytes of each program: resident, gathered, kept, and needed for a moment.

        What has its place in expanded memory is told apart: for the whole step, and kept.
        """
        placed = [
            np.array([getattr(s, name) for s in self.storage])
            for name in ("parameters", "optimizer")
            if getattr(reached, name) is not None
        ]
        far = [s.far for s in self.storage if s.far is not None]
        self.far_resident = sum(placed, np.zeros_like(self.gather)) + (np.array(far) if far else 0)
        self.resident = np.array([s.parameters + s.gradients + s.optimizer for s in self.storage])
        self.resident = self.resident - sum(placed, np.zeros_like(self.gather))
        zero = np.zeros_like(self.forward[0])
        self.far_kept = np.array(
            [zero if c.far_kept_bytes is None else c.far_kept_bytes for c in self.costs]
        )
        self.gathered = np.array([gathered_bytes(s, self.storage_scale) for s in self.storage])
        self.staged = np.array([staged_bytes(s, self.storage_scale) for s in self.storage])
        self.updated = np.array([s.updated_elements for s in self.storage])
        none = np.zeros_like(self.updated[0])
        self.far_updated = np.array(
            [none if s.far_elements is None else s.far_elements for s in self.storage]
        )
        kept, moment = zip(*(block_memory(c) for c in self.costs), strict=True)
        self.kept, self.moment = np.array(kept), np.array(moment)
        if self.switches.schedule in SPLIT:
            self.pieces = [split_memory(c) for c in self.costs]
        self.handed = np.concatenate([c.handed_bytes for c in self.costs])
        self.buffers = np.array(
            [buffer_bytes(s.sync, self.setting.software, 1) for s in self.storage]
        )

    def _energy(self, pipelining: Pipelining) -> None:
        """Energy above rest of each program: by micro-batch (blocks, traffic) and by step. [J]"""
        none = np.zeros(1, dtype=bool)
        second = self._device_j(np.zeros(1), np.zeros(1), np.ones(1), ~none)  # of communication
        traffic = self.update_bytes(self.updated)
        software = self.setting.software
        busy_s = traffic / update_bytes_per_s(self.state_bytes, software, self.update_rates)
        phases = [
            (
                self._phase_j(c.forward, pipelining),
                self._phase_j(c.recomputation, pipelining) + self._phase_j(c.backward, pipelining),
            )
            for c in self.mean_costs
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
        self.reduced_bytes = np.array(
            [
                sum((g.reduce_bytes for g in s.sync if g.every_micro_batch), zero)
                for s in self.storage
            ]
        )
        self.gather, self.every, self.once, self.update = (np.array(v) for v in rows.values())

    def _reduction(self, sync: SyncGroup) -> Floats:
        scattered = self._time(CollectiveKind.REDUCE_SCATTER, sync.scatter_axes, sync.reduce_bytes)
        size = sync.reduce_bytes / self.storage_scale.degree(sync.scatter_axes)
        return scattered + self._time(CollectiveKind.ALL_REDUCE, sync.reduce_axes, size)

    def _time(self, kind: CollectiveKind, axes: tuple[str, ...], size_bytes: Floats) -> Floats:
        if not axes:
            return np.zeros_like(size_bytes)
        group = self.storage_placement.group(axes, self.storage_scale)
        latency, work, *_ = collective_costs(kind, size_bytes, group, self.rates)
        return np.where(size_bytes > 0, latency + work, 0.0)

    def _phase_j(self, phase: PhaseCosts, pipelining: Pipelining) -> Floats:
        """Return the energy above rest of one micro-batch through a block's phase. [J]"""
        moves = [isinstance(step, CollectiveStep) for step in phase.steps]
        lasts_s = phase.latency_s + phase.work_s
        energy = self._device_j(
            phase.flop, phase.traffic_bytes, lasts_s, np.array(moves, dtype=bool)[:, None]
        )
        # What is hidden beside a product spins on what the product leaves of the device's limit.
        one, none = np.ones(1), np.zeros(1, dtype=bool)
        most_w = self._device_j(one * 1e30, 0 * one, one, none)
        spin_w = self._device_j(0 * one, 0 * one, one, ~none)
        for step, product in hidden_beside(phase.steps, pipelining).items():
            collective = phase.steps[step]
            assert isinstance(collective, CollectiveStep)
            hidden_s = (1.0 - pipelining.share(collective)) * phase.work_s[step]
            left_w = most_w - energy[product] / np.maximum(lasts_s[product], 1e-30)
            lost_w = np.maximum(spin_w - np.maximum(left_w, 0.0), 0.0)
            energy[step] -= np.minimum(hidden_s, lasts_s[product]) * lost_w
        return np.asarray(energy.sum(axis=0))

    def _device_j(
        self, flop: Floats, traffic: Floats, busy_s: Floats, moves: NDArray[np.bool_]
    ) -> Floats:
        """Return energy above rest, with what fans and power supplies add to it. [J]"""
        return self.pool.node.host.behind * dynamic_energy_j(
            self.rates.power,
            flop=flop,
            traffic_bytes=traffic,
            busy_s=busy_s,
            communicates=moves,
            copies=np.zeros(1, dtype=bool),
        )


def _nodes(cluster: Cluster, ranks: Floats) -> Floats:
    """Return on how many nodes so many ranks lie, part of a node as a part."""
    left, nodes = ranks, np.zeros_like(ranks)
    for pool in cluster.pools[:-1]:
        here = np.minimum(left, pool.devices)
        nodes, left = nodes + here / pool.node.devices, left - here
    return np.asarray(nodes + left / cluster.pools[-1].node.devices)


def _loaded(
    load: ExpertLoad, scale: Scale, setting: Setting, program: ModelProgram
) -> tuple[Scale, Scale]:
    """Return the scale with the tokens of the busiest rank, and with those of ranks on average."""
    dropless = setting.software.moe_dropless
    most, mean = tokens_of(load, program, scale.degrees, dropless=dropless)

    def with_tokens(tokens: Floats) -> Scale:
        own = np.arange(len(tokens))
        loaded = TokenLoad(tokens=tokens, ports=tokens, busiest=most, leader=own)
        return replace(scale, load=loaded, _cache={})

    return with_tokens(most), with_tokens(mean)


def _distinct(*columns: NDArray[np.float64]) -> tuple[Integers, Integers]:
    """Return the first row of each distinct combination, and which one every row has."""
    key = np.zeros(len(columns[0]))
    for column in columns:  # degrees and micro-batches are whole and below `MANY`
        _, numbers = np.unique(key * MANY + column, return_inverse=True)
        key = numbers.astype(np.float64)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def _placement(values: Mapping[str, Floats], domain: int, leaf: int, filled: Floats) -> Placement:
    """Return where axes lie; strides only where links are played, as `filled` above 0 says."""
    return Placement(
        inside=_inside(values, domain),
        in_leaf=_inside(values, leaf),
        stride=_strides(values) if filled.any() else {},
        filled=filled,
    )


def _strides(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return axis → ranks from one member of its groups to the next."""
    strides: dict[str, Floats] = {}
    stride = np.ones_like(next(iter(values.values())))
    for axis in reversed(AXES):
        strides[axis] = stride
        stride = stride * values[axis]
    return strides


def _inside(values: Mapping[str, Floats], domain: int) -> dict[str, Floats]:
    """Return the members of each axis's groups that share `domain` neighbouring devices."""
    inside: dict[str, Floats] = {}
    stride = np.ones_like(next(iter(values.values())))
    for axis in reversed(AXES):
        inside[axis] = np.clip(np.floor(domain / stride), 1.0, values[axis])
        stride = stride * values[axis]
    return inside

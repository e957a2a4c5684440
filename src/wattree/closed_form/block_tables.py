"""Tables of block costs and of parameter storage and traffic, for arrays of degrees."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.block_memory import block_memory, gathered_bytes, staged_bytes
from wattree.closed_form.pipeline import deferred_s
from wattree.closed_form.replica_traffic import PORTS, copied_bytes, ports_s, traffic_s
from wattree.cost.rates import Rates
from wattree.cost.update import update_bytes_per_s, update_products_s, update_traffic_bytes
from wattree.energy import dynamic_energy_j
from wattree.lowering.costs import BlockCosts
from wattree.lowering.groups import Placement
from wattree.lowering.overlap import Pipelining, hidden_under, phase_span_s
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import CollectiveInstruction, Scale
from wattree.lowering.setting import Setting
from wattree.lowering.storage import Storage, sharded_bytes
from wattree.strategy import Offload

#: Collectives alongside the instructions of a phase: none, and one.
_SPINS = np.array([0.0, 1.0])[:, None, None]
#: Instructions with this share of the highest power, or more, count as being at it.
_NEARLY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOfPool:
    """A device of one pool, with the figures that closed forms need.

    Attributes:
        behind: What fans and power supplies make of its energy.
    """

    setting: Setting
    rates: Rates
    behind: float

    def energy_j(
        self, flop: Floats, traffic: Floats, busy_s: Floats, moves: Flags, **how: Any
    ) -> Floats:
        """Return energy above idle, including the share of fans and power supplies. [J]

        Args:
            how: Further arguments of `dynamic_energy_j`.
        """
        return self.behind * dynamic_energy_j(
            self.rates.power,
            flop=flop,
            traffic_bytes=traffic,
            busy_s=busy_s,
            communicates=moves,
            copies=np.zeros(1, dtype=bool),
            **how,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """Costs of one block by degrees, `(n,)` each unless stated otherwise.

    Attributes:
        costs: On the ranks that all wait for.
        forward, backward: Time of a micro-batch; backward with recomputation. [s]
        deferred: Of backward, what can wait. [s]
        variance_s2: Of that time, where processes share the device. [s^2]
        forward_alone, backward_alone: Without collectives. [s]
        forward_moved, backward_moved: Their collectives, also hidden ones. [s]
        scale_up_s, adapter_s, uplink_s: Of these, for how long ports of each kind are busy. [s]
        saved_bytes, tier2_saved: For backward, on the device and in expanded memory. [B]
        forward_moment, backward_moment: Needed beyond that while it runs. [B]
        cached_bytes: Of forward, until the forward pass of the stage ends. [B]
        boundary_bytes: Tensors live at the boundary, `(tensors, n)`. [B]
        forward_j, backward_j: Energy above rest of a micro-batch. [J]
        overlapped_j: Further energy if traffic between replicas ran alongside all of both. [J]
        tops: As in `PhaseTable`, of forward and backward, `(2, 2, n)`. [W, s]
    """

    costs: BlockCosts
    forward: Floats
    backward: Floats
    deferred: Floats
    variance_s2: Floats
    forward_alone: Floats
    backward_alone: Floats
    forward_moved: Floats
    backward_moved: Floats
    scale_up_s: Floats
    adapter_s: Floats
    uplink_s: Floats
    saved_bytes: Floats
    tier2_saved: Floats
    forward_moment: Floats
    backward_moment: Floats
    cached_bytes: Floats
    boundary_bytes: Floats
    forward_j: Floats
    backward_j: Floats
    overlapped_j: Floats
    tops: Floats


class PhaseTable(NamedTuple):
    """One phase of a block for one micro-batch, `(n,)` each unless stated otherwise.

    Attributes:
        span_s, alone_s: Its time, and that without collectives. [s]
        moved_s: Its collectives, also those that computation hides. [s]
        ports_s: Of these, for how long each kind of port is busy, `(3, n)`. [s]
        energy_j: Above rest. [J]
        overlapped_j: Further energy if traffic between replicas ran alongside all of it. [J]
        tops: Highest power of an instruction above rest, and how long instructions draw nearly as
            much. [W, s]
    """

    span_s: Floats
    alone_s: Floats
    moved_s: Floats
    ports_s: Floats
    energy_j: Floats
    overlapped_j: Floats
    tops: tuple[Floats, Floats]


def phase_table(phase: PhaseCosts, device: DeviceOfPool, pipelining: Pipelining) -> PhaseTable:
    """Return the table of a phase on a device, given the visible shares of its collectives."""
    moves = np.array([isinstance(each, CollectiveInstruction) for each in phase.instructions], bool)
    lasts_s = phase.latency_s + phase.work_s
    return PhaseTable(
        phase_span_s(phase, pipelining),
        lasts_s[~moves].sum(axis=0),
        lasts_s[moves].sum(axis=0),
        ports_s(phase, device.rates),
        *_phase_energy(phase, lasts_s, moves[:, None], pipelining, device),
    )


def block_table(
    costs: BlockCosts, mean_costs: BlockCosts, of_phase: Callable[[PhaseCosts], PhaseTable]
) -> BlockTable:
    """Return the table of a block.

    Args:
        costs: Of the block, on the ranks that all wait for.
        mean_costs: On ranks on average, for energy.
        of_phase: The table of each phase.
    """
    forward, again, backward = map(of_phase, (costs.forward, costs.recomputation, costs.backward))
    means = mean_costs.forward, mean_costs.recomputation, mean_costs.backward
    of_means = [of_phase(phase) for phase in means]
    forward_j, again_j, backward_j = (each.energy_j for each in of_means)
    saved_bytes, forward_moment, backward_moment, cached_bytes = block_memory(costs)
    zero = np.zeros_like(forward.span_s)
    return BlockTable(
        costs=costs,
        forward=forward.span_s,
        backward=again.span_s + backward.span_s,
        deferred=deferred_s(costs),
        variance_s2=zero if costs.shared is None else costs.shared.variance_s2,
        forward_alone=forward.alone_s,
        backward_alone=again.alone_s + backward.alone_s,
        forward_moved=forward.moved_s,
        backward_moved=again.moved_s + backward.moved_s,
        **dict(zip(PORTS, forward.ports_s + again.ports_s + backward.ports_s, strict=True)),
        saved_bytes=saved_bytes,
        tier2_saved=zero if costs.tier2_saved_bytes is None else costs.tier2_saved_bytes,
        forward_moment=forward_moment,
        backward_moment=backward_moment,
        cached_bytes=cached_bytes,
        boundary_bytes=costs.boundary_bytes,
        forward_j=forward_j,
        backward_j=again_j + backward_j,
        overlapped_j=np.sum([each.overlapped_j for each in of_means], axis=0),
        tops=np.array([of_means[0].tops, of_means[2].tops]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTable:
    """Sizes of the parameters of one block by degrees, `(n,)` each.

    Attributes:
        gather, every, once, update: Time of their gathers, of reductions after every micro-batch
            and once in a step, and of gathers of what was updated. [s]
        gather_work, every_work, once_work, update_work: The same without latency. [s]
        copied_out, copied_in, copied_once: Time of copies of shards that computation waits for,
            after a gather, before the reductions of every micro-batch and of a step. [s]
        moved_scale_up_s, moved_adapter_s, moved_uplink_s: For how long these keep ports of each
            kind busy, each of them once. [s]
        gather_scale_up_s, gather_adapter_s, gather_uplink_s: The same of `gather`. [s]
        reduced_bytes, reduced_once: Gradients reduced after every micro-batch, and once in a step.
            [B]
        static, tier2_static: Held all the time, on the device and in expanded memory. [B]
        passing: Gradients that come with backward and go with the update. [B]
        gathered, staged: Whole parameters while in use, whole gradients under reduction. [B]
        updated, tier2_updated: Elements that a device updates, and those in expanded memory.
        update_flop, wider_state: See `Storage`; zero without any. [FLOP, B]
        sharded: Gradients of which each rank updates a part. [B]
        gathered_once: Parameters that are gathered after updates. [B]
        often_j, rarely_j: Energy above rest of a micro-batch and of a step, of copies and updates.
            [J]
        weights: See `Storage`. [B]
    """

    gather: Floats
    every: Floats
    once: Floats
    update: Floats
    gather_work: Floats
    every_work: Floats
    once_work: Floats
    update_work: Floats
    copied_out: Floats
    copied_in: Floats
    copied_once: Floats
    moved_scale_up_s: Floats
    moved_adapter_s: Floats
    moved_uplink_s: Floats
    gather_scale_up_s: Floats
    gather_adapter_s: Floats
    gather_uplink_s: Floats
    reduced_bytes: Floats
    reduced_once: Floats
    static: Floats
    tier2_static: Floats
    passing: Floats
    gathered: Floats
    staged: Floats
    updated: Floats
    tier2_updated: Floats
    update_flop: Floats
    wider_state: Floats
    sharded: Floats
    gathered_once: Floats
    often_j: Floats
    rarely_j: Floats
    weights: Mapping[Hashable, Floats]


def storage_table(
    storage: Storage,
    scale: Scale,
    placement: Placement,
    device: DeviceOfPool,
    *,
    update_rates: Rates,
    state_bytes: float,
    processes: int,
    gathers: int,
    buckets_bytes: tuple[Floats, Floats],
    tier2_offload: Offload,
) -> StorageTable:
    """Return the table of a block's parameters.

    Args:
        storage: What they take, and what keeps replicas in step.
        placement: Where the groups of the mesh lie.
        state_bytes: Of the optimizer, for each parameter. [B]
        processes: On each device.
        gathers: Of each parameter for a micro-batch.
        buckets_bytes: Gradients reduced, updated parameters gathered together; 0: by block. [B]
    """
    moved_s, *ports_busy_s = traffic_s(
        storage.sync, scale, placement, device.rates, buckets_bytes=buckets_bytes
    )
    zero, none = np.zeros_like(scale.micro_batch), np.zeros(1, dtype=bool)
    software = device.setting.software
    static, tier2 = _resident_bytes(storage, tier2_offload, zero)
    out, into, late = copied_bytes(storage.sync, scale)
    rate, copied = device.rates.memory_bytes_per_s, gathers * out + into
    updates = _update_columns(storage, zero)
    flop, wider, several = updates["update_flop"], updates["wider_state"], {"processes": processes}
    traffic = update_traffic_bytes(
        updates["updated"], state_bytes, software, wider_state=wider, **several
    )
    busy_s = traffic / update_bytes_per_s(state_bytes, software, update_rates)
    busy_s = busy_s + update_products_s(flop, device.rates, **several)
    return StorageTable(
        **_traffic_columns(moved_s),
        copied_out=out / rate,
        copied_in=into / rate,
        copied_once=late / rate,
        **_by_port(ports_busy_s),
        reduced_bytes=sum((g.reduce_bytes for g in storage.sync if g.every_micro_batch), zero),
        reduced_once=sum((g.reduce_bytes for g in storage.sync if not g.every_micro_batch), zero),
        static=static,
        tier2_static=tier2,
        passing=storage.gradients - storage.lasting_gradients,
        gathered=gathered_bytes(storage, scale),
        staged=staged_bytes(storage, scale),
        **updates,
        sharded=sharded_bytes(storage.sync, zero),
        gathered_once=sum((g.gather_bytes for g in storage.sync if g.update_axes), zero),
        often_j=device.energy_j(0 * copied, copied, copied / rate, none),
        rarely_j=device.energy_j(flop, traffic, busy_s, none)
        + device.energy_j(0 * late, late, late / rate, none),
        weights=storage.weights,
    )


def _update_columns(storage: Storage, zero: Floats) -> dict[str, Floats]:
    """Return the columns of what is updated."""
    columns = {
        "updated": storage.updated_elements,
        "tier2_updated": storage.tier2_elements,
        "update_flop": storage.update_flop,
        "wider_state": storage.wider_state,
    }
    return {name: zero if each is None else each for name, each in columns.items()}


def _traffic_columns(moved_s: Sequence[Floats]) -> dict[str, Floats]:
    """Return the columns of traffic, with its latency and without. [s]"""
    return {
        name + part: column
        for name, columns in zip(("gather", "every", "once", "update"), moved_s, strict=True)
        for part, column in zip(("", "_work"), columns, strict=True)
    }


def _by_port(busy_s: Sequence[Floats]) -> dict[str, Floats]:
    """Return the columns of what gathers, and what is moved otherwise, keep each port busy. [s]"""
    return {
        f"{name}_{port}": each
        for name, ports in zip(("gather", "moved"), busy_s, strict=True)
        for port, each in zip(PORTS, ports, strict=True)
    }


def _resident_bytes(storage: Storage, offload: Offload, zero: Floats) -> tuple[Floats, Floats]:
    """Return what a block's parameters take throughout, on the device and behind it. [B]"""
    names = [name for name in ("parameters", "optimizer") if getattr(offload, name) is not None]
    behind = sum((getattr(storage, name) for name in names), zero)
    whole = storage.parameters + storage.lasting_gradients + storage.optimizer
    cache = 0.0 if storage.cache is None else storage.cache
    return whole + cache - behind, behind + (0.0 if storage.tier2 is None else storage.tier2)


def _phase_energy(
    phase: PhaseCosts, lasts_s: Floats, moves: Flags, pipelining: Pipelining, device: DeviceOfPool
) -> tuple[Floats, Floats, tuple[Floats, Floats]]:
    """Return the last three figures of `PhaseTable`."""
    power = device.rates.power
    active_s = lasts_s - (1.0 - power.waiting_share) * phase.waits_s
    # Alone, and alongside traffic.
    slower = np.array(
        [np.ones(moves.shape), np.where(moves, 1.0, 1.0 / device.rates.overlap_compute_rate)]
    )
    work = phase.flop, phase.traffic_bytes, slower * lasts_s, moves
    energy, overlapped = device.energy_j(*work, active_s=slower * active_s, spins=_SPINS)
    overlapped_j = (overlapped - energy).sum(axis=0)
    watts = energy / np.maximum(lasts_s, 1e-30)
    top_w = watts.max(axis=0, initial=0.0)
    tops = top_w, (lasts_s * (watts >= _NEARLY * top_w)).sum(axis=0)
    for step, product in hidden_under(phase.instructions, pipelining).items():
        # Communication hidden by a matmul spins on the power that the matmul leaves of the limit.
        collective = phase.instructions[step]
        assert isinstance(collective, CollectiveInstruction)
        hidden_s = (1.0 - pipelining.share(collective)) * phase.work_s[step]
        left_w = np.maximum(device.behind * power.most_dynamic_w - watts[product], 0.0)
        lost_w = np.maximum(device.behind * power.spin_w - left_w, 0.0)
        energy[step] -= np.minimum(hidden_s, lasts_s[product]) * lost_w
    return energy.sum(axis=0), overlapped_j, tops

"""The instructions of one phase of a block → a row of costs each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from wattree.arrays import Floats
from wattree.cost import GroupShape, Software
from wattree.cost.rates import Rates
from wattree.lowering.collective_costs import collective_costs
from wattree.lowering.compute_costs import compute_costs, starts_s
from wattree.lowering.groups import GroupShapes
from wattree.lowering.memory_tier_access import tier2_share
from wattree.lowering.operator_costs import (
    convolution_workspace_bytes,
    is_convolution,
    runs_alone,
)
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    ComputeInstruction,
    Instruction,
    Scale,
)
from wattree.lowering.ring import Ring, buffered_blocks, rings_of

#: Share of the time that the overlap of exchanges saves, of what it hides: 0.44 with DeepEP (Qwen3
#: 235B on 256 H100, 19.7 s without and 17.6 s with it: github:yanring/Megatron-MoE-ModelZoo), 0.8
#: with an all-to-all (the same in fp8, Megatron-Bridge 26.02 and 26.04, predicted without it).
_HIDDEN = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCosts:
    """Costs of a list of instructions. Arrays have shape `(instructions, n)`.

    Attributes:
        latency_s, work_s: Fixed part and rest of each instruction's time. [s]
        waits_s: Of `work_s`, what the device waits for the host's launches. [s]
        host_s: What the host takes to launch, and to wait for routing. [s]
        flop: Matrix FLOP.
        traffic_bytes: Device memory. [B]
        wire_bytes: Sent by one rank. [B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Loads, as `cost.PortLoads`. [B]
        transient_bytes: Memory that lives only during the instruction. [B]
        in_turn: 1 for collectives whose ports and network work one after the other.
        ring_ranks: Blocks of an attention whose keys and values go round a ring, 0 for others.
        processor_s: What a collective takes of the processors that compute alongside it. [s]
    """

    instructions: tuple[Instruction, ...]
    latency_s: Floats
    work_s: Floats
    waits_s: Floats
    host_s: Floats
    flop: Floats
    traffic_bytes: Floats
    wire_bytes: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    uplink_bytes: Floats
    transient_bytes: Floats
    in_turn: Floats
    ring_ranks: Floats
    processor_s: Floats


def phase_costs(
    instructions: Sequence[Instruction],
    scale: Scale,
    placement: GroupShapes,
    rates: Rates,
    software: Software,
    *,
    kept: Mapping[int, Floats],
    whole: Floats,
) -> tuple[PhaseCosts, Floats]:
    """Return the costs of instructions, and their bytes to and from expanded memory. [B]

    Of saved activations they move there what `kept` says, by instruction; weights are read there
    where `whole` says that they are used where they are stored.
    """
    tier2_bytes = np.zeros(len(scale.micro_batch))
    costs = _empty(instructions, len(tier2_bytes))
    rings = rings_of(instructions)
    cap, memory_s = rates.power.cap, dict[int, Floats]()
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, CollectiveInstruction):
            _fill_collective(costs, index, scale, placement.group(instruction.axes, scale), rates)
            continue
        blocks = None
        if (ring := rings.get(index)) is not None:
            blocks = costs.ring_ranks[index] = scale.degree(
                _collective(instructions[ring.keys]).axes
            )
        work, flop, traffic = compute_costs(instruction, scale, rates, software, blocks)
        own = rates
        if rates.expanded is not None:
            share = tier2_share(instruction, traffic, (kept.get(index), whole), scale, rates)
            if share.any():
                own = rates.accessing(share)
                work, *_ = compute_costs(instruction, scale, own, software, blocks)
                work = work + rates.expanded.waited_s(share)
                tier2_bytes = tier2_bytes + share * traffic
        if rates.start_s and runs_alone(instruction):
            work = work + starts_s(instruction, scale, rates)
        if cap is not None:
            slowest = np.minimum(own.memory_bytes_per_s, own.stream_bytes_per_s)
            memory_s[index] = np.broadcast_to(traffic / slowest, tier2_bytes.shape)
        costs.work_s[index], costs.flop[index], costs.traffic_bytes[index] = work, flop, traffic
        costs.transient_bytes[index] = _transient(instruction, scale, rates)
        if ring is not None:
            costs.transient_bytes[index] += _visiting(ring, instructions, scale, rates)
    if cap is not None and memory_s:
        rows = list(memory_s)  # all at once: the search for a clock takes as long for one
        costs.work_s[rows] = cap.time_s(
            costs.work_s[rows],
            costs.flop[rows],
            costs.traffic_bytes[rows],
            np.array(list(memory_s.values())),
        )
    _hide_exchanges(costs, software)
    return costs, tier2_bytes


def _hide_exchanges(costs: PhaseCosts, software: Software) -> None:
    """Hide exchanges of tokens behind computation of another micro-batch, if software does.

    As much is hidden as the block's own phase computes, of a step of many micro-batches. What ranks
    send stays; loads of links shrink, so that they do not bound the time.
    """
    if not software.moe_overlap:
        return
    collectives = {
        index: each.uneven
        for index, each in enumerate(costs.instructions)
        if isinstance(each, CollectiveInstruction)
    }
    exchanges = [index for index, routed in collectives.items() if routed]
    if not exchanges:
        return
    exchanged_s = costs.work_s[exchanges].sum(axis=0)
    computed_s = np.delete(costs.work_s, list(collectives), axis=0).sum(axis=0)
    covered = np.minimum(computed_s / np.maximum(exchanged_s, 1e-12), 1.0)
    seen = 1.0 - _HIDDEN * covered
    for load in (costs.work_s, costs.scale_up_bytes, costs.adapter_bytes, costs.uplink_bytes):
        load[exchanges] *= seen


def _empty(instructions: Sequence[Instruction], count: int) -> PhaseCosts:
    """Return costs of 0 of instructions under `count` strategies, to be filled in."""
    names = [each.name for each in fields(PhaseCosts) if each.name != "instructions"]
    arrays = np.zeros((len(names), len(instructions), count))
    return PhaseCosts(instructions=tuple(instructions), **dict(zip(names, arrays, strict=True)))


def _fill_collective(
    costs: PhaseCosts,
    index: int,
    scale: Scale,
    group: GroupShape,
    rates: Rates,
) -> None:
    """Store the cost of the collective at `index`."""
    instruction = _collective(costs.instructions[index])
    size = scale.value(instruction.size) * (instruction.element_bytes or rates.element_bytes)
    found = collective_costs(instruction.kind, size, group, rates, routing=instruction.routing)
    busiest: Floats | float = 1.0
    ports: Floats | float = 1.0
    if instruction.uneven and scale.load is not None:
        busiest, ports = scale.load.busiest, scale.load.ports
    costs.latency_s[index] = found.latency_s
    costs.work_s[index] = found.work_s * busiest
    costs.wire_bytes[index] = found.wire_bytes
    costs.scale_up_bytes[index] = found.scale_up_bytes * ports
    costs.adapter_bytes[index] = found.adapter_bytes * ports
    costs.uplink_bytes[index] = found.uplink_bytes * ports
    costs.in_turn[index] = found.in_turn
    if instruction.kind is CollectiveKind.ALL_GATHER and not instruction.saved_gather:
        costs.transient_bytes[index] = size * (group.ranks > 1)  # one rank has the whole already
    if rates.exchange_s or rates.exchange_s_per_byte:  # of processors alone
        taken = rates.exchange_s + rates.exchange_s_per_byte * found.wire_bytes
        costs.processor_s[index] = np.where(group.ranks > 1, taken, 0.0)


def _collective(instruction: Instruction) -> CollectiveInstruction:
    assert isinstance(instruction, CollectiveInstruction)
    return instruction


def _visiting(
    ring: Ring, instructions: Sequence[Instruction], scale: Scale, rates: Rates
) -> Floats:
    """Return the memory of blocks on their way around a ring, on each rank. [B]"""
    keys = _collective(instructions[ring.keys])
    ranks = scale.degree(keys.axes)
    blocks = buffered_blocks(ranks, gradient=ring.gradient is not None)
    return np.asarray(blocks * scale.value(keys.size) / ranks * rates.element_bytes)


def _transient(instruction: ComputeInstruction, scale: Scale, rates: Rates) -> Floats | float:
    own = sum(map(scale.value, instruction.transient), 0.0) * rates.element_bytes
    if is_convolution(instruction):
        own = own + convolution_workspace_bytes(instruction, scale, rates)
    return own

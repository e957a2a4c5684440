"""Symbolic programs → seconds, FLOP and bytes, for one strategy or arrays of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattree.cost import (
    GroupShape,
    Software,
    fused_attention_time_s,
    halo_bytes,
    halo_loads,
    halo_work_s,
    matmul_time_s,
    ring_pass_latency_s,
    ring_pass_loads,
    ring_pass_work_s,
    unfused_attention_time_s,
    unfused_score_bytes,
    volume_factor,
)
from wattree.cost.convolution import product_time_s
from wattree.cost.rates import Rates
from wattree.graph import OperatorKind
from wattree.lowering.colocation import SharedWork, shared_work, step_fill
from wattree.lowering.memory_tier_access import far_share, kept_accesses, kept_rows, stored_whole
from wattree.lowering.operator_costs import (
    convolution_costs,
    is_convolution,
    library_passes,
    memory_bound_costs,
    runs_alone,
    weight_casts,
)
from wattree.lowering.program import (
    BlockProgram,
    CollectiveKind,
    CollectiveStep,
    ComputeStep,
    Scale,
    Step,
    StepPhase,
)
from wattree.lowering.ring import Ring, buffered_blocks, rings_of

__all__ = [
    "BlockCosts",
    "CollectiveCosts",
    "GroupShapes",
    "PhaseCosts",
    "Placement",
    "block_costs",
    "collective_costs",
]

Floats = NDArray[np.float64]

#: Backward of memory-bound operators moves this many times forward's bytes: it reads the
#: gradient and the saved operand and writes a gradient, against one read and one write.
_BACKWARD_TRAFFIC = 1.6
#: Of the loss's traffic, the part in forward (logits read for maximum, sum and pick).
_LOSS_FORWARD_SHARE = 0.4
#: Bytes per routed element that permutation moves in one pass (16-bit read and write, indices).
_PERMUTE_BYTES, _PERMUTE_BACKWARD = 6.0, 1.3
#: Casts to 8 bit: bytes per activation or gradient element, and per weight element.
_CAST_ACTIVATION_BYTES, _CAST_WEIGHT_BYTES = 4.0, 3.0
#: Exponent of the smooth maximum of device time and host time of a block.
_HOST_SMOOTHNESS = 4.0
#: Collectives that pass blocks from neighbour to neighbour. Gradients ride with the keys and
#: values of all turns but the last, so only that one has a latency of its own.
_AROUND = frozenset({CollectiveKind.RING_GATHER, CollectiveKind.RING_REDUCE})
#: Collectives with a root, and those that send as much.
_ROOTED = {
    CollectiveKind.BROADCAST: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveKind.REDUCE_SCATTER,
}
#: Matrix products that stay at 16 bit when linear layers are quantised.
_PLAIN_PRODUCTS = frozenset({"logits", "moe.router"})


class GroupShapes(Protocol):
    """Where the groups of a mesh lie in the topology."""

    def group(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        """Return the shape of the groups over `axes` together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where mesh axes lie in the topology.

    Attributes:
        inside: Axis → members of one of its groups in one scale-up domain, shape `(n,)`.
        in_leaf: The same under one leaf switch.
        stride: Axis → ranks from one member to the next, shape `(n,)`.
        filled: Devices of one scale-up domain that the job uses, shape `(n,)`.
    """

    inside: Mapping[str, Floats]
    in_leaf: Mapping[str, Floats]
    stride: Mapping[str, Floats]
    filled: Floats
    _shapes: dict[tuple[tuple[str, ...], int], tuple[Scale, GroupShape]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def group(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        """Return the shape of the groups over `axes` together, the same for the same scale."""
        key = tuple(axes), id(scale)
        if key not in self._shapes:
            self._shapes[key] = scale, self._shape(axes, scale)
        return self._shapes[key][1]

    def _shape(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        one = np.ones_like(scale.micro_batch)
        inside, in_leaf = one, one
        for axis in axes:
            inside = inside * self.inside.get(axis, one)
            in_leaf = in_leaf * self.in_leaf.get(axis, one)
        return GroupShape(
            ranks=scale.degree(tuple(axes)),
            inside=inside,
            in_leaf=in_leaf,
            spans=tuple(
                (scale.degree((axis,)) * one, self.stride[axis] * one)
                for axis in axes
                if axis in self.stride
            ),
            filled=self.filled * one,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCosts:
    """Costs of a list of steps. Arrays have shape `(steps, n)`.

    Attributes:
        latency_s, work_s: Fixed part and rest of each step's time. [s]
        flop: Matrix FLOP.
        traffic_bytes: Device memory. [B]
        wire_bytes: Sent by one rank. [B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Loads, as `cost.PortLoads`. [B]
        transient_bytes: Memory that lives only during the step. [B]
        in_turn: 1 for collectives whose ports and network work one after the other.
        ring_ranks: Blocks of an attention whose keys and values go round a ring, 0 for others.
        processor_s: What a collective takes of the processors that compute beside it. [s]
    """

    steps: tuple[Step, ...]
    latency_s: Floats
    work_s: Floats
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Costs of a block's phases and the bytes it keeps, arrays over `n` strategies.

    `shared` is what the device is to its process where others share it, else None.
    """

    program: BlockProgram
    forward: PhaseCosts
    recomputation: PhaseCosts
    backward: PhaseCosts
    saved_bytes: Floats  # (saved tensors, n), those on the device
    handed_bytes: Floats  # (tensors handed on, n)
    shared: SharedWork | None = None
    far_kept_bytes: Floats | None = None  # (n,), kept in expanded memory that the device reaches
    far_traffic_bytes: Floats | None = None  # (n,), to and from it in one micro-batch


def block_costs(
    program: BlockProgram, scale: Scale, placement: GroupShapes, rates: Rates, software: Software
) -> BlockCosts:
    """Return the costs of one block under `scale`."""
    saved_bytes = _saved_bytes(program, scale, rates, software)
    far: Floats | None = None
    moved: tuple[Mapping[int, Floats], ...] = ({}, {}, {})
    whole = np.ones(1)
    if rates.expanded is not None:
        far = kept_rows(program, saved_bytes, rates.expanded)
        saved_bytes, moved = saved_bytes - far, kept_accesses(program, far)
        whole = stored_whole(program, scale)
    phases = program.forward, program.recomputation, program.backward
    (forward, far_forward), (again, far_again), (backward, far_backward) = (
        _phase(steps, scale, placement, rates, software, kept=kept, whole=whole)
        for steps, kept in zip(phases, moved, strict=True)
    )
    # Threads of one interpreter launch forwards in turn; backward has a thread of C++ by device.
    shared = [
        _stretch_to_host([forward], rates, scale, launches=scale.launches),
        _stretch_to_host([again, backward], rates, scale),
    ]
    return BlockCosts(
        program=program,
        forward=forward,
        recomputation=again,
        backward=backward,
        saved_bytes=saved_bytes,
        handed_bytes=np.array([scale.value(s) for _, s in program.handed]).reshape(
            len(program.handed), len(scale.micro_batch)
        )
        * rates.element_bytes,
        shared=_added(shared),
        far_kept_bytes=None if far is None else far.sum(axis=0),
        far_traffic_bytes=None if far is None else far_forward + far_again + far_backward,
    )


def _added(parts: Sequence[SharedWork | None]) -> SharedWork | None:
    found = [part for part in parts if part is not None]
    return reduce(SharedWork.plus, found) if found else None


class CollectiveCosts(NamedTuple):
    """Costs of a collective, `(n,)` each.

    Attributes:
        latency_s, work_s: Fixed part and rest of its time. The work is the time where every group
            of the mesh does the same at once. [s]
        wire_bytes: Sent by one rank. [B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Loads, as `cost.PortLoads`. [B]
        in_turn: 1 where ports and network work one after the other, else 0.
    """

    latency_s: Floats
    work_s: Floats
    wire_bytes: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    uplink_bytes: Floats
    in_turn: Floats


def collective_costs(
    kind: CollectiveKind,
    size_bytes: Floats,
    group: GroupShape,
    rates: Rates,
    *,
    copies: float = 1.0,
) -> CollectiveCosts:
    """Return the costs of a collective."""
    if kind in _AROUND:
        return _ring_pass_costs(kind, size_bytes, group, rates)
    if kind is CollectiveKind.HALO:
        return _halo_costs(size_bytes, group, rates)
    if kind in _ROOTED:
        return _rooted_costs(kind, size_bytes, group, rates)
    played = rates.collectives.played(kind.value, size_bytes, group, rates.links, copies=copies)
    loads = played.loads
    factor = rates.moe_exchange_factor if copies > 1 else 1.0
    # The loads shrink with the time: what is exchanged faster than alpha-beta is not sent twice.
    sent = min(factor, 1.0)
    return CollectiveCosts(
        latency_s=played.latency_s,
        work_s=played.work_s * factor,
        wire_bytes=volume_factor(kind.value, group.ranks) * size_bytes * sent,
        scale_up_bytes=loads.scale_up * sent,
        adapter_bytes=loads.adapter * sent,
        uplink_bytes=loads.uplink * sent,
        in_turn=played.in_turn.astype(np.float64),
    )


def _ring_pass_costs(
    kind: CollectiveKind, size_bytes: Floats, group: GroupShape, rates: Rates
) -> CollectiveCosts:
    """Return the costs of blocks that go once round a ring of neighbours."""
    links = rates.links
    turns = group.ranks - 1.0 if kind is CollectiveKind.RING_GATHER else 1.0
    stretch = rates.collectives.neighbour_stretch(group)
    loads = ring_pass_loads(size_bytes, group, stretch=stretch)
    return CollectiveCosts(
        latency_s=turns * ring_pass_latency_s(group, links),
        work_s=ring_pass_work_s(size_bytes, group, links, stretch=stretch),
        wire_bytes=size_bytes * (group.ranks - 1.0) / group.ranks,
        scale_up_bytes=loads.scale_up,
        adapter_bytes=loads.adapter,
        uplink_bytes=loads.uplink,
        in_turn=np.zeros_like(size_bytes),
    )


def _rooted_costs(
    kind: CollectiveKind, size_bytes: Floats, group: GroupShape, rates: Rates
) -> CollectiveCosts:
    """Return the costs of what one rank has and all get, or the other way round.

    In a ring the whole goes through the port of every rank but the last: as much as in a gather
    whose whole is `n / (n - 1)` times as large.
    """
    factor = np.where(group.ranks > 1, group.ranks / np.maximum(group.ranks - 1.0, 1.0), 0.0)
    return collective_costs(_ROOTED[kind], size_bytes * factor, group, rates)


def _halo_costs(size_bytes: Floats, group: GroupShape, rates: Rates) -> CollectiveCosts:
    """Return the costs of rows that go to both neighbours at once."""
    stretch = rates.collectives.neighbour_stretch(group)
    loads = halo_loads(size_bytes, group, stretch=stretch)
    return CollectiveCosts(
        latency_s=ring_pass_latency_s(group, rates.links),
        work_s=halo_work_s(size_bytes, group, rates.links, stretch=stretch),
        wire_bytes=halo_bytes(size_bytes, group),
        scale_up_bytes=loads.scale_up,
        adapter_bytes=loads.adapter,
        uplink_bytes=loads.uplink,
        in_turn=np.zeros_like(size_bytes),
    )


def _phase(
    steps: Sequence[Step],
    scale: Scale,
    placement: GroupShapes,
    rates: Rates,
    software: Software,
    *,
    kept: Mapping[int, Floats],
    whole: Floats,
) -> tuple[PhaseCosts, Floats]:
    """Return the costs of steps, and what they move to and from expanded memory. [B]

    Of kept activations they move there what `kept` says, by step; weights are read there where
    `whole` says that they are used where they are stored.
    """
    count = len(scale.micro_batch)
    far_bytes = np.zeros(count)
    table = np.zeros((12, len(steps), count))
    rings = rings_of(steps)
    for ring in rings.values():
        table[10, ring.attention] = scale.degree(_collective(steps[ring.keys]).axes)
    for index, step in enumerate(steps):
        if isinstance(step, CollectiveStep):
            size = scale.value(step.size) * (step.element_bytes or rates.element_bytes)
            group = placement.group(step.axes, scale)
            latency, work, wire, *loads, in_turn = collective_costs(
                step.kind, size, group, rates, copies=step.copies
            )
            if step.uneven and scale.load is not None:
                work = work * scale.load.busiest
                loads = [load * scale.load.ports for load in loads]
            is_gather = step.kind is CollectiveKind.ALL_GATHER
            is_gather = is_gather and not step.kept
            gathered = size * (is_gather & (group.ranks > 1))  # one rank has the whole already
            none = 0 * size
            table[:10, index] = latency, work, none, none, wire, *loads, gathered, in_turn
            taken = rates.exchange_s + rates.exchange_s_per_byte * wire
            table[11, index] = np.where(group.ranks > 1, taken, 0.0)
        else:
            blocks = table[10, index] if index in rings else None
            work, flop, traffic = _compute(step, scale, rates, software, blocks)
            own = rates
            if rates.expanded is not None:
                share = far_share(step, traffic, (kept.get(index), whole), scale, rates)
                if share.any():
                    own = rates.reaching(share)
                    work, *_ = _compute(step, scale, own, software, blocks)
                    work = work + rates.expanded.waited_s(share)
                    far_bytes = far_bytes + share * traffic
            if rates.start_s is not None and runs_alone(step):
                work = work + _starts_s(step, scale, rates)
            if (cap := rates.power.cap) is not None:
                slowest = np.minimum(own.memory_bytes_per_s, own.stream_bytes_per_s)
                work = cap.time_s(work, flop, traffic, traffic / slowest)
            table[1, index], table[2, index], table[3, index] = work, flop, traffic
            table[8, index] = _transient(step, scale, rates)
            if index in rings:
                table[8, index] += _visiting(rings[index], steps, scale, rates)
    costs = PhaseCosts(
        steps=tuple(steps),
        latency_s=table[0],
        work_s=table[1],
        flop=table[2],
        traffic_bytes=table[3],
        wire_bytes=table[4],
        scale_up_bytes=table[5],
        adapter_bytes=table[6],
        uplink_bytes=table[7],
        transient_bytes=table[8],
        in_turn=table[9],
        ring_ranks=table[10],
        processor_s=table[11],
    )
    return costs, far_bytes


def _collective(step: Step) -> CollectiveStep:
    assert isinstance(step, CollectiveStep)
    return step


def _visiting(ring: Ring, steps: Sequence[Step], scale: Scale, rates: Rates) -> Floats:
    """Return what blocks on their way round a ring take on each rank. [B]"""
    keys = _collective(steps[ring.keys])
    ranks = scale.degree(keys.axes)
    blocks = buffered_blocks(ranks, gradient=ring.gradient is not None)
    return np.asarray(blocks * scale.value(keys.size) / ranks * rates.element_bytes)


def _transient(step: ComputeStep, scale: Scale, rates: Rates) -> Floats:
    size = np.zeros_like(scale.micro_batch)
    for part in step.transient:
        size = size + scale.value(part)
    return size * rates.element_bytes


def _compute(
    step: ComputeStep,
    scale: Scale,
    rates: Rates,
    software: Software,
    blocks: Floats | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Return time, matrix FLOP and memory traffic of a compute step.

    Args:
        step: The step.
        scale: Values of its symbols.
        rates: What devices reach.
        software: Its habits.
        blocks: Of keys and values that an attention meets one after another; None for one.
    """
    if is_convolution(step):
        return convolution_costs(step, scale, rates, software)
    if step.matmul is not None:
        return _product(step, scale, rates, software)
    if step.kind is OperatorKind.ATTENTION:
        return _attention(step, scale, rates, software, blocks)
    if (passes := library_passes(step, software)) is not None:
        return memory_bound_costs(step, passes, scale, rates, software)
    sizes = [scale.value(size) for size in step.traffic]
    backward = step.phase in {StepPhase.INPUT_GRADIENT, StepPhase.WEIGHT_GRADIENT}
    if step.kind is OperatorKind.CROSS_ENTROPY:
        share = 1 - _LOSS_FORWARD_SHARE if backward else _LOSS_FORWARD_SHARE
        traffic = sizes[0] * software.loss_traffic_bytes_per_logit * share
    elif step.kind is OperatorKind.PERMUTE:
        traffic = np.maximum.reduce(sizes) * _PERMUTE_BYTES * rates.moe_permute_factor
        traffic = traffic * (_PERMUTE_BACKWARD if backward else 1.0)
    else:
        moved = np.add.reduce(sizes)
        traffic = moved * rates.element_bytes * rates.elementwise_factor
        traffic = traffic * (_BACKWARD_TRAFFIC if backward else 1.0)
    traffic = np.asarray(traffic * step.share)
    return traffic / rates.memory_bytes_per_s, np.zeros_like(traffic), traffic


def _product(
    step: ComputeStep, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats]:
    assert step.matmul is not None
    m, n, k, groups = (
        scale.value(size)
        for size in (step.matmul.m, step.matmul.n, step.matmul.k, step.matmul.groups)
    )
    if step.phase is StepPhase.INPUT_GRADIENT:
        n, k = k, n
    elif step.phase is StepPhase.WEIGHT_GRADIENT:
        m, k = k, m
    turns: Floats | float = 1.0
    if step.in_turn is not None:
        # One step after another: each is a product of its own rows, and reads the weights again.
        # Gradients of the weights are taken for all of them at once.
        turns = scale.value(step.in_turn) if step.phase is not StepPhase.WEIGHT_GRADIENT else 1.0
        m = m / turns
    quantised = rates.quantised and step.path not in _PLAIN_PRODUCTS
    elements = groups * (m * k + k * n + m * n)
    traffic = elements * rates.element_bytes
    library = software.library_kernels or rates.convolution.kernels.profiled
    if library and not quantised:
        time_s = product_time_s(
            m=m,
            n=n,
            k=k,
            groups=groups,
            rates=rates.convolution,
            # Gradients of weights lie as the weights do, inputs along rows.
            row=m if step.phase is StepPhase.WEIGHT_GRADIENT else n,
            kept=step.phase is StepPhase.WEIGHT_GRADIENT,
        )
    else:
        time_s = matmul_time_s(
            m=m,
            n=n,
            k=k,
            groups=groups,
            flop_per_s=rates.linear_flop_per_s if quantised else rates.plain_flop_per_s,
            compute_units=rates.compute_units,
            traffic_bytes=traffic,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            alignment_penalty=rates.alignment_penalty,
        )
    if quantised:
        casts = _casts(step.phase, m, n, k, groups)
        time_s = time_s + casts / rates.memory_bytes_per_s
        traffic = traffic + casts
    if step.in_turn is not None and rates.start_s is None:
        time_s = np.maximum(time_s, rates.kernel_s)
    time_s, traffic = time_s * turns, traffic * turns
    if step.weights and (copies := weight_casts(step, scale, rates, software)) is not None:
        time_s = time_s + copies / rates.memory_bytes_per_s
        traffic = traffic + copies
    flop = 2.0 * m * n * k * groups * turns * step.share
    return time_s * step.share, flop, traffic * step.share


def _casts(phase: StepPhase, m: Floats, n: Floats, k: Floats, groups: Floats) -> Floats:
    """Bytes moved by casts: activations and weights in forward, gradients once in backward."""
    if phase is StepPhase.INPUT_GRADIENT:
        return groups * m * k * _CAST_ACTIVATION_BYTES  # k is the gradient's width here
    if phase is StepPhase.WEIGHT_GRADIENT:
        return np.zeros_like(m)
    return groups * (m * k * _CAST_ACTIVATION_BYTES + k * n * _CAST_WEIGHT_BYTES)


def _attention(
    step: ComputeStep, scale: Scale, rates: Rates, software: Software, blocks: Floats | None
) -> tuple[Floats, Floats, Floats]:
    assert step.mask is not None
    backward = step.phase is not StepPhase.FORWARD and step.phase is not StepPhase.RECOMPUTATION
    head_dim = (step.head_dim + step.value_head_dim) / 2
    full = scale.value(step.batch) * scale.value(step.queries) * scale.value(step.heads)
    keys = float(scale.value(step.keys)[0])  # the same for all: no axis splits it
    full = full * keys
    products = 5.0 if backward else 2.0
    if software.fused_attention:
        scores = full * step.mask.visible_share(keys)
        time_s = fused_attention_time_s(
            scores=scores,
            head_dim=head_dim,
            keys=keys if blocks is None else keys / blocks,
            flop_per_s=rates.attention_flop_per_s,
            ramp_tokens=rates.attention_ramp_tokens,
            backward=backward,
        )
        traffic = sum(scale.value(size) for size in step.traffic) * rates.element_bytes
    else:
        scores, products = full, (4.0 if backward else 2.0)
        per_score = unfused_score_bytes(
            backward=backward,
            library_kernels=software.library_kernels,
            autocast=software.autocast and rates.element_bytes < 4.0,
            element_bytes=rates.element_bytes,
        )
        time_s = unfused_attention_time_s(
            scores=full,
            head_dim=head_dim,
            peak_flop_per_s=rates.peak_flop_per_s,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            misaligned_factor=rates.head_misalignment,
            score_bytes=per_score,
            backward=backward,
        )
        traffic = full * per_score
    flop = 2.0 * products * scores * head_dim
    if step.skewed_axes:
        # The last of `p` contiguous pieces sees `p - 1/2` blocks, all pieces `p / 2` on average;
        # who is done earlier waits for it at the next exchange.
        time_s = time_s * (2.0 - 1.0 / scale.degree(step.skewed_axes))
    return time_s * step.share, flop * step.share, np.asarray(traffic) * step.share


#: Tensors of a module beside its parameters: running mean, variance and count.
_BUFFERS = {OperatorKind.BATCH_NORM: 3}


def _stretch_to_host(
    phases: Sequence[PhaseCosts], rates: Rates, scale: Scale, *, launches: float = 1.0
) -> SharedWork | None:
    """Stretch compute so that a block takes the smooth maximum of device and host time, in place.

    A launch-bound block's kernels run in gaps: `(device**4 + host**4)**(1/4)` over the block.
    Where a graph replays them, nothing but routing decisions of experts waits for the host.
    Where launches block, each kernel takes its launch besides. Ranks with fewer tokens wait for
    the busiest, so their hosts have as long as its host has.
    Where processes share the device, what the host leaves idle is think time of a closed queue, and
    what that makes of the block is returned.
    """
    computes = [
        (phase, index, step)
        for phase in phases
        for index, step in enumerate(phase.steps)
        if isinstance(step, ComputeStep)
    ]
    if not computes:
        return None
    device: Floats = np.zeros(phases[0].work_s.shape[1])
    for phase, index, step in computes:
        own = _launched(step, scale) * step.kernels
        phase.work_s[index] += own * rates.blocking_s * (step.share > 0)
        device = device + phase.work_s[index]
    host = np.zeros_like(device)
    for _, _, step in computes:
        once_s = _host_time_s(step, rates)
        if launches > 1:  # one process makes a replica of each module before it launches it
            once_s += (len(step.weights) + _BUFFERS.get(step.kind, 0)) * rates.replicate_s
        host = host + launches * _launched(step, scale) * once_s
    ratio = host / np.maximum(device, 1e-12)
    stretch = (1.0 + ratio**_HOST_SMOOTHNESS) ** (1.0 / _HOST_SMOOTHNESS)
    if scale.load is not None:
        stretch = stretch[scale.load.leader]
    shared = None
    if rates.sharing.processes > 1:
        shared = _shared(computes, device, stretch, rates, scale)
        stretch = shared.stretch
    for phase, index, _ in computes:
        phase.work_s[index] *= stretch
    return shared


def _shared(
    computes: Sequence[tuple[PhaseCosts, int, ComputeStep]],
    device: Floats,
    stretch: Floats,
    rates: Rates,
    scale: Scale,
) -> SharedWork:
    """Return what the device is to one of several processes; let FLOP and traffic count all."""
    sharing, filled, kernels = rates.sharing, 0.0 * device, 0.0 * device
    for phase, index, step in computes:
        launched = _launched(step, scale) * step.kernels
        blocked = launched * rates.blocking_s * (step.share > 0)
        own = phase.work_s[index] - blocked
        filled = filled + own * step_fill(step, scale, sharing) + blocked * sharing.launch_fill
        kernels = kernels + launched
        phase.flop[index] *= sharing.processes
        phase.traffic_bytes[index] *= sharing.processes
    return shared_work(device * (stretch - 1.0), device, filled, kernels, sharing)


def _starts_s(step: ComputeStep, scale: Scale, rates: Rates) -> Floats | float:
    """Return what kernels of a step take to start and to drain, where a graph replays them. [s]

    The next one starts when the one before has ended, so this adds to their work. Without a graph
    the time between kernels is in the constants that were fitted to such runs.
    """
    turns = scale.value(step.in_turn) if step.in_turn is not None else 1.0
    start_s = rates.start_s or 0.0
    return _launched(step, scale) * step.kernels * turns * start_s * (step.share > 0)


def _launched(step: ComputeStep, scale: Scale) -> Floats | float:
    """Return on which share of ranks a step is launched: one has it whole, or all have part."""
    if not step.owners:
        return 1.0
    share = 1.0 / scale.degree(step.owners)
    return share if scale.load is None else share * scale.load.tokens


def _host_time_s(step: ComputeStep, rates: Rates) -> float:
    """Return what the host needs to launch a step, routing decisions included. [s]

    A graph launches all of its kernels at once.
    """
    routing = rates.moe_host_s / 2 if step.kind is OperatorKind.PERMUTE else 0.0
    return (step.kernels * rates.launch_s if rates.start_s is None else 0.0) + routing


def _saved_bytes(program: BlockProgram, scale: Scale, rates: Rates, software: Software) -> Floats:
    rows = np.zeros((len(program.saved), len(scale.micro_batch)))
    for index, tensor in enumerate(program.saved):
        width = rates.element_bytes
        if tensor.kind == "logits":
            width = software.loss_bytes_per_logit
        elif tensor.kind == "scores":
            # Softmax, dropout mask and output: 2 + 1 + 2 bytes (Korthikanti 2022, eq. 1).
            width = 0.0 if software.fused_attention else 5.0
        elif tensor.mask_bytes > 0:
            width = tensor.mask_bytes
        rows[index] = scale.value(tensor.size) * width
    return rows

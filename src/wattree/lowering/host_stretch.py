"""Extend the time of a block by the host time of kernel launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.cost.rates import Rates
from wattree.cost.written_out import steps_of
from wattree.graph import OperatorKind
from wattree.lowering.colocation import SharedWork, shared_work, step_fill
from wattree.lowering.compute_costs import launches_of
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale

#: Exponent of the smooth maximum of device time and host time of a block.
HOST_SMOOTHNESS = 4.0
#: Tensors of a module besides its parameters: running mean, variance and count.
_BUFFERS = {OperatorKind.BATCH_NORM: 3}
#: Kernels by product that a loop over experts launches for each: their tokens are found (five) and
#: gathered, multiplied, gated, multiplied, weighted and added up (`MixtralSparseMoeBlock.forward`
#: of transformers 4); backward does the same, and scatters with a sort.
_IN_LOOP = {
    InstructionPhase.FORWARD: 7.0,
    InstructionPhase.RECOMPUTATION: 7.0,
    InstructionPhase.INPUT_GRADIENT: 8.0,
    InstructionPhase.WEIGHT_GRADIENT: 2.0,
}
#: The catalog's products of experts, and layers for each: gate, up and down, in two products.
_GROUPED, _EXPERT_LAYERS = "grouped_linear", 1.5
#: Calls of attention in eager PyTorch: two products, softmax, dropout, and a copy of the result;
#: backward four products, softmax, dropout, and a concatenation of three gradients (`CoreAttention`
#: of Megatron-LM, 2022).
_CALLED_ATTENTION = (5.0, 7.0)
#: Graphs of a part of each layer → beginnings of what they replay: routing, or all before sizes
#: depend on it (scopes `moe_router`, `moe_preprocess` and, of the latter, `attn` of Megatron-Core).
_ROUTING = ("moe.router", "moe.topk")
REPLAYED = {
    "router": _ROUTING,
    "partial": ("input_norm", "attention", "post_attention", "mlp_norm", *_ROUTING),
}


class _Compute(NamedTuple):
    """A compute instruction, its row in the costs of its phase, and how many kernels it is."""

    phase: PhaseCosts
    row: int
    instruction: ComputeInstruction
    kernels: float


def stretch_to_host(
    phases: Sequence[PhaseCosts], rates: Rates, scale: Scale, *, launches: float = 1.0
) -> SharedWork | None:
    """Stretch compute so that a block takes the smooth maximum of device and host time, in place.

    A launch-bound block's kernels run in gaps: `(device**4 + host**4)**(1/4)` over the block.
    Where a graph replays them, nothing but routing decisions of experts waits for the host.
    Where launches block, each kernel also takes its launch time. Ranks with fewer tokens wait for
    the busiest rank, so their hosts have as much time as its host.
    Where processes share the device, what the host leaves idle is think time of a closed queue, and
    the resulting terms of the block are returned.
    """
    computes = [
        _Compute(phase, index, instruction, _kernels(instruction, rates))
        for phase in phases
        for index, instruction in enumerate(phase.instructions)
        if isinstance(instruction, ComputeInstruction)
    ]
    if not computes:
        return None
    device: Floats = np.zeros(phases[0].work_s.shape[1])
    host = np.zeros_like(device)
    for phase, row, instruction, kernels in computes:
        launched = launches_of(instruction, scale)
        own = launched * kernels
        blocked_s = launched * blocked_s_of(instruction, rates)
        if not (rates.start_s or rates.blocking_s):  # none is shorter than the shortest there is
            least_s = own * rates.kernel_s * instruction.share
            phase.work_s[row] = np.maximum(phase.work_s[row], least_s)
        phase.work_s[row] += blocked_s
        device = device + phase.work_s[row]
        once_s = _host_time_s(instruction, kernels, rates, scale)
        if launches > 1:  # one process makes a replica of each module before it launches it
            once_s += (
                len(instruction.weights) + _BUFFERS.get(instruction.kind, 0)
            ) * rates.replicate_s
        phase.host_s[row] = launches * launched * once_s
        host = host + phase.host_s[row]
    ratio = host / np.maximum(device, 1e-12)
    stretch = (1.0 + ratio**HOST_SMOOTHNESS) ** (1.0 / HOST_SMOOTHNESS)
    if scale.load is not None:
        stretch = stretch[scale.load.leader]
    shared = None
    if rates.sharing.processes > 1:
        shared = _shared(computes, device, stretch, rates, scale)
        stretch = shared.stretch
    for phase in phases:
        rows = [each.row for each in computes if each.phase is phase]
        if shared is None:
            phase.waits_s[rows] = phase.work_s[rows] * (stretch - 1.0)
        phase.work_s[rows] *= stretch
    return shared


def _shared(
    computes: Sequence[_Compute],
    device: Floats,
    stretch: Floats,
    rates: Rates,
    scale: Scale,
) -> SharedWork:
    """Return the queueing terms of one of several processes; FLOP and traffic then count all."""
    sharing, filled, kernels = rates.sharing, 0.0 * device, 0.0 * device
    for phase, row, instruction, each in computes:
        launched = launches_of(instruction, scale) * each
        blocked = launches_of(instruction, scale) * blocked_s_of(instruction, rates)
        own = phase.work_s[row] - blocked
        filled = (
            filled + own * step_fill(instruction, scale, sharing) + blocked * sharing.launch_fill
        )
        kernels = kernels + launched
        phase.flop[row] *= sharing.processes
        phase.traffic_bytes[row] *= sharing.processes
    return shared_work(device * (stretch - 1.0), device, filled, kernels, sharing)


def blocked_s_of(instruction: ComputeInstruction, rates: Rates) -> float:
    """Return the time that an instruction adds where launches block. [s]

    Each call of eager PyTorch then takes the host's time besides the device's: also the addition of
    a parameter's gradient to that of earlier micro-batches. On a processor, where the time of a
    call was measured, operators count as they are.
    """
    if not rates.blocking_s or instruction.share <= 0:
        return 0.0
    calls = _kernels(instruction, rates)
    if rates.launch_s:
        calls = _calls(instruction, calls, rates)
    return calls * rates.blocking_s


def _calls(instruction: ComputeInstruction, kernels: float, rates: Rates) -> float:
    """Return how many calls of eager PyTorch an instruction is."""
    backward = instruction.phase in {
        InstructionPhase.INPUT_GRADIENT,
        InstructionPhase.WEIGHT_GRADIENT,
    }
    if instruction.kind is OperatorKind.ATTENTION and not rates.fuses_steps:
        return _CALLED_ATTENTION[backward]
    if instruction.phase is InstructionPhase.WEIGHT_GRADIENT:
        return 2.0 * max(len(instruction.weights), 1)  # of weight and bias, each added up
    if instruction.kind is OperatorKind.NORM and backward:
        return kernels + len(instruction.weights)
    return kernels


def is_replayed(path: str, graphs: str) -> bool:
    """Return whether an operator is replayed by graphs of a part of each layer.

    Layers of the catalog, and of transformers by their sizes, name their parts; captured ones do
    not.
    """
    return path.startswith(REPLAYED.get(graphs, ()))


def routing_share(instruction: ComputeInstruction, rates: Rates) -> float:
    """Return the part of an instruction's host time that waits for routing decisions of experts."""
    waits_s = _routing_s(instruction, rates)
    launched_s = _launched_s(instruction, _kernels(instruction, rates), rates)
    return waits_s and waits_s / (waits_s + launched_s)


def _host_time_s(
    instruction: ComputeInstruction, kernels: float, rates: Rates, scale: Scale
) -> Floats | float:
    """Return the host time to launch an instruction, routing decisions included. [s]"""
    waits_s = _routing_s(instruction, rates)
    launched_s = _launched_s(instruction, kernels, rates)
    return launched_s + waits_s + _by_expert_s(instruction, rates, scale)


def _routing_s(instruction: ComputeInstruction, rates: Rates) -> float:
    return rates.moe_host_s / 2 if instruction.kind is OperatorKind.PERMUTE else 0.0


def _launched_s(instruction: ComputeInstruction, kernels: float, rates: Rates) -> float:
    """Return the host time to launch kernels; a graph launches all of its own at once. [s]"""
    in_part = is_replayed(instruction.path, rates.cuda_graphs)
    return 0.0 if in_part or rates.cuda_graphs == "full" else kernels * rates.launch_s


def _by_expert_s(instruction: ComputeInstruction, rates: Rates, scale: Scale) -> Floats | float:
    """Return the host time of the matmuls of all local experts but the first, and of casts. [s]

    Transformer Engine's `GroupedLinear` launches a product of cuBLAS for each expert, and before
    that, in 8 and 4 bits, a kernel for each that casts what it reads (`multi_stream_cublas_gemm`,
    `multi_tensor_quantize`; delayed scaling alone casts for all at once). Gradients of weights read
    what the other passes have cast. A loop over modules launches all that one expert does; ZeRO-3
    gathers each of its layers in the other passes. Other groups (of convolutions, of a captured
    `bmm`) are one kernel in any software.
    """
    matmul = instruction.matmul
    if not rates.expert_launch_s or not instruction.weights or matmul is None or not matmul.experts:
        return 0.0
    experts = scale.value(matmul.groups)
    casts = rates.quantized and instruction.phase is not InstructionPhase.WEIGHT_GRADIENT
    each = np.where(experts > 1, experts * (1.0 + casts) - 1.0, 0.0)
    if rates.experts_in_loop:
        each = np.maximum(experts - 1.0, 0.0) * _IN_LOOP[instruction.phase]
    gathers = instruction.phase is not InstructionPhase.WEIGHT_GRADIENT
    layers = _EXPERT_LAYERS if instruction.function == _GROUPED else instruction.linear_layers
    gathered_s = experts * gathers * layers * rates.expert_fetch_s
    return np.asarray(each * rates.expert_launch_s + gathered_s)


def _kernels(instruction: ComputeInstruction, rates: Rates) -> float:
    """Return how many kernels an instruction is, with casts of its operands.

    Modules that are written out may have linear layers of their own for what one matmul joins.
    """
    steps = steps_of(instruction.function)
    each_tensor = max(1, len(instruction.writes))  # queries and keys, in one operator or in two
    if not rates.written_out:
        return each_tensor if rates.fuses_steps and steps else instruction.kernels
    if instruction.kind is OperatorKind.MATMUL and instruction.weights:
        weights = len(instruction.weights)
        one = _of_linear(instruction.phase, weights, casts=rates.casts)
        return one * (1.0 + rates.written_out * (instruction.linear_layers - 1))
    if steps is None:
        return instruction.kernels
    is_forward = instruction.phase is InstructionPhase.FORWARD
    each = steps.forward_kernels if is_forward else steps.backward_kernels
    each *= each_tensor
    return rates.written_out * each + (1.0 - rates.written_out) * instruction.kernels


def _of_linear(phase: InstructionPhase, weights: int, *, casts: bool) -> int:
    """Return the kernels of one pass of a linear layer, and of casts of what it reads and makes.

    Args:
        weights: Its weight, and its bias, whose gradient is a sum of its own.
        casts: Autocast casts them, and inputs.
    """
    match phase:
        case InstructionPhase.FORWARD:
            return 1 + casts * (1 + weights)
        case InstructionPhase.INPUT_GRADIENT:
            return 1 + casts
        case _:
            return weights + casts * weights

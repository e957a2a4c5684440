"""Time, FLOP and bytes of one compute instruction, and the start time of its kernels."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.cost.written_out import Steps, steps_of, steps_of_permutation, steps_of_variant
from wattree.graph import OperatorKind
from wattree.lowering.attention_costs import attention_costs
from wattree.lowering.matmul_costs import matmul_costs
from wattree.lowering.operator_costs import (
    convolution_costs,
    is_convolution,
    library_passes,
    memory_bound_costs,
    wide_elements,
)
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale

#: Backward of memory-bound operators moves this many times forward's bytes: it reads the
#: gradient and the saved operand and writes a gradient, against one read and one write.
_BACKWARD_TRAFFIC = 1.6
#: Passes over the result of a norm that a compiler merges with the sum before it: forward it writes
#: (what it reads is in registers); backward it reads its input and the gradients of its result and
#: of the sum, writes one, and reads two again if gradients of weights are wanted.
_MERGED_NORM, _MERGED_NORM_BACKWARD, _MERGED_NORM_WEIGHTS = 1.0, 4.0, 2.0
#: The same of sums backward: gradients of what is added are the result's, or that scaled.
_MERGED_SUMS_BACKWARD = {"add": 0.0, "scale_add": 2.0}
#: Width of the elements for which `cost.written_out` counts. [B]
_HALF_BYTES, _FULL_BYTES = 2.0, 4.0
#: Of the loss's traffic, the part in forward (logits read for maximum, sum and pick).
_LOSS_FORWARD_SHARE = 0.4
#: Bytes per routed element that permutation moves in one pass (16-bit read and write, indices).
_PERMUTE_BYTES, _PERMUTE_BACKWARD = 6.0, 1.3


def compute_costs(
    instruction: ComputeInstruction,
    scale: Scale,
    rates: Rates,
    software: Software,
    blocks: Floats | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Return time, matrix FLOP and memory traffic of a compute instruction.

    Args:
        blocks: Key-value blocks that attention processes in sequence; None for one.
    """
    if not instruction.owners:
        return _costs(instruction, scale, rates, software, blocks)
    absent = np.asarray(launches_of(instruction, scale)) == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):  # of kernels without work
        found = _costs(instruction, scale, rates, software, blocks)
    time_s, flop, traffic = (np.where(absent, 0.0, each) for each in found)
    return time_s, flop, traffic


def _costs(
    instruction: ComputeInstruction,
    scale: Scale,
    rates: Rates,
    software: Software,
    blocks: Floats | None,
) -> tuple[Floats, Floats, Floats]:
    if is_convolution(instruction):
        return convolution_costs(instruction, scale, rates, software)
    if instruction.matmul is not None:
        return matmul_costs(instruction, scale, rates, software)
    if instruction.kind is OperatorKind.ATTENTION:
        return attention_costs(instruction, scale, rates, software, blocks)
    sizes = [scale.value(size) for size in instruction.traffic]
    backward = instruction.phase in {
        InstructionPhase.INPUT_GRADIENT,
        InstructionPhase.WEIGHT_GRADIENT,
    }
    if (written := _steps(instruction, rates, software)) is not None:
        fused, share, steps = written
        moved = np.add.reduce(sizes) * rates.element_bytes
        once = moved * rates.elementwise_factor * fused
        once = once * (_BACKWARD_TRAFFIC if backward else 1.0)
        each = moved * (steps.backward_bytes if backward else steps.forward_bytes) / _HALF_BYTES
        each = each * share * (steps.under_autocast if rates.casts else 1.0)
        traffic = np.asarray((once + each) * instruction.share)
        time_s = (once + each / rates.written_out_rate) / rates.memory_bytes_per_s
        return time_s * instruction.share, np.zeros_like(traffic), traffic
    if (passes := library_passes(instruction, software)) is not None:
        return memory_bound_costs(instruction, passes, scale, rates, software)
    if instruction.kind is OperatorKind.CROSS_ENTROPY:
        share = 1 - _LOSS_FORWARD_SHARE if backward else _LOSS_FORWARD_SHARE
        traffic = np.add.reduce(sizes[:1]) * software.loss_traffic_bytes * share
    elif instruction.kind is OperatorKind.PERMUTE:
        moved = _PERMUTE_BYTES * rates.moe_permute_factor * (_PERMUTE_BACKWARD if backward else 1.0)
        if (own := steps_of_permutation(instruction.function, software)) is not None:
            moved = own.backward_bytes if backward else own.forward_bytes
        traffic = np.maximum.reduce(sizes, initial=0.0) * moved  # none, if all are of fixed width
    else:
        moved = np.add.reduce(sizes) * (_BACKWARD_TRAFFIC if backward else 1.0)
        traffic = moved * rates.element_bytes
        if software.compiled:
            traffic = _merged_bytes(instruction, traffic, scale, rates, software)
        traffic = traffic * rates.elementwise_factor
    traffic = np.asarray(traffic * instruction.share)
    rate = rates.permute_rate if instruction.kind is OperatorKind.PERMUTE else 1.0
    return traffic / (rates.memory_bytes_per_s * rate), np.zeros_like(traffic), traffic


def _merged_bytes(
    instruction: ComputeInstruction,
    alone_bytes: Floats,
    scale: Scale,
    rates: Rates,
    software: Software,
) -> Floats:
    """Return the traffic of what a compiler merges with its neighbors, casts too. [B]

    Where autocast leaves the residual stream in fp32, a norm's gradient reads that and the sum's
    gradient as wide, and writes the latter so and in 16 bits, for the products before the sum.

    Args:
        alone_bytes: Of a kernel of its own.
    """
    backward = instruction.phase in {
        InstructionPhase.INPUT_GRADIENT,
        InstructionPhase.WEIGHT_GRADIENT,
    }
    is_norm = instruction.kind is OperatorKind.NORM
    made = np.asarray(np.add.reduce([scale.value(size) for size in instruction.writes]))
    made = made * rates.element_bytes
    wide, wide_made = wide_elements(instruction, scale, rates, software)
    more = _FULL_BYTES - rates.element_bytes
    if is_norm and backward:
        passes = _MERGED_NORM_BACKWARD + _MERGED_NORM_WEIGHTS * instruction.trains
        return made * passes + wide * (3.0 * more + _HALF_BYTES + more * instruction.trains)
    if is_norm:
        return made * _MERGED_NORM
    if instruction.function not in _MERGED_SUMS_BACKWARD:
        return alone_bytes
    if backward:
        return made * _MERGED_SUMS_BACKWARD[instruction.function]
    return alone_bytes + (wide + wide_made) * more


def _steps(
    instruction: ComputeInstruction, rates: Rates, software: Software
) -> tuple[float, float, Steps] | None:
    """Return the shares of one kernel and of steps, and the steps; None: one kernel is all."""
    if rates.written_out:
        steps = steps_of(instruction.function)
        return None if steps is None else (1.0 - rates.written_out, rates.written_out, steps)
    variant = steps_of_variant(instruction.function, software)
    return None if variant is None else (variant[0], 1.0, variant[1])


def starts_s(instruction: ComputeInstruction, scale: Scale, rates: Rates) -> Floats | float:
    """Return the time of kernels to start and to drain in a replayed graph. [s]

    The next one starts when the one before has ended, so this adds to their work. Without a graph
    the time between kernels is in the constants that were fitted to such runs.
    """
    turns = scale.value(instruction.in_turn) if instruction.in_turn is not None else 1.0
    return (
        launches_of(instruction, scale)
        * instruction.kernels
        * turns
        * rates.start_s
        * (instruction.share > 0)
    )


def launches_of(instruction: ComputeInstruction, scale: Scale) -> Floats | float:
    """Return the share of ranks that launch an instruction: one owner, or all ranks."""
    if not instruction.owners:
        return 1.0
    share = 1.0 / scale.degree(instruction.owners)
    return share if scale.load is None else share * scale.load.factor("vectors")

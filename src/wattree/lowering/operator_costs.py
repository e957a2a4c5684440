"""Time, FLOP and traffic of compute instructions that only captured models have.

Convolutions, and operators that are bound by memory, of captured models. Products, attention and
the rest stand in `compute_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.cost.convolution import (
    Convolution,
    ConvolutionPass,
    convolution_time_s,
)
from wattree.cost.convolution_workspace import workspace_bytes
from wattree.cost.fresh_memory import fresh_s
from wattree.cost.memory_bound import (
    Passes,
    by_channel_s,
    gathered_bytes,
    passes_of,
    plain_function,
)
from wattree.cost.rates import Rates
from wattree.graph import OperatorKind
from wattree.lowering.program import (
    ComputeInstruction,
    InstructionPhase,
    LocalSize,
    Scale,
    matmul_sizes,
)

#: Kinds that only captured operators have; the rest is shared with models written by hand.
_CAPTURED = frozenset(
    {
        OperatorKind.POOL,
        OperatorKind.BATCH_NORM,
        OperatorKind.REDUCTION,
        OperatorKind.COPY,
        OperatorKind.GATHER,
        OperatorKind.SORT,
        OperatorKind.FFT,
        OperatorKind.OTHER,
    }
)
#: Kinds of either whose kernels depend on the software.
_SHARED = frozenset(
    {
        OperatorKind.ELEMENTWISE,
        OperatorKind.NORM,
        OperatorKind.SOFTMAX,
        OperatorKind.EMBEDDING,
    }
)
_TABLES = frozenset({OperatorKind.EMBEDDING})
_GRADIENTS = {
    InstructionPhase.INPUT_GRADIENT: ConvolutionPass.INPUT_GRADIENT,
    InstructionPhase.WEIGHT_GRADIENT: ConvolutionPass.WEIGHT_GRADIENT,
}
_OPPOSITE = {
    ConvolutionPass.FORWARD: ConvolutionPass.INPUT_GRADIENT,
    ConvolutionPass.INPUT_GRADIENT: ConvolutionPass.FORWARD,
    ConvolutionPass.WEIGHT_GRADIENT: ConvolutionPass.WEIGHT_GRADIENT,
}
#: Operands of a convolution without bias, and passes over its results with one.
_FACTORS: Final = 2
_BIAS_PASSES = {InstructionPhase.FORWARD: 2.0, InstructionPhase.WEIGHT_GRADIENT: 1.0}
#: Width of what autocast keeps in fp32, and of a cast between it and 16 bits. [B]
_FULL_BYTES, CAST_BYTES = 4.0, 6.0
#: Functions that autocast runs in fp32 (PyTorch's list, torch.amp: "CUDA Ops that autocast to
#: float32"). Batch norms take 16-bit activations.
_FULL_WIDTH = frozenset({"layer_norm", "group_norm", "softmax", "log_softmax", "rms_norm"})


def is_convolution(instruction: ComputeInstruction) -> bool:
    """Return whether `convolution_costs` knows the instruction."""
    return instruction.kind is OperatorKind.CONVOLUTION and instruction.matmul is not None


def converts_layout(rates: Rates, software: Software, dims: int = 2) -> bool:
    """Return whether convolutions convert what they read and write, from NCHW to NHWC and back.

    Kernels of 16 bits read NHWC alone; those of TF32 have NCHW forms. `channels_first` says
    where software has channels first whatever a script sets.
    """
    of = rates.convolution
    first = f"{dims}d" in software.channels_first and of.on_gpu
    last = software.channels_last and not first
    return not last and of.kernels.matrix and of.element_bytes < _FULL_BYTES


def _shape(instruction: ComputeInstruction, scale: Scale) -> Convolution:
    window = instruction.window
    assert window is not None
    m, n, k, groups = matmul_sizes(instruction, scale)
    taps = int(np.prod(window.kernel))
    # A transposed convolution is another's input gradient: its positions are that one's outputs.
    channels = (n / taps, k) if window.transposed else (k / taps, n)
    return Convolution(
        positions=m,
        in_channels=channels[0],
        out_channels=channels[1],
        groups=groups,
        taps=taps,
        stride_area=float(np.prod(window.stride)),
        square=len(set(window.kernel)) == 1
        and len(window.kernel) == 2
        and set(window.dilation) == {1},
    )


def _operands(instruction: ComputeInstruction, scale: Scale) -> Floats:
    read = _total(instruction.reads, scale) + _total(instruction.weights, scale)
    return np.asarray(read + _total(instruction.writes, scale))


def convolution_workspace_bytes(
    instruction: ComputeInstruction, scale: Scale, rates: Rates
) -> Floats:
    """Return the memory that a convolution or a gradient of one takes while it runs. [B]"""
    assert instruction.window is not None
    which = _GRADIENTS.get(instruction.phase, ConvolutionPass.FORWARD)
    which = _OPPOSITE[which] if instruction.window.transposed else which
    traffic = _operands(instruction, scale) * rates.convolution.element_bytes
    return workspace_bytes(_shape(instruction, scale), which, rates.convolution, traffic)


def convolution_costs(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats]:
    """Return time, FLOP and memory traffic of a convolution or one of its gradients."""
    assert instruction.window is not None
    m, n, k, groups = matmul_sizes(instruction, scale)
    which = _GRADIENTS.get(instruction.phase, ConvolutionPass.FORWARD)
    shape, window, width = (
        _shape(instruction, scale),
        instruction.window,
        rates.convolution.element_bytes,
    )
    traffic = _operands(instruction, scale) * width
    activations = _total(instruction.reads, scale) + _total(instruction.writes, scale)
    converted: Floats | float = 0.0
    if converts_layout(rates, software, len(window.kernel)):
        converted = 2.0 * activations * width
    time_s = convolution_time_s(
        shape,
        _OPPOSITE[which] if window.transposed else which,
        rates.convolution,
        traffic,
        converted,
    )
    cast = weight_casts(instruction, scale, rates, software)
    cast = np.zeros_like(m) if cast is None else cast
    if which is not ConvolutionPass.WEIGHT_GRADIENT:
        cast = cast + wide_elements(instruction, scale, rates, software)[0] * CAST_BYTES
    flop = 2.0 * m * n * k * groups * instruction.share
    cast = cast + _bias_bytes(instruction, scale, rates, software)
    time_s = _at_least(time_s + cast / rates.stream_bytes_per_s, instruction, rates)
    return (
        time_s * instruction.share,
        flop,
        np.asarray((traffic + converted + cast) * instruction.share),
    )


def _bias_bytes(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> Floats | float:
    """Return the traffic of adding a bias to what eager PyTorch's convolutions make. [B]

    A kernel of its own, as is the sum that is the bias's gradient (`_convolution` and
    `convolution_backward` in ATen/native/Convolution.cpp, for cuDNN).
    """
    is_added = len(instruction.reads) + len(instruction.weights) > _FACTORS
    eager = software.torch_modules and software.library_kernels and not software.compiled
    passes = _BIAS_PASSES.get(instruction.phase, 0.0)
    if not (is_added and eager and rates.convolution.on_gpu and passes):
        return 0.0
    return passes * _total(instruction.writes, scale) * rates.convolution.element_bytes


def weight_casts(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> Floats | None:
    """Return the traffic of autocast for 16-bit weights, or fp32 gradients of them; None: nothing.

    [B]
    """
    if not software.casts or rates.element_bytes >= _FULL_BYTES:
        return None
    if instruction.phase is InstructionPhase.INPUT_GRADIENT or instruction.stored_bytes:
        return np.zeros_like(scale.micro_batch)  # quantized weights are not cast
    return _total(instruction.weights, scale) * CAST_BYTES


def library_passes(instruction: ComputeInstruction, software: Software) -> Passes | None:
    """Return the passes of a memory-bound instruction; None where other formulas hold."""
    if instruction.kind in _CAPTURED or (software.library_kernels and instruction.kind in _SHARED):
        return passes_of(instruction.kind, instruction.function)
    return None


def runs_alone(instruction: ComputeInstruction) -> bool:
    """Return whether an instruction launches kernels of its own."""
    passes = passes_of(instruction.kind, instruction.function)
    return passes is None or passes.runs or instruction.phase in _GRADIENTS


def memory_bound_costs(
    instruction: ComputeInstruction, passes: Passes, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats]:
    """Return time, FLOP and memory traffic of an instruction that is bound by memory."""
    backward = instruction.phase in _GRADIENTS
    fixed = sum((scale.value(size) * width for size, width in instruction.fixed_traffic), 0.0)
    read, written, cast = _operand_bytes(instruction, scale, rates, software)
    if instruction.kind in _TABLES:
        moved = _table_bytes(instruction, scale, rates, software)
    else:
        over_reads, over_writes = passes.over(backward=backward)
        if instruction.kind is OperatorKind.FFT:  # complex values, moved as often
            fixed = fixed * over_reads
        moved = over_reads * read + over_writes * written + cast
    traffic = np.asarray(moved + fixed)
    unsorted = instruction.kind in _TABLES and software.sparse_gradients
    share = passes.backward_share if backward and not unsorted else passes.share
    time_s = traffic / (streamed_bytes_per_s(traffic, rates) * share)
    if rates.channel_s and instruction.weights and instruction.function == "batch_norm":
        time_s = by_channel_s(
            time_s,
            _total(instruction.writes, scale),
            scale.value(instruction.weights[0]),
            each_s=rates.channel_s,
            at_once=rates.channels_at_once,
            backward=backward,
        )
    time_s = time_s + fresh_s(np.asarray(written), rates.convolution.fresh_s_per_byte)
    time_s = _at_least(time_s, instruction, rates)
    return time_s * instruction.share, np.zeros_like(traffic), traffic * instruction.share


def _operand_bytes(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats | float]:
    """Return what an operator reads and writes, each operand once, and casts of them. [B]

    Where parameters are in fp32, so is what is computed of them. Steps that promote types read 16
    bits and fp32 as they are; backward, the gradient of what had 16 bits is cast to them.
    """
    read, written = _total(instruction.reads, scale), _total(instruction.writes, scale)
    width = rates.element_bytes
    runs_wide = plain_function(instruction.function) in _FULL_WIDTH
    if not follows_widths(rates, software):
        runs_wide = runs_wide and software.autocast and width < _FULL_BYTES
        wide = _FULL_BYTES if runs_wide else width
        return read * wide, written * wide, written * CAST_BYTES * runs_wide
    of_reads, of_writes = wide_elements(instruction, scale, rates, software)
    more, narrow = _FULL_BYTES - width, (read - of_reads) * CAST_BYTES
    if runs_wide:
        return read * _FULL_BYTES, written * _FULL_BYTES, narrow
    if instruction.phase in _GRADIENTS and instruction.wide_writes:
        return read * _FULL_BYTES, written * width + of_writes * more, narrow
    return read * width + of_reads * more, written * width + of_writes * more, 0.0


def wide_elements(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats]:
    """Return how many elements an instruction reads and writes in fp32 under autocast."""
    both = instruction.wide_reads, instruction.wide_writes
    read, written = both if follows_widths(rates, software) else ((), ())
    return _total(read, scale), _total(written, scale)


def follows_widths(rates: Rates, software: Software) -> bool:
    """Return whether kernels next to 16-bit products work on what autocast leaves in fp32.

    Those of a library and of Inductor do; XLA's models say of what width they are.
    """
    runs = software.library_kernels or software.runs_steps or software.by_inductor
    promotes = runs and software.casts and software.promotes_types
    return promotes and rates.element_bytes < _FULL_BYTES


def _at_least(time_s: Floats, instruction: ComputeInstruction, rates: Rates) -> Floats:
    """Return the time of kernels, none shorter than the shortest there is. [s]

    In a graph what they take to start is added to their work elsewhere.
    """
    least_s = instruction.kernels * rates.kernel_s
    return time_s if rates.start_s else np.maximum(time_s, least_s)


def streamed_bytes_per_s(traffic_bytes: Floats, rates: Rates) -> Floats:
    """Return the bandwidth of a kernel by its traffic: the cache's where the data fits. [B/s]

    What an operator reads was written just before, by the operator that made it.
    """
    held = traffic_bytes <= rates.cached_bytes
    return np.where(held, rates.cached_bytes_per_s, rates.stream_bytes_per_s)


def _table_bytes(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> Floats:
    """Return the traffic of looking up rows of a table, or adding gradients to them. [B]

    Dense gradients are cleared first, the whole table's. Autocast leaves lookups in fp32 (they are
    in none of PyTorch's lists, torch.amp: "CUDA Op-Specific Behavior").
    """
    results, row = _total(instruction.writes, scale), scale.value(instruction.row)
    width = software.parameter_bytes if software.autocast else rates.element_bytes
    result_bytes, row_bytes = results * width, row * width
    picked = gathered_bytes(scale.value(instruction.lookups), row_bytes)
    if instruction.phase not in _GRADIENTS:
        return np.asarray(picked + result_bytes)
    if software.sparse_gradients:  # rows of the table are read and written, once for each lookup
        return np.asarray(result_bytes + 2.0 * picked)
    # Sorted by row, gradients are summed up before they are written: each row once.
    elements = _total(instruction.weights, scale)
    written = np.minimum(picked, elements * row_bytes / np.maximum(row, 1.0))
    return np.asarray(result_bytes + written + elements * software.gradient_bytes)


def _total(sizes: Iterable[LocalSize], scale: Scale) -> Floats:
    return sum((scale.value(size) for size in sizes), np.zeros_like(scale.micro_batch))

"""Time, FLOP and bytes of matmuls, casts to 8 bit included."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software, matmul_time_s
from wattree.cost.convolution import implicit_matmul_time_s
from wattree.cost.rates import Rates
from wattree.cost.recurrence import CHUNKED_PRODUCT
from wattree.cost.written_out import weighted_bias_bytes
from wattree.graph import OperatorKind
from wattree.lowering.operator_costs import (
    CAST_BYTES,
    follows_widths,
    weight_casts,
    wide_elements,
)
from wattree.lowering.passes.operator_instruction import IN_8_BITS
from wattree.lowering.program import (
    ComputeInstruction,
    InstructionPhase,
    Scale,
    matmul_shape,
    matmul_sizes,
)

#: Casts to 8 bit: bytes per activation or gradient element, and per weight element.
_CAST_ACTIVATION_BYTES, _CAST_WEIGHT_BYTES = 4.0, 3.0
_FULL_BYTES = 4.0
#: What `cp.async` copies at least (CUDA, PTX ISA). [B]
_LEAST_COPY_BYTES = 4.0
#: Rows of `torch._grouped_mm`'s tiles on one unit (two share larger ones), and columns of all.
_ONE_UNIT_ROWS, _GROUPED_TILE_COLUMNS = 128.0, 256.0
#: Some 5,000 cycles of 1.8 GHz to set up the descriptors of another group (CUTLASS pull request
#: 3020).
_GROUP_CHANGE_S = 5e3 / 1.8e9
#: The last product of experts.
_LAST_OF_EXPERTS = "moe.experts.down"
#: Matmuls that stay at 16 bit when linear layers are quantized.
_PLAIN_MATMULS = frozenset({"logits", "moe.router"})


def is_quantized(instruction: ComputeInstruction, rates: Rates) -> bool:
    """Return whether a matmul runs at 8 or 4 bits: those of linear layers alone do."""
    return (
        rates.quantized
        and instruction.kind is OperatorKind.MATMUL
        and bool(instruction.weights)
        and instruction.path not in _PLAIN_MATMULS
    )


def matmul_costs(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats]:
    """Return time, matrix FLOP and memory traffic of a matmul."""
    m, n, k, groups = matmul_shape(instruction, scale)
    turns = _turns(instruction, scale)
    m = m / turns
    quantized = is_quantized(instruction, rates)
    busy = _busy_experts(instruction, (m, k), groups, software)
    read = 1.0 if instruction.phase is InstructionPhase.WEIGHT_GRADIENT else busy
    elements = groups * (m * k + read * k * n + m * n)
    wide = _is_wide(instruction, groups, rates, software)
    traffic = elements * (_FULL_BYTES if wide else rates.element_bytes)
    few = software.inference_kernels
    if few:
        width = rates.quantized_bytes if quantized else rates.element_bytes
        traffic = groups * ((m * k + read * k * n) * width + m * n * rates.element_bytes)
    shape = m, n, k, groups
    time_s = _product_s(
        instruction, shape, traffic, rates, software, quantized=quantized, busy=busy
    )
    if quantized and not few:
        casts = _casts(instruction.phase, m, n, k, groups) * (2.0 if software.row_scales else 1.0)
        time_s = time_s + casts / rates.memory_bytes_per_s
        traffic = traffic + casts
    if instruction.in_turn is not None and not rates.start_s:
        time_s = np.maximum(time_s, rates.kernel_s)
    time_s, traffic = time_s * turns, traffic * turns
    if not wide:
        copies = _copies_bytes(instruction, shape, scale, rates, software)
        time_s = time_s + copies / rates.memory_bytes_per_s
        traffic = traffic + copies
    if (moved := _weighted_bias_bytes(instruction, scale, rates, software)) is not None:
        time_s = time_s + moved / (rates.memory_bytes_per_s * rates.written_out_rate)
        traffic = traffic + moved
    if instruction.stored_bytes:  # frozen, so that it has no gradient
        of_element, share = _widening(instruction, rates)
        widened = groups * k * n * of_element
        time_s = time_s + widened / (rates.memory_bytes_per_s * share)
        traffic = traffic + widened
    flop = 2.0 * m * n * k * groups * turns * instruction.share
    return time_s * instruction.share, flop, traffic * instruction.share


def _widening(instruction: ComputeInstruction, rates: Rates) -> tuple[float, float]:
    """Return the bytes moved to make an element of a stored weight wide, and the rate's share.

    A kernel widens 4 bits in every pass. Forward products take 8 bits as they are; assumed is that
    what they gain over 16 bits goes to quantizing inputs and scaling results. For the gradient of
    inputs, `MatMul8bitLt.backward` (bitsandbytes) copies the weight, and scales the copy in place.
    """
    stored, wide = instruction.stored_bytes, rates.element_bytes
    if stored < IN_8_BITS:
        return stored + wide, rates.dequantization_rate
    is_gradient = instruction.phase is InstructionPhase.INPUT_GRADIENT
    return (stored + 3.0 * wide if is_gradient else 0.0), 1.0


def _product_s(
    instruction: ComputeInstruction,
    shape: tuple[Floats, Floats, Floats, Floats],
    traffic: Floats,
    rates: Rates,
    software: Software,
    *,
    quantized: bool,
    busy: Floats | float,
) -> Floats:
    """Return the time of the product alone, `busy` of whose groups have rows. [s]"""
    m, n, k, groups = shape
    if instruction.function == CHUNKED_PRODUCT:
        return _chunked_s(instruction, 2.0 * m * n * k * groups, traffic, rates)
    of_weights = instruction.phase is InstructionPhase.WEIGHT_GRADIENT
    routed = _is_routed(instruction, groups, software)
    wide = _is_wide(instruction, groups, rates, software)
    m, k, groups = _of_busy(m, k, groups, busy, of_weights=of_weights)
    library = software.library_kernels or rates.convolution.kernels.profiled
    sides = (m, n) if of_weights else (n, k)
    pads = software.compiled or software.pads_vocabulary or rates.array_side > 0
    misaligned = 1.0 if pads else _misaligned_factor(sides, rates)
    if not library or quantized or wide:
        grouped = routed and not (wide or software.casts) and rates.grouped_product_rate > 0
        plain = _plain_rate(rates, software, of_weights=of_weights)
        rate = rates.wide_flop_per_s if wide else rates.linear_flop_per_s if quantized else plain
        share = _grouped_share(m, rates, of_weights=of_weights) if grouped else 1.0
        if rates.array_side and routed and of_weights:
            m, k = k, m
        time_s = matmul_time_s(
            m=m,
            n=n,
            k=k,
            groups=groups,
            flop_per_s=rate * share,
            compute_units=rates.compute_units,
            traffic_bytes=traffic,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            alignment_penalty=rates.alignment_penalty,
            misaligned=misaligned,
            split_k=software.inference_kernels,
            on_cores=rates.on_cores,
            array_side=rates.array_side,
            ragged=rates.cores * routed,
        )
        return time_s + _group_changes_s(m, n, groups, rates) if grouped else time_s
    # Gradients of weights lie as the weights do, inputs along rows.
    time_s = implicit_matmul_time_s(
        m=m,
        n=n,
        k=k,
        groups=groups,
        rates=rates.convolution.matmuls or rates.convolution,
        row=m if of_weights else n,
        is_stored=of_weights,
    )
    if rates.convolution.kernels.profiled:
        return time_s
    math_s = 2.0 * m * n * k * groups / rates.library_flop_per_s * misaligned
    return np.maximum(time_s, math_s)


def _of_busy(
    m: Floats, k: Floats, groups: Floats, busy: Floats | float, *, of_weights: bool
) -> tuple[Floats, Floats, Floats]:
    """Return the sizes and the number of the groups that have rows, among which these spread."""
    each = np.where(np.equal(busy, 0.0), 1.0, busy)  # a rank without a token has no expert to fill
    m, k = (m, k / each) if of_weights else (m / each, k)
    return m, k, groups * busy


def _chunked_s(
    instruction: ComputeInstruction, flop: Floats, traffic: Floats, rates: Rates
) -> Floats:
    """Return the time of the chunks of a recurrence, whose kernels have rates of their own. [s]"""
    forward = instruction.phase is InstructionPhase.FORWARD
    rate = rates.recurrence_flop_per_s if forward else rates.recurrence_gradient_flop_per_s
    return np.maximum(flop / rate, traffic / rates.memory_bytes_per_s)


def _plain_rate(rates: Rates, software: Software, *, of_weights: bool) -> float:
    """Return the rate of 16-bit products; of gradients that are added to fp32 as they are made.

    [FLOP/s] Source: `wgrad_gemm_accum_fp32` of Megatron-LM and Transformer Engine.
    """
    wide = of_weights and software.placeholder_gradients and software.gradient_bytes >= _FULL_BYTES
    return rates.plain_flop_per_s * (rates.wide_accumulation_rate if wide else 1.0)


def _grouped_share(m: Floats, rates: Rates, *, of_weights: bool) -> Floats | float:
    """Return the rate of grouped products over that of one product.

    Half a tile of each group is empty on average; gradients of weights sum over rows instead. Of
    groups of less than half a tile the shape has it: they take one tile, however few rows they are.
    """
    half = rates.grouped_tile_rows / 2.0
    rows = np.maximum(m, half)
    filled = 1.0 if of_weights else rows / (rows + half)
    return rates.grouped_product_rate * filled


def _busy_experts(
    instruction: ComputeInstruction,
    sides: tuple[Floats, Floats],
    groups: Floats,
    software: Software,
) -> Floats | float:
    """Return the share of a product's groups that have rows: of experts, those that get a token.

    Of `m` tokens an expert, each of which goes to a share `p` of them, `1 - (1 - p)**(m / p)` where
    routing is even. No tiles are started, and no weights read, for the others.
    """
    assert instruction.matmul is not None
    share = instruction.matmul.m.coefficient
    routed = software.inference_kernels or _is_routed(instruction, groups, software)
    if not routed or "expert" not in instruction.path or not 0 < share < 1:
        return 1.0
    rows = sides[instruction.phase is InstructionPhase.WEIGHT_GRADIENT]
    return 1.0 - (1.0 - share) ** (rows / share)


def _group_changes_s(m: Floats, n: Floats, groups: Floats, rates: Rates) -> Floats:
    """Return the time in which units turn to another group: for each tile, if groups are small."""
    rows = rates.grouped_tile_rows
    units = rates.compute_units * _ONE_UNIT_ROWS / rows
    tiles = np.ceil(m / rows) * np.ceil(n / _GROUPED_TILE_COLUMNS) * groups
    return np.minimum(tiles / units, groups) * _GROUP_CHANGE_S


def _is_routed(instruction: ComputeInstruction, groups: Floats, software: Software) -> bool:
    """Return whether experts, each with weights of its own, have what tokens are routed to them."""
    return bool(instruction.weights) and software.moe_dropless and bool((groups > 1).all())


def _is_wide(
    instruction: ComputeInstruction, groups: Floats, rates: Rates, software: Software
) -> bool:
    """Return whether experts are multiplied in fp32 under autocast, as their weights are.

    `_grouped_mm` of transformers 5 casts its input to them; autocast has no `torch._grouped_mm`.
    """
    mixed = software.casts and rates.element_bytes < _FULL_BYTES and not rates.quantized
    kept = mixed and software.grouped_by_offsets and not instruction.stored_bytes
    return kept and _is_routed(instruction, groups, software)


def _misaligned_factor(sides: tuple[Floats, Floats], rates: Rates) -> Floats:
    """Return the factor of products of a weight with an odd side, in 16 bits.

    Rows of it, of results or of their gradients then begin at odd multiples of 2 bytes, where
    asynchronous copies, of 4 bytes and more (NVIDIA since Ampere), cannot read. Inductor pads such
    operands (`shape_padding`), as do frameworks that choose their vocabulary.
    """
    odd = [np.mod(side * rates.element_bytes, _LEAST_COPY_BYTES) != 0 for side in sides]
    return np.where(odd[0] | odd[1], rates.product_misalignment, 1.0)


def _copies_bytes(
    instruction: ComputeInstruction,
    shape: tuple[Floats, Floats, Floats, Floats],
    scale: Scale,
    rates: Rates,
    software: Software,
) -> Floats | float:
    """Return the traffic of what autocast runs next to a product: casts, and what they entail. [B]

    Each linear layer casts what it reads in fp32, and its gradient back; those of several are added
    up. Gradients of biases are sums over rows. Of a product of activations, one factor is cast.
    Constants of modules that are written out have the sums in them.
    """
    copies = weight_casts(instruction, scale, rates, software) if instruction.weights else 0.0
    if copies is None:
        return 0.0
    m, n, k, groups = shape
    of_weights = instruction.phase is InstructionPhase.WEIGHT_GRADIENT
    if not (software.library_kernels and follows_widths(rates, software)):
        cast = bool(instruction.weights) and rates.casts and not of_weights
        backward = instruction.phase is InstructionPhase.INPUT_GRADIENT
        return copies + m * (n if backward else k) * CAST_BYTES * cast
    if of_weights:
        return copies + groups * k * n * rates.element_bytes * (len(instruction.weights) > 1)
    wide, _ = wide_elements(instruction, scale, rates, software)
    layers = instruction.linear_layers
    if instruction.phase is not InstructionPhase.INPUT_GRADIENT:
        return copies + wide * layers * CAST_BYTES
    if not instruction.weights:  # half, as each factor has an instruction of its own
        return wide * CAST_BYTES / 2.0
    return copies + wide * (layers * CAST_BYTES + (layers - 1) * 3 * _FULL_BYTES)


def _turns(instruction: ComputeInstruction, scale: Scale) -> Floats | float:
    """Return the number of sequential matmuls in an instruction.

    Each time step is a matmul of its rows that reads the weights again. Gradients of the weights
    are taken for all of them at once.
    """
    is_gradient = instruction.phase is InstructionPhase.WEIGHT_GRADIENT
    if instruction.in_turn is None or is_gradient:
        return 1.0
    return scale.value(instruction.in_turn)


def _casts(phase: InstructionPhase, m: Floats, n: Floats, k: Floats, groups: Floats) -> Floats:
    """Return the bytes moved by casts: activations, weights in forward, gradients in backward."""
    if phase is InstructionPhase.INPUT_GRADIENT:
        return groups * m * k * _CAST_ACTIVATION_BYTES  # k is the gradient's width here
    if phase is InstructionPhase.WEIGHT_GRADIENT:
        return np.zeros_like(m)
    return groups * (m * k * _CAST_ACTIVATION_BYTES + k * n * _CAST_WEIGHT_BYTES)


def _weighted_bias_bytes(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> Floats | None:
    """Return the traffic of biases of experts added after their last product; None: none. [B]

    Source: `TEGroupedMLP._apply_bias` (Megatron-Core 0.15 to 0.19). Weights are in fp32, as DeepEP
    and HybridEP want them, and as models route that set `moe_router_dtype`.
    """
    has_bias = instruction.path == _LAST_OF_EXPERTS and len(instruction.weights) > 1
    if not has_bias or not software.weighs_activations or software.moe_fused_experts:
        return None
    rows, columns, _, groups = matmul_sizes(instruction, scale)
    if instruction.phase is InstructionPhase.WEIGHT_GRADIENT:
        return np.zeros_like(rows)
    return (
        rows
        * columns
        * groups
        * weighted_bias_bytes(
            element_bytes=rates.element_bytes,
            weight_bytes=_FULL_BYTES,
            backward=instruction.phase is InstructionPhase.INPUT_GRADIENT,
        )
    )

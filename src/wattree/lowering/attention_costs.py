"""Time, FLOP and memory traffic of attention instructions, fused or unfused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost import (
    Software,
    fused_attention_time_s,
    unfused_attention_time_s,
    unfused_score_bytes,
)
from wattree.cost.attention import FORWARD_MATMULS, written_score_bytes
from wattree.cost.rates import Rates
from wattree.graph import AttentionMask
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale

#: Keys of an unmasked query per key of a causal one, on average. What a block of queries takes
#: besides its products counts half as much then: of fused kernels, 0.23 to 0.72, mean 0.5, of the
#: causal ramp (H100, H200, B200, L40S, RTX PRO 6000; AI Configurator tables, 2026).
_UNMASKED = 2.0
#: Lanes of a TPU's vectors, which attention fills heads up to (`NUM_LANES` of JAX's
#: splash_attention_kernel.py; XLA pads, jax-ml/jax pull request 26676).
_LANES = 128
#: Sizes of products that matrix units are fast with are multiples of it.
_ALIGNED = 8
_ALL = AttentionMask(causal=False)


def attention_costs(
    instruction: ComputeInstruction,
    scale: Scale,
    rates: Rates,
    software: Software,
    blocks: Floats | None,
) -> tuple[Floats, Floats, Floats]:
    """Return time, matrix FLOP and memory traffic of attention; `blocks` as in `compute_costs`."""
    mask = instruction.mask
    assert mask is not None
    if instruction.cached is not None:
        return _cached_costs(instruction, scale, rates, software)
    full = (
        scale.value(instruction.batch)
        * scale.value(instruction.queries)
        * scale.value(instruction.heads)
    )
    full = full * _keys(instruction, scale)
    if software.fused_attention:
        if software.quantized_attention and rates.quantized:
            instruction = _without_window_backward(instruction)
        time_s, flop, traffic = _fused_costs(
            instruction,
            scale,
            rates,
            full,
            blocks,
            masked=_reads_mask(instruction, scale, software),
        )
    else:
        time_s, flop, traffic = _unfused_costs(
            instruction, rates, software, full, _keys(instruction, scale)
        )
    if instruction.skewed_axes:
        # The last of a document's `p` contiguous pieces sees `p - 1/2` blocks, all pieces `p / 2`
        # on average; ranks that finish earlier wait for it at the next exchange.
        pieces = scale.degree(instruction.skewed_axes) * mask.document_share
        time_s = time_s * (2.0 - 1.0 / np.maximum(pieces, 1.0))
    return (
        time_s * instruction.share,
        flop * instruction.share,
        traffic * instruction.share,
    )


def _keys(instruction: ComputeInstruction, scale: Scale) -> float:
    return float(scale.value(instruction.keys)[0])  # the same for all: no axis splits it


def _reads_mask(instruction: ComputeInstruction, scale: Scale, software: Software) -> bool:
    """Return whether fused attention reads a mask, and so computes what that hides."""
    assert instruction.mask is not None
    window = instruction.mask.window
    return software.reads_mask(window=window is not None and window < _keys(instruction, scale))


def _is_backward(instruction: ComputeInstruction) -> bool:
    return instruction.phase not in {InstructionPhase.FORWARD, InstructionPhase.RECOMPUTATION}


def _head_dim(instruction: ComputeInstruction) -> float:
    return (instruction.head_dim + instruction.value_head_dim) / 2


def _padded_head(instruction: ComputeInstruction, side: int) -> float:
    """Return the head size in whole systolic arrays, lanes or steps, mean of keys and values.

    Heads are what scores are summed over, and the columns of what they weigh.

    Args:
        side: Of an array, the lanes of a vector, or a step of kernels; 0 without any.
    """
    sizes = (instruction.head_dim, instruction.value_head_dim)
    return sum(math.ceil(size / side) * side for size in sizes) / 2 if side else 0.0


def _without_window_backward(instruction: ComputeInstruction) -> ComputeInstruction:
    """Return attention whose gradients take all causal scores, as kernels of 8-bit operands do.

    1.7, 6.2, 23 and 90 ms from 4 Ki to 32 Ki positions with a window of 128 (fp8, GB200, cuDNN
    9.22; github:NVIDIA/cudnn-frontend, benchmark).
    """
    assert instruction.mask is not None
    if not _is_backward(instruction):
        return instruction
    return replace(instruction, mask=replace(instruction.mask, window=None))


def _fused_costs(
    instruction: ComputeInstruction,
    scale: Scale,
    rates: Rates,
    full: Floats,
    blocks: Floats | None,
    *,
    masked: bool,
) -> tuple[Floats, Floats, Floats]:
    """Return the costs of kernels that store no scores, and compute visible ones or all."""
    mask, backward, head_dim = instruction.mask, _is_backward(instruction), _head_dim(instruction)
    assert mask is not None
    keys = _keys(instruction, scale)
    rate = rates.attention_gradient_flop_per_s if backward else rates.attention_flop_per_s
    if masked:
        mask, rate = _ALL, rate * rates.masked_attention_rate
    scores = full * mask.visible_share(keys)
    # A query sees half of the keys of causal attention, and all of its window.
    spanned: Floats | float = keys if mask.window is None else min(keys, 2.0 * mask.window)
    spanned = np.minimum(
        spanned if blocks is None else spanned / blocks, keys * mask.document_share
    )
    time_s = fused_attention_time_s(
        scores=scores,
        head_dim=_padded_head(
            instruction, _LANES if rates.array_side else rates.attention_head_step
        ),
        keys=spanned if mask.causal else _UNMASKED * spanned,
        flop_per_s=rate,
        ramp_tokens=rates.attention_ramp_tokens,
        backward=backward,
        padded_head=_padded_head(instruction, rates.array_side),
        product_flop_per_s=rates.plain_flop_per_s,
        exponentials_per_s=rates.exponentials_per_s,
    )
    traffic = sum(scale.value(size) for size in instruction.traffic) * rates.element_bytes
    matmuls = 5.0 if backward else 2.0
    return time_s, 2.0 * matmuls * scores * head_dim, np.asarray(traffic)


def _unfused_costs(
    instruction: ComputeInstruction, rates: Rates, software: Software, full: Floats, keys: float
) -> tuple[Floats, Floats, Floats]:
    """Return the costs of matmuls and a softmax that read and write all scores.

    Modules written out do so in steps, which reach less of the bandwidth.
    """
    backward, head_dim = _is_backward(instruction), _head_dim(instruction)
    autocast = software.autocast and rates.element_bytes < 4.0
    together = unfused_score_bytes(
        backward=backward,
        library_kernels=software.library_kernels,
        autocast=autocast,
        element_bytes=rates.element_bytes,
    )
    each = written_score_bytes(
        backward=backward,
        autocast=autocast,
        casts=software.casts_softmax,
        dropped=software.drops_scores,
        element_bytes=rates.element_bytes,
    )
    together, each = together * (1.0 - rates.written_out), each * rates.written_out
    time_s = unfused_attention_time_s(
        scores=full,
        head_dim=head_dim,
        flop_per_s=rates.scores_flop_per_s,
        memory_bytes_per_s=rates.memory_bytes_per_s,
        misaligned_factor=rates.head_misalignment
        if head_dim % _ALIGNED
        else rates.key_misalignment ** bool(keys % _ALIGNED),
        score_bytes=together + each / rates.written_out_rate,
        backward=backward,
    )
    matmuls = 4.0 if backward else 2.0
    return time_s, 2.0 * matmuls * full * head_dim, full * (together + each)


def _cached_costs(
    instruction: ComputeInstruction, scale: Scale, rates: Rates, software: Software
) -> tuple[Floats, Floats, Floats]:
    """Return the costs of one query for each sequence against the KV cache.

    `max(FLOP / rate, bytes / bandwidth)`: kernels split the cache over all compute units
    (flash decoding), so neither the number of sequences nor that of heads limits them.
    """
    assert instruction.cached is not None
    head_dim = (instruction.head_dim + instruction.value_head_dim) / 2
    scores = (
        scale.value(instruction.batch)
        * scale.value(instruction.queries)
        * scale.value(instruction.heads)
        * scale.value(instruction.keys)
    )
    flop = 2.0 * FORWARD_MATMULS * scores * head_dim
    cached = scale.value(instruction.cached)
    uncached = sum(scale.value(size) for size in instruction.traffic) - cached
    read = cached
    if not software.grouped_cache:
        width = instruction.head_dim + instruction.value_head_dim
        together = scores * width / cached  # query heads to a head of keys and values
        read = cached * (1.0 + (together - 1.0) * rates.ungrouped_reads)
    traffic = np.asarray(uncached * rates.element_bytes + read * software.cache_bytes)
    time_s = np.maximum(flop / rates.attention_flop_per_s, traffic / rates.memory_bytes_per_s)
    return time_s, flop, traffic

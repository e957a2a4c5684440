"""Time, FLOP and memory traffic of attention instructions, fused or unfused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.cost import (
    Software,
    fused_attention_time_s,
    unfused_attention_time_s,
    unfused_score_bytes,
)
from wattree.cost.attention import FORWARD_MATMULS
from wattree.cost.rates import Rates
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale

Floats = NDArray[np.float64]


def attention_costs(
    instruction: ComputeInstruction,
    scale: Scale,
    rates: Rates,
    software: Software,
    blocks: Floats | None,
) -> tuple[Floats, Floats, Floats]:
    """Return time, matrix FLOP and memory traffic of attention; `blocks` as in `compute_costs`."""
    assert instruction.mask is not None
    backward = (
        instruction.phase is not InstructionPhase.FORWARD
        and instruction.phase is not InstructionPhase.RECOMPUTATION
    )
    if instruction.cached is not None:
        return _cached_costs(instruction, scale, rates, software)
    head_dim = (instruction.head_dim + instruction.value_head_dim) / 2
    full = (
        scale.value(instruction.batch)
        * scale.value(instruction.queries)
        * scale.value(instruction.heads)
    )
    keys = float(scale.value(instruction.keys)[0])  # the same for all: no axis splits it
    full = full * keys
    matmuls = 5.0 if backward else 2.0
    if software.fused_attention:
        scores = full * instruction.mask.visible_share(keys)
        split = np.where(scale.degree(scale.context_axes) > 1, rates.context_attention_rate, 1.0)
        time_s = fused_attention_time_s(
            scores=scores,
            head_dim=head_dim,
            keys=keys if blocks is None else keys / blocks,
            flop_per_s=rates.attention_flop_per_s * split,
            ramp_tokens=rates.attention_ramp_tokens,
            backward=backward,
        )
        traffic = sum(scale.value(size) for size in instruction.traffic) * rates.element_bytes
    else:
        scores, matmuls = full, (4.0 if backward else 2.0)
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
    flop = 2.0 * matmuls * scores * head_dim
    if instruction.skewed_axes:
        # The last of `p` contiguous pieces sees `p - 1/2` blocks, all pieces `p / 2` on average;
        # ranks that finish earlier wait for it at the next exchange.
        time_s = time_s * (2.0 - 1.0 / scale.degree(instruction.skewed_axes))
    return (
        time_s * instruction.share,
        flop * instruction.share,
        np.asarray(traffic) * instruction.share,
    )


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
    beside = sum(scale.value(size) for size in instruction.traffic) - cached
    read = cached
    if not software.grouped_cache:
        width = instruction.head_dim + instruction.value_head_dim
        together = scores * width / cached  # query heads to a head of keys and values
        read = cached * (1.0 + (together - 1.0) * rates.ungrouped_reads)
    traffic = np.asarray(beside * rates.element_bytes + read * software.cache_bytes)
    time_s = np.maximum(flop / rates.attention_flop_per_s, traffic / rates.memory_bytes_per_s)
    return time_s, flop, traffic

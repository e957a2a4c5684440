"""Time of scaled-dot-product attention, fused or not. Pure functions over arrays."""

from __future__ import annotations

import math

import numpy as np

from wattree.arrays import Floats

#: Products over the score matrix: QK and PV; backward repeats QK and adds dV, dP, dQ, dK.
FORWARD_MATMULS, BACKWARD_MATMULS = 2, 5
#: Head size from which fused kernels run at their full rate. Below it products shrink with heads,
#: softmax does not: a score of it takes as long as so many exponentials, by times of heads of 64
#: over those of 128, causal, forward, from 4,096 tokens on: 0.80 on B200 and GB200, 0.64 on H100
#: and H200, 0.54 on RTX PRO 6000, 0.52 on L40S (1.3, 1.2, 1.0, 0.7; AI Configurator tables, 2026).
_FULL_HEAD, _SOFTMAX = 128.0, 1.3
#: Unfused: share of peak the batched products reach on matrix units, and bytes per score element
#: forward and backward for scale, mask, softmax and dropout in half precision (Megatron-LM's fused
#: softmax).
UNFUSED_RATE = 0.45
_UNFUSED_FORWARD_BYTES, _UNFUSED_BACKWARD_BYTES = 13.0, 17.0
#: The same of a library's kernels one by one, without mask and dropout: values that product,
#: scaling, softmax and product read and write (6 forward, 9 backward), all as wide as an element;
#: under autocast softmax is in fp32, with casts before and after it.
_LIBRARY_FORWARD, _LIBRARY_BACKWARD = 6.0, 9.0
_AUTOCAST_FORWARD_BYTES, _AUTOCAST_BACKWARD_BYTES = 28.0, 36.0
#: The same of modules written out in Python, which also add a mask (`eager_attention_forward` of
#: transformers 5.23): forward and backward in fp32, in 16 bits with softmax in fp32, in 16 bits
#: alone, and under autocast; and those of dropout (tests/cost/test_written_attention.py).
_WRITTEN_FULL, _DROPOUT_FULL = (32.0, 36.0), (9.0, 9.0)
_WRITTEN_HALF, _DROPOUT_HALF = (32.0, 36.0), (5.0, 5.0)
_WRITTEN_PLAIN = (16.0, 18.0)
_WRITTEN_AUTOCAST, _DROPOUT_AUTOCAST = (28.0, 36.0), (9.0, 9.0)
_FULL_BYTES = 4.0


def fused_attention_time_s(
    *,
    scores: Floats,
    head_dim: float,
    keys: float | Floats,
    flop_per_s: float | Floats,
    ramp_tokens: float,
    backward: bool,
    padded_head: float = 0.0,
    product_flop_per_s: float = 1.0,
    exponentials_per_s: float = math.inf,
) -> Floats:
    """Return the time of attention in one kernel. [s]

    `matmuls * 2 FLOP * scores * 128 / rate * (1 + s0 / s) * (x + (1 - x) * d / 128)` of heads of
    fewer than 128 features, where softmax has the share `x` of the time at 128.

    Systolic arrays compute heads that do not fill them as if they did, which is the least time.

    Args:
        scores: Visible score elements, all heads and samples.
        head_dim: Mean of query-key and value head sizes, `d`.
        keys: Key positions of causal attention, `s`; without a mask, twice as many.
        flop_per_s: Rate of the pass at long sequences and full heads. [FLOP/s]
        ramp_tokens: Sequence length at half rate, `s0`.
        backward: Five products instead of two.
        padded_head: Head size in whole systolic arrays; 0 for other matrix units.
        product_flop_per_s: Rate of large products. [FLOP/s]
        exponentials_per_s: Rate of the units that take them.
    """
    products = BACKWARD_MATMULS if backward else FORWARD_MATMULS
    scores_per_s = flop_per_s / (2.0 * products * _FULL_HEAD)
    softmax = np.minimum(_SOFTMAX * scores_per_s / exponentials_per_s, 1.0)
    small = 1.0 + softmax * (max(_FULL_HEAD / head_dim, 1.0) - 1.0)
    flop = 2.0 * products * scores * head_dim
    time_s = flop / flop_per_s * (1.0 + ramp_tokens / keys) * small
    filled_s = 2.0 * products * scores * padded_head / product_flop_per_s
    return np.asarray(np.maximum(time_s, filled_s))


def share_beside_softmax(
    share: float, *, most: float, matrix_rate: float, products: float
) -> float:
    """Return what attention reaches of the peak of matrix units slower than those it is known of.

    `1 / (1 / products + (1 / share - 1 / most) * matrix_rate)`: products take the time they take
    alone; what comes on top, the exponentials and sums of softmax that other units do, takes the
    clock cycles of a score that it takes on the known devices.

    Args:
        share: Of the peak, where it is known.
        most: That products alone reach there.
        matrix_rate: Rate of the matrix units, for each of the other units, over that where `share`
            is known.
        products: That products alone reach on the device.
    """
    if share >= most:
        return share
    return 1.0 / (1.0 / products + (1.0 / share - 1.0 / most) * matrix_rate)


def unfused_score_bytes(
    *, backward: bool, library_kernels: bool, autocast: bool, element_bytes: float
) -> float:
    """Return the memory traffic of one score where the score matrix goes through memory. [B]

    Args:
        backward: Of the gradients.
        library_kernels: Scaling, softmax and casts are kernels of their own.
        autocast: And softmax runs in fp32.
        element_bytes: Width of an activation. [B]
    """
    if not library_kernels:
        return _UNFUSED_BACKWARD_BYTES if backward else _UNFUSED_FORWARD_BYTES
    if autocast:
        return _AUTOCAST_BACKWARD_BYTES if backward else _AUTOCAST_FORWARD_BYTES
    return element_bytes * (_LIBRARY_BACKWARD if backward else _LIBRARY_FORWARD)


def written_score_bytes(
    *, backward: bool, autocast: bool, casts: bool, dropped: bool, element_bytes: float
) -> float:
    """Return the memory traffic of one score where a module runs a kernel for every step. [B]

    Args:
        backward: Of the gradients.
        autocast: Products alone are in 16 bits.
        casts: Softmax of scores in 16 bits is in fp32.
        dropped: Some scores are dropped.
        element_bytes: Width of an activation. [B]
    """
    steps, dropout = _WRITTEN_HALF if casts else _WRITTEN_PLAIN, _DROPOUT_HALF
    if element_bytes >= _FULL_BYTES:
        steps, dropout = _WRITTEN_FULL, _DROPOUT_FULL
    elif autocast:
        steps, dropout = _WRITTEN_AUTOCAST, _DROPOUT_AUTOCAST
    return steps[backward] + dropped * dropout[backward]


def unfused_attention_time_s(
    *,
    scores: Floats,
    head_dim: float,
    flop_per_s: float,
    memory_bytes_per_s: float | Floats,
    misaligned_factor: float,
    score_bytes: float,
    backward: bool,
) -> Floats:
    """Return the time of attention whose score matrix goes through memory. [s]

    Every score is computed, masked or not. Products whose sizes miss the matrix units' fast path
    take `misaligned_factor` times as long.
    """
    matmuls = 2 * FORWARD_MATMULS if backward else FORWARD_MATMULS
    math_s = 2.0 * matmuls * scores * head_dim * misaligned_factor / flop_per_s
    return np.asarray(math_s + scores * score_bytes / memory_bytes_per_s)

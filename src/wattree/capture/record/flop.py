"""FLOP of dispatched operators: matmuls and convolutions, 2 per multiply-add.

Element-wise work, norms, softmax, lookups, scans and FFTs count nothing; a complex multiply-add
counts as a real one; masks take nothing off attention. `torch.utils.flop_counter` has the same
conventions; the operators it leaves out are here, and a gradient of a convolution counts what its
forward does, also where channels are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

from torch.utils.flop_counter import flop_registry

from wattree.capture.record.fused import attention_flop
from wattree.capture.record.recurrent import recurrent_flop, recurrent_gradient_flop


def flop_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the FLOP of one dispatched operator, 0 if it computes no matmuls."""
    packet = func.overloadpacket
    if own := _FORMULAS.get(str(packet)):
        return own(args, out)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


def gradient_flop_of(func: Any, args: Any) -> tuple[int, int] | None:
    """Return the FLOP of a backward operator for the input's and for the weight's gradient.

    None where the operator makes one gradient alone: `flop_of` counts it, and what its operands
    are tells which.
    """
    formula = _SPLIT.get(str(func.overloadpacket))
    return None if formula is None else formula(args)


def _convolution_gradients(args: Any) -> tuple[int, int]:
    grad, x, weight = args[:3]
    transposed, mask = args[7], args[10]
    # Each position of the forward's output (of its input, if transposed) meets each tap once.
    positions = (x if transposed else grad).shape[2:]
    flop = 2 * x.shape[0] * prod(positions) * weight.numel()
    return (flop if mask[0] else 0), (flop if mask[1] else 0)


def _convolution(args: Any, out: Any) -> int:
    x, weight, transposed = args[0], args[1], args[6]
    return int(2 * x.shape[0] * prod((x if transposed else out).shape[2:]) * weight.numel())


def _grouped_mm(args: Any, out: Any) -> int:
    """Rows sorted by group times the matrix of their group, or matmuls summed over such rows."""
    left, right = args[:2]
    if left.ndim == 2 and right.ndim == 2:  # contracts the rows: (m, k) x (k, n) in pieces
        return int(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return int(2 * out.numel() * left.shape[-1])


def _grouped_mm_gradients(args: Any) -> tuple[int, int]:
    """Of rows and of the matrices of their groups, where they are trained.

    The CPU's operator computes both in any case; that of GPUs (`aten._grouped_mm`) does not.
    """
    rows, matrices = args[:2]
    flop = 2 * rows.numel() * matrices.shape[-1]
    return (flop if rows.requires_grad else 0), (flop if matrices.requires_grad else 0)


def _mkldnn_rnn(args: Any, _: Any) -> int:
    x, w_input, w_hidden = args[0], args[1], args[2]
    return int(2 * x.shape[0] * x.shape[1] * (w_input.numel() + w_hidden.numel()))


def _trilinear(args: Any, _: Any) -> int:
    """`sum over sumdim of i1 * i2 * i3`, each with dims of length 1 put in."""
    sizes = []
    for tensor, places in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        sizes.append(shape)
    return int(2 * prod(max(lengths) for lengths in zip(*sizes, strict=True)))


def _chunked(pieces: Sequence[int], states: Sequence[int]) -> int:
    """Pieces `(batch, steps, heads, in)` times states `(batch, heads, turns, in, out)`."""
    return int(2 * prod(pieces) * states[2] * states[-1])


_FORMULAS: Final[Mapping[str, Callable[[Any, Any], int]]] = {
    "aten.mv": lambda args, _: 2 * args[0].numel(),
    "aten.addmv": lambda args, _: 2 * args[1].numel(),
    "aten.addmv_": lambda args, _: 2 * args[1].numel(),
    "aten.dot": lambda args, _: 2 * args[0].numel(),
    "aten.vdot": lambda args, _: 2 * args[0].numel(),
    "aten.addbmm": lambda args, _: 2 * args[1].numel() * args[2].shape[-1],
    "aten.addmm_": lambda args, _: 2 * args[1].numel() * args[2].shape[-1],
    "aten.baddbmm_": lambda args, _: 2 * args[1].numel() * args[2].shape[-1],
    "aten._addmm_activation": lambda args, _: 2 * args[1].numel() * args[2].shape[-1],
    "aten._trilinear": _trilinear,
    # Distances of many points are a matmul: |a|^2 - 2 a.b + |b|^2 (`cdist_impl` of Distance.cpp).
    "aten._euclidean_dist": lambda args, out: 2 * out.numel() * args[0].shape[-1],
    "aten._grouped_mm": _grouped_mm,
    "aten.convolution": _convolution,
    "aten._scaled_dot_product_flash_attention_for_cpu": lambda args, _: attention_flop(*args[:3]),
    "aten.mkldnn_rnn_layer": _mkldnn_rnn,
    # Of experts, each row with one matrix; of a selective scan, outputs from states.
    "transformers.grouped_mm_fallback": lambda args, _: 2 * args[0].numel() * args[1].shape[-1],
    "wattree.selective_scan": lambda args, _: 2 * args[0].numel() * args[2].shape[-1],
    "wattree.selective_scan_backward": lambda args, _: (
        4 * args[2][0].numel() * args[2][2].shape[-1]
    ),
    "wattree.chunked_product": lambda args, _: _chunked(args[0].shape, args[1].shape),
    "wattree.chunked_product_backward": lambda args, _: 2 * _chunked(*args[1:]),
    "wattree.attention": lambda args, _: attention_flop(*args[:3]),
    "wattree.lstm": lambda args, _: recurrent_flop(args[0], args[3]),
    "wattree.gru": lambda args, _: recurrent_flop(args[0], args[3]),
    "wattree.rnn": lambda args, _: recurrent_flop(args[0], args[3]),
}

#: FLOP of backward operators for the input's and for the weight's gradient, where one makes both.
_SPLIT: Final[Mapping[str, Callable[[Any], tuple[int, int]]]] = {
    "aten.convolution_backward": _convolution_gradients,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": lambda args: (
        2 * attention_flop(*args[1:4]),
        0,
    ),
    "transformers.grouped_mm_fallback_backward": _grouped_mm_gradients,
    "aten.mkldnn_rnn_layer_backward": lambda args: (_mkldnn_rnn(args, None),) * 2,
    "wattree.attention_backward": lambda args: (2 * attention_flop(*args[1:4]), 0),
    "wattree.lstm_backward": recurrent_gradient_flop,
    "wattree.gru_backward": recurrent_gradient_flop,
    "wattree.rnn_backward": recurrent_gradient_flop,
}

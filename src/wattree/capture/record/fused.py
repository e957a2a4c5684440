"""Attention, recurrent layers and CTC as one operator each, as GPUs run them.

PyTorch makes them of other operators on a CPU (`bmm`, softmax; a product for every step), or of
CPU kernels. While `fused_operators` is entered, whatever calls them gets an operator of
`wattree::` instead: it has sizes on fake tensors, values on real ones, and keeps for backward what
the kernels of GPUs keep. Their gradients have sizes and no values: nothing reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from wattree.capture.record.private import implementing
from wattree.capture.record.recurrent import recurrent_kernels
from wattree.capture.record.shapes import shapes_of


def attention_flop(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Return the FLOP of scores and weighted values, masked ones included."""
    queries = prod(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])) * q.shape[-2]
    heads = q.shape[-3] if q.ndim > 2 else 1
    return int(2 * queries * heads * k.shape[-2] * (q.shape[-1] + v.shape[-1]))


# ---------------------------------------------------------------------------------- attention


@torch.library.custom_op("wattree::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
) -> tuple[Tensor, Tensor]:
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=grouped,
    )
    empty, sums = _attention_sizes(query, key, value, mask, dropout, is_causal, scale, grouped)
    return empty.copy_(out), sums.zero_()


@_attention.register_fake
def _attention_sizes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    shape = (*lead, *query.shape[-3:-1])
    sums = query.new_empty(shape, dtype=torch.float32)
    if (*shape, value.shape[-1]) == query.shape:
        # Kernels lay the output out as the queries lie, so that merging heads moves nothing.
        return torch.empty_like(query), sums
    if len(shape) != 3:
        return query.new_empty((*shape, value.shape[-1])), sums
    batch, heads, positions = shape
    out = query.new_empty((batch, positions, heads, value.shape[-1])).transpose(1, 2)
    return out, sums


@shapes_of(
    "attention_backward",
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, Tensor sums) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    runs=True,
)
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    bias = query.new_empty(() if mask is None else mask.shape)
    return (*map(torch.empty_like, (query, key, value)), bias)


def _save_for_attention(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _attention_gradient(ctx: Any, grad: Tensor | None, _: Any) -> Any:
    if grad is None:
        return (None,) * 8
    query, key, value, mask, out, sums = ctx.saved_tensors
    made = torch.ops.wattree.attention_backward(grad, query, key, value, mask, out, sums)
    bias = made[3] if ctx.needs_input_grad[3] else None
    return (*made[:3], bias, None, None, None, None)


_attention.register_autograd(_attention_gradient, setup_context=_save_for_attention)


def _any_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if not _has_fused_kernel(query, key, value, is_grouped=enable_gqa):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            whole: Any = torch.ops.aten.scaled_dot_product_attention.default
            written_out: Tensor = whole.decompose(
                *(query, key, value, attn_mask, dropout_p, is_causal),
                scale=scale,
                enable_gqa=enable_gqa,
            )
        return written_out
    made: Tensor = torch.ops.wattree.attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )[0]
    return made


def _has_fused_kernel(query: Tensor, key: Tensor, value: Tensor, *, is_grouped: bool) -> bool:
    """Return whether PyTorch has a fused kernel for the sizes, on any device.

    `check_tensor_shapes`, `check_batch_size_and_num_heads_dense` and
    `check_last_dim_stride_equals_1_dense` of PyTorch's `sdp_utils_cpp.h`: four dims each, equal
    samples and heads without broadcasting, and head dims whose elements are adjacent.
    """
    if not query.ndim == key.ndim == value.ndim == 4:
        return False
    if query.shape[-1] != 1 and any(each.stride(-1) != 1 for each in (query, key, value)):
        return False
    shared = 1 if is_grouped else 2
    return bool(query.shape[:shared] == key.shape[:shared] == value.shape[:shared])


# ---------------------------------------------------------------------------------- CTC


@shapes_of(
    "ctc_loss", "(Tensor log_probs, Tensor targets, int labels) -> (Tensor, Tensor)", runs=True
)
def _(log_probs: Tensor, targets: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    steps, samples = log_probs.shape[:2]
    return log_probs.new_empty(samples), log_probs.new_empty(samples, steps, 2 * labels + 1)


@shapes_of(
    "ctc_loss_backward",
    "(Tensor grad, Tensor log_probs, Tensor targets, Tensor alpha) -> Tensor",
    runs=True,
)
def _(grad: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs)


def _save_for_ctc(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _ctc_gradient(ctx: Any, grad: Tensor | None, _: Any) -> Any:
    made = None if grad is None else torch.ops.wattree.ctc_loss_backward(grad, *ctx.saved_tensors)
    return made, None, None


torch.library.register_autograd("wattree::ctc_loss", _ctc_gradient, setup_context=_save_for_ctc)


def _any_ctc(
    log_probs: Tensor,
    targets: Tensor,
    _: Any,
    lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Size CTC by the width of targets, or its mean if they are concatenated; reads no values."""
    steps = log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)
    if not isinstance(lengths, Tensor):
        labels = max(lengths, default=0)
    elif targets.ndim == 2:
        labels = targets.shape[1]
    else:  # one after the other
        labels = -(-targets.shape[0] // steps.shape[1])
    losses: Tensor = torch.ops.wattree.ctc_loss(steps, targets, labels)[0]
    if reduction:  # 1: mean over labels and samples; 2: sum
        return (losses / max(labels, 1)).mean() if reduction == 1 else losses.sum()
    return losses if log_probs.ndim == 3 else losses.squeeze(0)


@contextmanager
def fused_operators(*, attention: bool, recurrent: bool = True) -> Iterator[None]:
    """Let attention, recurrent layers and CTC be one operator each while entered."""
    kernels: dict[str, Any] = {"ctc_loss.IntList": _any_ctc, "ctc_loss.Tensor": _any_ctc}
    if attention:
        kernels["scaled_dot_product_attention"] = _any_attention
    if recurrent:
        kernels |= recurrent_kernels()
    with implementing(kernels, "AutogradCPU"):
        yield

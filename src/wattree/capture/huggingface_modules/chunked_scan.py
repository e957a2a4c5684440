"""Recurrences over chunks (Mamba 2, gated delta rule) as their fused kernels run them.

Without those kernels the library computes them with PyTorch's operators in fp32, which keep every
intermediate result of every chunk. Here a recurrence is one pass over its inputs, which saves what
the published kernels save, and one product with as many FLOP as theirs (`capture.recurrence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from wattree.capture.record.shapes import shapes_of
from wattree.capture.recurrence import DELTA_RULE, KIMI_DELTA, STATE_SPACE, Recurrence


@shapes_of(
    "chunked_pass",
    "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? gate, Tensor? a, Tensor? d, "
    "Tensor? bias, SymInt[] sizes) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _(query, key, value, decay, gate, a, d, bias, sizes):  # type: ignore[no-untyped-def]
    batch, steps, heads, width = value.shape
    turns, inner, kept = sizes
    return (
        value.new_empty((batch, steps, heads, inner)),
        value.new_empty((batch, heads, turns, inner, width)),
        value.new_empty((batch, steps, heads, kept)),
        torch.empty_like(decay, dtype=torch.float32, memory_format=torch.contiguous_format),
    )


@shapes_of(
    "chunked_pass_backward", "(Tensor[] gradients, Tensor[] kept, Tensor[] operands) -> Tensor[]"
)
def _(gradients, kept, operands):  # type: ignore[no-untyped-def]
    return [torch.empty_like(operand) for operand in operands]


def save_context(ctx: Any, operands: Any, kept: Any) -> None:
    """Save what a recurrence keeps for backward, and those of its operands that there are."""
    ctx.present = [one is not None for one in operands]
    ctx.save_for_backward(*kept, *(one for one in operands if one is not None))
    ctx.mark_non_differentiable(*kept)


def by_operand(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    """Return gradients in the place of their operands, None for those that there are not."""
    found = iter(gradients)
    return tuple(next(found) if present else None for present in ctx.present)


def _save_pass(ctx: Any, inputs: Any, output: Any) -> None:
    save_context(ctx, inputs[:-1], output[2:])


def _derive_pass(ctx: Any, pieces: Any, states: Any, *_: Any) -> tuple[Any, ...]:
    kept, sums, *operands = ctx.saved_tensors
    backward = torch.ops.wattree.chunked_pass_backward
    return *by_operand(ctx, backward([pieces, states], [kept, sums], list(operands))), None


torch.library.register_autograd("wattree::chunked_pass", _derive_pass, setup_context=_save_pass)


@shapes_of("chunked_product", "(Tensor pieces, Tensor states) -> Tensor")
def _(pieces, states):  # type: ignore[no-untyped-def]
    return pieces.new_empty((*pieces.shape[:3], states.shape[-1]))


@shapes_of(
    "chunked_product_backward",
    "(Tensor gradient, SymInt[] pieces, SymInt[] states) -> (Tensor, Tensor)",
)
def _(gradient, pieces, states):  # type: ignore[no-untyped-def]
    return gradient.new_empty(pieces), gradient.new_empty(states)


def _save_product(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shapes = [list(one.shape) for one in inputs]  # backward makes them again


def _derive_product(ctx: Any, gradient: torch.Tensor) -> Any:
    return torch.ops.wattree.chunked_product_backward(gradient, *ctx.shapes)


torch.library.register_autograd(
    "wattree::chunked_product", _derive_product, setup_context=_save_product
)


def _scanned(kind: Recurrence, chunk: int, operands: tuple[Any, ...]) -> torch.Tensor:
    """Return the output of a recurrence: a pass over its inputs, and its products."""
    query, value = operands[0], operands[2]
    sizes = kind.sizes(
        keys=query.shape[-1],
        values=value.shape[-1],
        chunk=chunk,
        groups_per_head=query.shape[2] / value.shape[2],
    )
    pieces, states, *_ = torch.ops.wattree.chunked_pass(*operands, list(sizes))
    out: torch.Tensor = torch.ops.wattree.chunked_product(pieces, states)
    return out


def _delta_rule(kind: Recurrence) -> Callable[..., Any]:
    def instead(
        query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, **_: Any
    ) -> Any:
        operands = (query, key, value, g, beta, None, None, None)
        return _scanned(kind, chunk_size, operands), None

    return instead


def _mamba2(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int,
    D: Any = None, dt_bias: Any = None, return_final_states: bool = False, **_: Any
) -> Any:  # fmt: skip
    operands = (C, B, hidden_states, dt, None, A, D, dt_bias)
    out = _scanned(STATE_SPACE, chunk_size, operands)
    return (out, None) if return_final_states else out


#: Name of the library's function → what runs in its place.
CHUNKED_SCANS: Final[Mapping[str, Callable[..., Any]]] = {
    "torch_chunk_gated_delta_rule": _delta_rule(DELTA_RULE),
    "chunk_kimi_delta_attention": _delta_rule(KIMI_DELTA),
    "mamba2_chunk_scan": _mamba2,
}

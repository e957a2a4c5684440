"""Recurrent layers as one operator each: `wattree::lstm`, `wattree::gru`, `wattree::rnn`.

Their inputs are the sequence, the sizes of packed steps (or none), the initial states and the
layer's parameters, flat, in PyTorch's order: for each layer and direction the input and the
hidden weights, their biases, and the projection. Outputs: the sequence, the last hidden states,
the last cell states (empty but for LSTM), and further tensors saved for backward.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from wattree.capture.record.shapes import shapes_of

#: Values per hidden unit and step that fused cells keep besides the layer's output: gates and cell
#: state of `_thnn_fused_lstm_cell`, five of `_thnn_fused_gru_cell` (PyTorch,
#: aten/src/ATen/native/RNN.cpp and cuda/RNN.cu); a plain cell keeps its output alone. The size of
#: cuDNN's own reserve is not documented.
_RESERVE: Final = {"lstm": 5, "gru": 5, "rnn": 0}


def recurrent_flop(x: Tensor, params: list[Tensor]) -> int:
    """Return the FLOP of a recurrent layer: every step meets every weight once."""
    return int(2 * prod(x.shape[:-1]) * sum(p.numel() for p in params if p.ndim == 2))


def recurrent_gradient_flop(args: Any) -> tuple[int, int]:
    """Return the FLOP of a backward operator for the input's and for the weights' gradients."""
    x, _, params, _, _, layers, bidirectional, to_input, to_weights = args
    whole = recurrent_flop(x, params)
    directions = 2 if bidirectional else 1
    apart = len(params) // (layers * directions)
    first = recurrent_flop(x, [params[apart * index] for index in range(directions)])
    return (whole if to_input else whole - first), (whole if to_weights else 0)


def _sizes(
    kind: str,
    x: Tensor,
    hx: list[Tensor],
    layers: int,
    *,
    dropped: bool,
    bidirectional: bool,
) -> list[Tensor]:
    """Return tensors as a layer's forward makes them, without values."""
    directions = 2 if bidirectional else 1
    rows, hidden, cell = x.shape[:-1], hx[0].shape[-1], hx[-1].shape[-1]
    between = (layers - 1) * directions * hidden * (2 if dropped else 1)
    kept = prod(rows) * (layers * directions * cell * _RESERVE[kind] + between)
    return [
        x.new_empty((*rows, directions * hidden)),
        torch.empty_like(hx[0], memory_format=torch.contiguous_format),
        torch.empty_like(hx[1], memory_format=torch.contiguous_format)
        if len(hx) > 1
        else x.new_empty((0,)),
        x.new_empty((kept,)),
    ]


#: Arguments of an operator and of its gradient, as PyTorch writes them.
_SCHEMA: Final = (
    "(Tensor input, Tensor? batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, "
    "int num_layers, float dropout, bool train, bool bidirectional, bool batch_first, "
    "str nonlinearity) -> Tensor[]"
)
_BACKWARD_SCHEMA: Final = (
    "(Tensor input, Tensor[] hx, Tensor[] params, Tensor out, Tensor reserve, int num_layers, "
    "bool bidirectional, bool to_input, bool to_weights) -> Tensor[]"
)


def _define(kind: str) -> None:
    """Register the operator of one kind, its sizes, and its gradient."""

    def sizes(input: Tensor, batch_sizes: Any, hx: Any, params: Any, *options: Any) -> list[Tensor]:
        _, layers, dropout, train, bidirectional, _, _ = options
        dropped = bool(dropout) and train
        return _sizes(kind, input, hx, layers, dropped=dropped, bidirectional=bidirectional)

    def forward(
        input: Tensor, batch_sizes: Any, hx: Any, params: Any, *options: Any
    ) -> list[Tensor]:
        made = sizes(input, batch_sizes, hx, params, *options)
        *most, batch_first, nonlinearity = options
        aten = getattr(torch.ops.aten, kind if kind != "rnn" else f"rnn_{nonlinearity}")
        states: Any = hx if kind == "lstm" else hx[0]
        if batch_sizes is None:
            found = aten.input(input, states, params, *most, batch_first)
        else:
            found = aten.data(input, batch_sizes, states, params, *most)
        for tensor, value in zip(made, found, strict=False):
            tensor.copy_(value)
        made[3].zero_()
        return made

    def gradient(ctx: Any, *_: Any) -> Any:
        x, *rest, out, reserve = ctx.saved_tensors
        hx, params = rest[: ctx.states], rest[ctx.states :]
        made = getattr(torch.ops.wattree, f"{kind}_backward")(
            *(x, hx, params, out, reserve, ctx.layers, ctx.bidirectional),
            *(ctx.to_input, ctx.to_weights),
        )
        states, weights = made[1 : 1 + ctx.states], made[1 + ctx.states :]
        return (made[0], None, states, weights, *(None,) * 7)

    made = torch.library.custom_op(f"wattree::{kind}", forward, mutates_args=(), schema=_SCHEMA)
    made.register_fake(sizes)
    made.register_autograd(gradient, setup_context=_keep)
    shapes_of(f"{kind}_backward", _BACKWARD_SCHEMA, runs=True)(
        lambda input, hx, params, *_: [torch.empty_like(t) for t in (input, *hx, *params)]
    )


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, hx, params, _, ctx.layers, _, _, ctx.bidirectional, *_ = inputs
    ctx.states = len(hx)
    ctx.to_input = x.requires_grad
    ctx.to_weights = any(p.requires_grad for p in params)
    ctx.save_for_backward(x, *hx, *params, output[0], output[3])


for _kind in ("lstm", "gru", "rnn"):
    _define(_kind)


def recurrent_kernels() -> dict[str, Callable[..., Any]]:
    """Return the implementations of PyTorch's recurrent operators, by overload."""
    made: dict[str, Callable[..., Any]] = {}
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        kernel = _padded(name)
        made[f"{name}.input"], made[f"{name}.data"] = kernel, _packed(kernel)
    return made


def _padded(name: str) -> Callable[..., Any]:
    kind, _, nonlinearity = name.partition("_")

    def kernel(
        x: Tensor, hx: Any, params: list[Tensor], *options: Any, batch_sizes: Tensor | None = None
    ) -> Any:
        states = list(hx) if kind == "lstm" else [hx]
        operator = getattr(torch.ops.wattree, kind)
        out, hidden, cell, _ = operator(x, batch_sizes, states, params, *options, nonlinearity)
        return (out, hidden, cell) if kind == "lstm" else (out, hidden)

    return kernel


def _packed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of packed sequences, which have no batch dim that could come first."""
    return lambda x, batch_sizes, hx, params, *options: kernel(
        x, hx, params, *options, False, batch_sizes=batch_sizes
    )

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


def _define(kind: str) -> None:
    """Register the operator of one kind, its sizes, and its gradient."""

    def forward(
        input: Tensor,
        batch_sizes: Tensor | None,
        hx: list[Tensor],
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        nonlinearity: str,
    ) -> list[Tensor]:
        dropped = bool(dropout) and train
        made = _sizes(kind, input, hx, num_layers, dropped=dropped, bidirectional=bidirectional)
        name = kind if kind != "rnn" else f"rnn_{nonlinearity}"
        aten = getattr(torch.ops.aten, name)
        states: Any = hx if kind == "lstm" else hx[0]
        options = (has_biases, num_layers, dropout, train, bidirectional)
        if batch_sizes is None:
            found = aten.input(input, states, params, *options, batch_first)
        else:
            found = aten.data(input, batch_sizes, states, params, *options)
        for tensor, value in zip(made, found, strict=False):
            tensor.copy_(value)
        made[3].zero_()
        return made

    def sizes(input: Tensor, batch_sizes: Any, hx: Any, params: Any, *options: Any) -> list[Tensor]:
        _, layers, dropout, train, bidirectional, _, _ = options
        dropped = bool(dropout) and train
        return _sizes(kind, input, hx, layers, dropped=dropped, bidirectional=bidirectional)

    def gradient(ctx: Any, *_: Any) -> Any:
        x, *rest, out, reserve = ctx.saved_tensors
        hx, params = rest[: ctx.states], rest[ctx.states :]
        made = getattr(torch.ops.wattree, f"{kind}_backward")(
            *(x, hx, params, out, reserve, ctx.layers, ctx.bidirectional),
            *(ctx.to_input, ctx.to_weights),
        )
        states, weights = made[1 : 1 + ctx.states], made[1 + ctx.states :]
        return (made[0], None, states, weights, *(None,) * 7)

    made = _custom_op(kind, forward)
    made.register_fake(sizes)
    made.register_autograd(gradient, setup_context=_keep)
    _custom_op(f"{kind}_backward", _backward).register_fake(
        lambda input, hx, params, *_: [torch.empty_like(t) for t in (input, *hx, *params)]
    )


def _backward(
    input: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    out: Tensor,
    reserve: Tensor,
    num_layers: int,
    bidirectional: bool,
    to_input: bool,
    to_weights: bool,
) -> list[Tensor]:
    return [torch.zeros_like(t) for t in (input, *hx, *params)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, hx, params, _, ctx.layers, _, _, ctx.bidirectional, *_ = inputs
    ctx.states = len(hx)
    ctx.to_input = x.requires_grad
    ctx.to_weights = any(p.requires_grad for p in params)
    ctx.save_for_backward(x, *hx, *params, output[0], output[3])


def _custom_op(name: str, function: Callable[..., Any]) -> Any:
    """Register a function as an operator of that name."""
    schema = torch.library.infer_schema(_plain(function), mutates_args=())
    return torch.library.custom_op(f"wattree::{name}", function, mutates_args=(), schema=schema)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its annotations evaluated, as the schema wants them."""
    known = {"Tensor": Tensor, "list[Tensor]": list[Tensor], "Tensor | None": Tensor | None}
    known |= {"bool": bool, "int": int, "float": float, "str": str}
    names = function.__annotations__
    function.__annotations__ = {name: known.get(kind, kind) for name, kind in names.items()}
    return function


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

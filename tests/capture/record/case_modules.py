"""What cases of capturing are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = [
    "WIDTH",
    "Calls",
    "Case",
    "Constants",
    "Features",
    "Scaled",
    "attention",
    "autocast",
    "convolution",
    "ctc",
    "frozen",
    "images",
    "in_place",
    "linear",
    "one",
    "packed",
    "penalised",
    "recurrent",
    "region",
    "rows",
    "scattered",
    "shared",
    "tied",
    "tokens",
]


WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One module.

    Attributes:
        group, what: Head and line of the table.
        build: Makes the module.
        inputs: `(batch) → arguments`, or `(batch, sequence)` where `sequence` is given.
        sequence: Tokens per sample.
        flop: Forward FLOP at batch 2, where supported.
        backward_flop: Of input and weight gradients, at batch 2.
        operators: Some of the operators that must be recorded.
        values: Run on real values, with a warning.
        refusal: Words of the message, where it is refused.
        advice: What the table says to do, or how it is recorded.
    """

    group: str
    what: str
    build: Callable[[], Any]
    inputs: Callable[..., tuple[Any, ...]]
    sequence: int | None = None
    flop: int | None = None
    backward_flop: tuple[int, int] | None = None
    operators: tuple[str, ...] = ()
    values: bool = False
    refusal: str = ""
    advice: str = ""


def linear(width: int = WIDTH) -> nn.Linear:
    """Return a layer of 2 · 8 · 8 FLOP per row."""
    return nn.Linear(WIDTH, width)


class Calls(nn.Module):
    """A module whose forward is a function of it and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the function returns."""
        return self.function(self, *inputs, **named)


def one(function: Callable[..., Any], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Return a builder of a module with a layer `a` and other parts."""
    return lambda: Calls(function, a=linear(), **{name: part() for name, part in parts.items()})


def rows(batch: int) -> tuple[torch.Tensor]:
    """Return `batch` rows."""
    return (torch.randn(batch, WIDTH),)


def tokens(batch: int, sequence: int) -> tuple[torch.Tensor]:
    """Return rows of `sequence` positions."""
    return (torch.randn(batch, sequence, WIDTH),)


def images(rank: int) -> Callable[[int], tuple[torch.Tensor]]:
    """Return what makes four channels of 8 positions along each of `rank` dims."""
    return lambda batch: (torch.randn(batch, 4, *(8,) * rank),)


@dataclass
class Features:
    """Inputs of a module as a dataclass."""

    dense: torch.Tensor
    mask: torch.Tensor | None = None


class Scaled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return `x W`."""
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both gradients, whether they are needed or not."""
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class Constants(nn.Module):
    """Tensors in plain attributes and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale, self.shifts = linear(), torch.arange(8.0), [torch.ones(8)]
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of them, and write a buffer."""
        self.calls += 1
        return self.a(x) * self.scale + self.shifts[0]


def tied() -> nn.Module:
    """Return two layers of one weight."""
    model = nn.Sequential(linear(), linear())
    model[1].weight = model[0].weight
    return model


def shared() -> nn.Module:
    """Return one layer that is called twice."""
    layer = linear()
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen() -> nn.Module:
    """Return a layer that is not trained, and one that is."""
    return nn.Sequential(linear().requires_grad_(False), linear())


def penalised(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a loss with the gradient of a result in it."""
    x = x.detach().requires_grad_()
    y = torch.tanh(self.a(x))
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.sum() + slope.square().sum()


def region(reentrant: bool) -> Callable[[], nn.Module]:  # noqa: FBT001
    """Return what builds a module with a checkpointed region."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return self.c(torch.relu(self.b(y)))

        return checkpoint(inner, self.a(x), use_reentrant=reentrant)

    return one(forward, b=linear, c=linear)


def autocast(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute in 16 bits."""
    with torch.autocast("cpu", torch.bfloat16):
        return self.a(x)


def in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Change a part of a tensor."""
    y = self.a(x)
    y[:, :4].mul_(2.0)
    return y.masked_fill_(y > 4, 4.0).relu_()


def scattered(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Scatter and gather."""
    places = torch.zeros(x.shape, dtype=torch.long)
    return torch.zeros_like(x).scatter_add(1, places, self.a(x)).gather(1, places)


def packed(self: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run a recurrent layer on sequences of several lengths."""
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]


def attention(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Attend causally, with dropout."""
    q = k = v = self.a(x)[:, None]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)


def ctc(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Align frames with two labels a sample, whose lengths are values."""
    samples, frames, _ = x.shape
    labels, lengths = x.new_ones(samples, 2).long(), x.new_full((samples,), frames).long()
    frames_first = self.a(x).log_softmax(-1).transpose(0, 1)
    return functional.ctc_loss(frames_first, labels, lengths, x.new_full((samples,), 2).long())


def recurrent(kind: type[nn.Module], **keys: Any) -> Callable[[], nn.Module]:
    """Return what builds a recurrent layer."""
    return lambda: Calls(
        lambda self, x: self.rnn(x)[0], rnn=kind(WIDTH, 6, batch_first=True, **keys)
    )


def convolution(kind: type[nn.Module], **keys: Any) -> Callable[[], nn.Module]:
    """Return what builds a grouped convolution."""
    return lambda: kind(4, 6, 3, groups=2, **keys)

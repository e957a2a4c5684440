"""Modules whose weights are computed, whose branches end, or whose gradients stop on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

__all__ = ["COMPUTED_WEIGHTS", "STOPPED_GRADIENTS", "Odd", "normed_by_spectrum"]

WIDTH = 32
VECTOR, IMAGE = (WIDTH,), (8, 12, 12)
relu = functional.relu

#: What is built, and the shape of one sample.
Odd = tuple[Callable[[], nn.Module], tuple[int, ...]]


class _Module(nn.Module):
    """Parts by name, and a function for its forward."""

    def __init__(self, run: Callable[[Any, Tensor], Any], parts: dict[str, Any]) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        """Run it."""
        return self.run(self, x)


def _module(
    run: Callable[[Any, Tensor], Any],
    parts: Callable[[], dict[str, Any]],
    shape: tuple[int, ...] = VECTOR,
) -> Odd:
    return lambda: _Module(run, parts()), shape


def _linear(names: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: nn.Linear(WIDTH, WIDTH) for name in names}


def _free(**shapes: tuple[int, ...]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: nn.Parameter(torch.zeros(*shape)) for name, shape in shapes.items()}


def _frozen(part: nn.Module, *names: str) -> nn.Module:
    for name, parameter in part.named_parameters():
        parameter.requires_grad_(bool(names) and name not in names)
    return part


def _each(x: Tensor) -> Tensor:
    return x.reshape(1, -1, WIDTH).expand(3, -1, -1)


def _gated(s: Any, x: Tensor) -> Tensor:
    return torch.bmm(_each(x), s.a.mT) * torch.bmm(_each(x), s.b.mT)


def _hyper() -> dict[str, Any]:
    return {"z": nn.Parameter(torch.zeros(4)), "h": nn.Linear(4, WIDTH**2)}


def _modulated(s: Any, x: Tensor) -> Tensor:
    batch, channels, *size = x.shape
    weight = s.w[None] * s.g(x.mean((2, 3)))[:, None, :, None, None]
    x = x.reshape(1, batch * channels, *size)
    weight = weight.reshape(batch * channels, channels, 3, 3)
    y = functional.conv2d(x, weight, padding=1, groups=batch)
    return y.reshape(batch, channels, *size)


def _modulated_transposed(s: Any, x: Tensor) -> Tensor:
    batch, channels, *size = x.shape
    weight = s.w[None] * s.g(x.mean((2, 3)))[:, :, None, None, None]
    x = x.reshape(1, batch * channels, *size)
    weight = weight.reshape(batch * channels, channels, 3, 3)
    y = functional.conv_transpose2d(x, weight, padding=1, groups=batch)
    return y.reshape(batch, channels, *size)


def _styles() -> dict[str, Any]:
    return {"w": nn.Parameter(torch.zeros(8, 8, 3, 3)), "g": nn.Linear(8, 8)}


def _normed_convolutions() -> nn.Module:
    return nn.Sequential(
        weight_norm(nn.Conv2d(8, 8, 3)),
        nn.ReLU(),
        weight_norm(nn.Conv2d(8, 8, 3, groups=8)),
        weight_norm(nn.Conv2d(8, 8, 3, bias=False)),
        weight_norm(nn.ConvTranspose2d(8, 4, 3, stride=2)),
    )


def _normed_layers() -> nn.Module:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(weight_norm(first), nn.ReLU(), weight_norm(second), nn.ReLU())


def normed_by_spectrum() -> nn.Module:
    """Return two layers whose weights are divided by their largest singular values."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(spectral_norm(first), nn.ReLU(), spectral_norm(second))


def _clamped(s: Any, x: Tensor) -> Tensor:
    s.a.weight.data.clamp_(-1.0, 1.0)
    return s.b(relu(s.a(x)))


def _renormed(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.a.weight.div_(s.a.weight.norm())
    return s.b(relu(s.a(x)))


COMPUTED_WEIGHTS: dict[str, Odd] = {
    "low rank": _module(
        lambda s, x: functional.linear(x, s.u @ s.v), _free(u=(WIDTH, 8), v=(8, WIDTH))
    ),
    "lora merged": _module(
        lambda s, x: functional.linear(x, s.w + s.b @ s.a, s.bias),
        _free(w=(WIDTH, WIDTH), b=(WIDTH, 8), a=(8, WIDTH), bias=(WIDTH,)),
    ),
    "penalty": _module(
        lambda s, x: s.a(x).square().mean() + (s.a.weight @ s.a.weight.T).square().mean(),
        _linear("a"),
    ),
    "with itself": _module(lambda s, x: x @ (s.w @ s.w.T), _free(w=(WIDTH, 8))),
    "of each part": _module(
        lambda s, x: torch.einsum("bi,nio->bno", x, torch.einsum("nik,nko->nio", s.a, s.b)),
        _free(a=(4, WIDTH, 8), b=(4, 8, WIDTH)),
    ),
    "side by side": _module(_gated, _free(a=(3, 8, WIDTH), b=(3, 8, WIDTH))),
    "hyper-network": _module(
        lambda s, x: functional.linear(x, relu(s.h(s.z)).view(WIDTH, WIDTH)), _hyper
    ),
    "of each sample": _module(
        lambda s, x: torch.bmm(s.a(x)[:, None], s.h(x).view(-1, WIDTH, 4)),
        lambda: {"a": nn.Linear(WIDTH, WIDTH), "h": nn.Linear(WIDTH, WIDTH * 4)},
    ),
    "weight norm": (_normed_layers, VECTOR),
    "weight norm of convolutions": (_normed_convolutions, IMAGE),
    "constant image": _module(
        lambda s, x: functional.conv2d(s.c, s.w, padding=1) + x,
        _free(c=(1, 8, 12, 12), w=(8, 8, 3, 3)),
        IMAGE,
    ),
    "masked": _module(
        lambda s, x: s.b(
            relu(functional.linear(x, s.a.weight * s.a.weight.detach().sign(), s.a.bias))
        ),
        _linear("ab"),
    ),
    "modulated": _module(_modulated, _styles, IMAGE),
    "modulated, transposed": _module(_modulated_transposed, _styles, IMAGE),
    "clamped in place": _module(_clamped, _linear("ab")),
    "scaled in place": _module(_renormed, _linear("ab")),
    "distances": _module(
        lambda s, x: torch.cdist(s.a(x), s.q), lambda: _linear("a")() | _free(q=(40, WIDTH))()
    ),
    "normed": _module(
        lambda s, x: s.a(x) @ s.n(s.q).T,
        lambda: {**_linear("a")(), "n": nn.LayerNorm(WIDTH), **_free(q=(4, WIDTH))()},
    ),
}


class _Reversed(torch.autograd.Function):
    """A function with a backward of its own, in whose forward autograd is off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return (x @ weight.t()).relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Derive both factors."""
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


def _without(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = relu(s.a(x))
    return s.b(y)


def _all_without(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return s.b(s.a(x))


def _target(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = s.a(x).view(-1, 4, 8)
    return functional.mse_loss(s.b(x), target.flatten(1))


def _dead(s: Any, x: Tensor) -> Tensor:
    s.b(s.a(x))
    return s.c(x)


def _first_without(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = s.a(x)
    return functional.mse_loss(s.a(x + 1.0), target)


def _teacher(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.t.weight.mul_(0.9).add_(s.a.weight, alpha=0.1)
        target = s.t(x)
    return functional.mse_loss(s.a(x), target)


def _codes(s: Any, x: Tensor) -> Tensor:
    z = s.a(x)
    return s.c(z) + z.detach() @ s.b.weight.t()


def _recurrent(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = s.l(x)[0]
    return s.b(y)


def _checkpointed(*, reentrant: bool) -> Callable[[Any, Tensor], Any]:
    return lambda s, x: s.c(
        checkpoint(lambda y: s.b(relu(y)), s.a(x), use_reentrant=reentrant)  # type: ignore[no-untyped-call]
    )


STOPPED_GRADIENTS: dict[str, Odd] = {
    "no_grad": _module(_without, _linear("ab")),
    "all under no_grad": _module(_all_without, _linear("ab")),
    "detached": _module(lambda s, x: s.b(relu(s.a(x)).detach()), _linear("ab")),
    "target without": _module(_target, _linear("ab")),
    "dead branch": _module(_dead, _linear("abc")),
    "result that is not used": _module(
        lambda s, x: s.m(x, x, x)[1],
        lambda: {"m": nn.MultiheadAttention(WIDTH, 4, batch_first=True)},
        (6, WIDTH),
    ),
    "whole numbers": _module(lambda s, x: (s.a(x), s.b(x).argmax(-1)), _linear("ab")),
    "shared, first without": _module(_first_without, _linear("a")),
    "teacher": _module(
        _teacher,
        lambda: {"a": nn.Linear(WIDTH, WIDTH), "t": _frozen(nn.Linear(WIDTH, WIDTH))},
    ),
    "both ways": _module(_codes, _linear("abc")),
    "detached weight": _module(
        lambda s, x: functional.linear(s.b(x), s.a.weight.detach(), s.a.bias), _linear("ab")
    ),
    "detached once": _module(
        lambda s, x: functional.linear(s.b(x), s.a.weight.detach()) + s.a(x), _linear("ab")
    ),
    "biases alone": _module(
        lambda s, x: s.b(relu(s.a(x))),
        lambda: {name: _frozen(nn.Linear(WIDTH, WIDTH), "weight") for name in "ab"},
    ),
    "recurrent without": _module(
        _recurrent,
        lambda: {"l": nn.LSTM(WIDTH, WIDTH, batch_first=True), "b": nn.Linear(WIDTH, WIDTH)},
        (5, WIDTH),
    ),
    "function of its own": _module(
        lambda s, x: s.b(_Reversed.apply(relu(s.a(x)), s.b.weight)), _linear("ab")
    ),
    "checkpoint": _module(_checkpointed(reentrant=False), _linear("abc")),
    "checkpoint without autograd": _module(_checkpointed(reentrant=True), _linear("abc")),
}

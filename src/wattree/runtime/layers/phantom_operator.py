"""The operators of a phantom layer, forward and backward.

Row-major: x `(B, m)`, ghosts transposed `(k, B)`, so that gathering stacks them without a copy and
one product decompresses all. Letters as in docs/design/0021-phantom-layers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters, linear
from wattree.runtime.transfers import Pending


def _relu_backward(h: Tensor, before: Tensor) -> Tensor:
    return h * (before > 0)


def _tanh_backward(h: Tensor, before: Tensor) -> Tensor:
    return h * (1 - before.tanh().square())


def _gelu_backward(h: Tensor, before: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(h, before)


#: Name → function of ghosts, and what takes its gradient back, given its input.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "gelu": (torch.nn.functional.gelu, _gelu_backward),
    "relu": (torch.relu, _relu_backward),
    "tanh": (torch.tanh, _tanh_backward),
}


class PhantomOperator(LayerOperator):
    """x `(B, m)` → z `(B, m')`; parameters L, b, C, ghost bias, D as of `PhantomLinear`.

    Args:
        ghosts: k.
        is_shared: Whether one decompressor serves all sources.
        activation: Of ghosts, or None.
        regather: Whether ghosts are exchanged again in the backward pass.
        others: As of `LayerOperator`.
    """

    def __init__(
        self,
        *,
        ghosts: int,
        is_shared: bool,
        activation: str | None,
        regather: bool,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.ghosts, self.is_shared = ghosts, is_shared
        self.activation, self.regather = activation, regather

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z, and `[g_i of the peers, C x before its activation]` as far as needed."""
        weight, bias, compressor, ghost_bias, decompressor = parameters
        before = torch.mm(compressor, x.t())
        if ghost_bias is not None:
            before += ghost_bias[:, None]
        ghosts = self._activated(before)
        pending = self._start_gather(ghosts)
        # The local product runs while ghosts are on their way.
        z = linear(x, weight, bias)
        others = self._received(pending, ghosts)
        z.addmm_(others.t(), decompressor.t())
        return z, [*([] if self.regather else [others]), *([before] if self._saves_own else [])]

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; the reduce-scatter overlaps the matmuls that need no peer."""
        delta, x = call.delta, call.x
        weight, _, compressor, _, decompressor = call.parameters
        needs_x, _, _, needs_c, needs_ghost_bias, needs_d = call.needs
        others: Any = None if self.regather else call.made[0]
        before = call.made[-1] if self._saves_own else None
        ghosts = gathering = scattering = own = None
        if self.regather and needs_d:
            ghosts = self._activated(before)
            gathering = self._start_gather(ghosts)
        if needs_x or needs_c or needs_ghost_bias:
            scattering, own = self._start_scatter(decompressor, delta)
        own_gradients = call.own_gradients(x)
        d_x = torch.mm(delta, weight) if needs_x else None
        if gathering is not None:
            others = self._received(gathering, ghosts)
        d_decompressor = torch.mm(delta.t(), others.t()) if needs_d else None
        d_compressor = d_ghost_bias = None
        if scattering is not None:
            h = self._gradient_of_ghosts(scattering, own, before)
            d_compressor = torch.mm(h, x) if needs_c else None
            d_ghost_bias = h.sum(1) if needs_ghost_bias else None
            if d_x is not None:
                d_x.addmm_(h.t(), compressor)
        return [d_x, *own_gradients, d_compressor, d_ghost_bias, d_decompressor]

    def shapes(self, x: Tensor, parameters: Parameters) -> list[tuple[int, ...]]:
        """Return those of z, of the peers' ghosts and of the own ones."""
        rows, sources = x.shape[0], 1 if self.is_shared else self.group.size - 1
        found: list[tuple[int, ...]] = [(rows, parameters[0].shape[0])]
        if not self.regather:
            found.append((sources * self.ghosts, rows))
        if self._saves_own:
            found.append((self.ghosts, rows))
        return found

    @property
    def _saves_own(self) -> bool:
        return self.regather or self.activation is not None

    def _activated(self, before: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation][0](before) if self.activation else before

    def _start_gather(self, ghosts: Tensor) -> Pending:
        """Send own ghosts `(k, B)`; gives those of the peers, or the sum of all."""
        if self.is_shared:
            return self.group.all_reduce(ghosts.clone(), self.place).unless(self.overlap)
        return self.group.gather_peers(ghosts, self.place).unless(self.overlap)

    def _received(self, pending: Pending, ghosts: Tensor) -> Tensor:
        """Return the input of the decompressor: `((p-1) k, B)`, or the sum over peers `(k, B)`."""
        return pending.wait().sub_(ghosts) if self.is_shared else pending.wait()

    def _start_scatter(self, decompressor: Tensor, delta: Tensor) -> tuple[Pending, Tensor | None]:
        """Send the gradients of every source's ghosts, `u_ji = D_ji^T delta_j`."""
        if self.is_shared:
            own = torch.mm(decompressor.t(), delta.t())
            pending = self.group.all_reduce(own.clone(), self.place)
            return pending.unless(self.overlap), own
        buffer, part = self.group.buffer_for_peers(self.ghosts, delta.shape[0], delta)
        torch.mm(decompressor.t(), delta.t(), out=part)
        pending = self.group.scatter_to_peers(buffer, self.ghosts, self.place)
        return pending.unless(self.overlap), None

    def _gradient_of_ghosts(
        self, pending: Pending, own: Tensor | None, before: Tensor | None
    ) -> Tensor:
        h = pending.wait()
        if own is not None:
            h = h.sub_(own)
        return ACTIVATIONS[self.activation][1](h, before) if self.activation else h

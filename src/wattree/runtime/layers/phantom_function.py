"""The operators of a phantom layer, forward and backward, as one autograd function.

Row-major: x `(B, m)`, ghosts transposed `(k, B)`, so that gathering stacks them without a copy and
one product decompresses all. Letters as in docs/design/0021-phantom-layers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wattree.runtime.group import Group, Pending
from wattree.runtime.layers.casting import autocasted

__all__ = ["ACTIVATIONS", "PhantomSpec", "phantom"]


def _relu_backward(h: Tensor, before: Tensor) -> Tensor:
    return h * (before > 0)


def _tanh_backward(h: Tensor, before: Tensor) -> Tensor:
    return h * (1 - before.tanh().square())


def _gelu_backward(h: Tensor, before: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(h, before)


#: Name → function of ghosts, and what takes its gradient back, given its input.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu, _relu_backward),
    "gelu": (torch.nn.functional.gelu, _gelu_backward),
    "tanh": (torch.tanh, _tanh_backward),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomSpec:
    """What a call needs besides tensors; attributes as of `PhantomLinear`."""

    group: Group
    ghosts: int
    is_shared: bool
    activation: str | None
    regather: bool
    overlap: bool
    place: str

    def start_gather(self, ghosts: Tensor) -> Pending:
        """Send own ghosts `(k, B)`; gives those of the peers, or their sum and the own ones."""
        if self.is_shared:
            pending = self.group.all_reduce(ghosts.clone(), self.place)
        else:
            pending = self.group.gather_peers(ghosts, self.place)
        return self._started(pending)

    def received(self, pending: Pending, ghosts: Tensor) -> Tensor:
        """Return what is decompressed: `((p-1) k, B)`, or the peers' sum `(k, B)`."""
        return pending.wait().sub_(ghosts) if self.is_shared else pending.wait()

    def start_scatter(self, decompressor: Tensor, delta: Tensor) -> tuple[Pending, Tensor | None]:
        """Send what every source's ghosts get, `u_ji = D_ji^T delta_j`."""
        if self.is_shared:
            own = torch.mm(decompressor.t(), delta.t())
            return self._started(self.group.all_reduce(own.clone(), self.place)), own
        room, part = self.group.room_for_peers(self.ghosts, delta.shape[0], delta)
        torch.mm(decompressor.t(), delta.t(), out=part)
        return self._started(self.group.scatter_to_peers(room, self.ghosts, self.place)), None

    def _started(self, pending: Pending) -> Pending:
        if not self.overlap:
            pending.finish_now()
        return pending


def phantom(spec: PhantomSpec, x: Tensor, *parameters: Tensor | None) -> Tensor:
    """Return `x L^T + b + sum_i g_i D_ji^T` over the peers i.

    Args:
        spec: Of the layer.
        x: `(…, in_shard)`.
        parameters: weight, bias, compressor, ghost bias, decompressor; shapes as of
            `PhantomLinear`.
    """
    x, *cast = autocasted(x, *parameters)
    lead = x.shape[:-1]
    z = _Phantom.apply(spec, x.reshape(-1, x.shape[-1]), *cast)
    return z.view(*lead, z.shape[-1])


class _Phantom(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes tensors by position
        ctx: Any,
        spec: PhantomSpec,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        compressor: Tensor,
        ghost_bias: Tensor | None,
        decompressor: Tensor,
    ) -> Tensor:
        before = torch.mm(compressor, x.t())
        if ghost_bias is not None:
            before += ghost_bias[:, None]
        ghosts = ACTIVATIONS[spec.activation][0](before) if spec.activation else before
        pending = spec.start_gather(ghosts)
        # The local product runs while ghosts are on their way.
        z = torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
        others = spec.received(pending, ghosts)
        z.addmm_(others.t(), decompressor.t())
        ctx.spec = spec
        needs_own = spec.regather or spec.activation
        ctx.save_for_backward(
            x,
            weight,
            compressor,
            decompressor,
            None if spec.regather else others,
            before if needs_own else None,
        )
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        spec: PhantomSpec = ctx.spec
        x, weight, compressor, decompressor, others, before = ctx.saved_tensors
        _, needs_x, needs_weight, needs_bias, needs_c, needs_ghost_bias, needs_d = (
            ctx.needs_input_grad
        )
        gathering = ghosts = None
        if others is None and needs_d:
            ghosts = ACTIVATIONS[spec.activation][0](before) if spec.activation else before
            gathering = spec.start_gather(ghosts)
        scattering = own = None
        if needs_x or needs_c or needs_ghost_bias:
            scattering, own = spec.start_scatter(decompressor, delta)
        # Local products run while ghosts' gradients are on their way.
        d_weight = torch.mm(delta.t(), x) if needs_weight else None
        d_bias = delta.sum(0) if needs_bias else None
        d_x = torch.mm(delta, weight) if needs_x else None
        if gathering is not None:
            others = spec.received(gathering, ghosts)
        d_decompressor = torch.mm(delta.t(), others.t()) if needs_d else None
        d_compressor = d_ghost_bias = None
        if scattering is not None:
            h = scattering.wait()
            if own is not None:
                h = h.sub_(own)
            if spec.activation:
                h = ACTIVATIONS[spec.activation][1](h, before)
            d_compressor = torch.mm(h, x) if needs_c else None
            d_ghost_bias = h.sum(1) if needs_ghost_bias else None
            if d_x is not None:
                d_x.addmm_(h.t(), compressor)
        return None, d_x, d_weight, d_bias, d_compressor, d_ghost_bias, d_decompressor

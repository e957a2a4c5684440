"""The control between phantom and tensor parallelism: the weights of one, the traffic of the other.

Against `PhantomLinear` it shows what exchanging ghosts instead of activations saves; against
`GatherRowsLinear`, what fewer weights alone save.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from wattree.runtime.layers.ghosts import GhostLinear, GhostSettings
from wattree.runtime.layers.operator import (
    BackwardCall,
    LayerOperator,
    Parameters,
    linear,
    transposed_into,
)
from wattree.runtime.shards import shard_slices


class LowRankOperator(LayerOperator):
    """x `(B, m)` → z `(B, m')`; parameters L, b, C, D as of `PhantomLinear`.

    Activations are exchanged, and with them the compressors, which each rank needs of all others:
    (p-1) m (B + k) elements sent per rank in each direction, features first.

    Args:
        ghosts: k.
        is_shared: Whether one decompressor serves all sources.
        in_widths: Input shard of every rank.
        others: As of `LayerOperator`.
    """

    def __init__(
        self, *, ghosts: int, is_shared: bool, in_widths: tuple[int, ...], **others: Any
    ) -> None:
        super().__init__(**others)
        self.ghosts, self.is_shared, self.in_widths = ghosts, is_shared, in_widths
        self._features = shard_slices(in_widths)

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z, everybody's `[y | C^T]` `(n, B + k)`, and the peers' ghosts."""
        weight, bias, compressor, decompressor = parameters
        rows = x.shape[0]
        part = x.new_empty(x.shape[1], rows + self.ghosts)
        part[:, :rows].copy_(x.t())
        part[:, rows:].copy_(compressor.t())
        gathering = self.group.gathering(part, self.in_widths, self.place)
        if not self.overlap:
            arrived = list(gathering.arriving())
        z = linear(x, weight, bias)
        places = {peer: place for place, peer in enumerate(self.group.peers)}
        blocks = x.new_empty(len(places), self.ghosts, rows)
        for peer in gathering.arriving() if self.overlap else arrived:
            theirs = gathering.buffer[self._features[peer]]
            torch.mm(theirs[:, rows:].t(), theirs[:, :rows], out=blocks[places[peer]])
        others = blocks.sum(0) if self.is_shared else blocks.view(-1, rows)
        z.addmm_(others.t(), decompressor.t())
        return z, [gathering.buffer, others]

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; those of activations and compressors are summed where they belong."""
        delta, (weight, _, _, decompressor) = call.delta, call.parameters
        whole, others = call.made
        needs_x, _, _, needs_c, needs_d = call.needs
        scattering = None
        if needs_x or needs_c:
            scattering = self._scattered(delta, weight, decompressor, whole, inputs=needs_x)
            scattering.unless(self.overlap)
        own = call.own_gradients(call.x)
        d_decompressor = torch.mm(delta.t(), others.t()) if needs_d else None
        d_x = d_compressor = None
        if scattering is not None:
            summed = scattering.wait()
            d_x = summed[:, : delta.shape[0]].t() if needs_x else None
            d_compressor = summed[:, -self.ghosts :].t() if needs_c else None
        return [d_x, *own, d_compressor, d_decompressor]

    def _scattered(
        self, delta: Tensor, weight: Tensor, decompressor: Tensor, whole: Tensor, *, inputs: bool
    ) -> Any:
        """Return the reduce-scatter of `[C_i^T u_i | y_i u_i^T]`, `u_i = D_ji^T delta_j`.

        Without the first part where no one wants the gradient of `inputs`, as of samples.
        """
        rows = delta.shape[0]
        sent = (whole.shape[0], (rows if inputs else 0) + self.ghosts)
        scattering = self.group.scattering(delta, sent, self.in_widths, self.place)
        u = torch.mm(decompressor.t(), delta.t())
        places = {peer: place * self.ghosts for place, peer in enumerate(self.group.peers)}
        for rank in scattering.order:
            block = scattering.block(rank)
            if rank == self.group.rank:
                if inputs:
                    transposed_into(block[:, :rows], delta, weight)
                block[:, -self.ghosts :].zero_()
            else:
                begin = 0 if self.is_shared else places[rank]
                u_i, theirs = u[begin : begin + self.ghosts], whole[self._features[rank]]
                if inputs:
                    torch.mm(theirs[:, rows:], u_i, out=block[:, :rows])
                torch.mm(theirs[:, :rows], u_i.t(), out=block[:, -self.ghosts :])
            scattering.send(rank)
        return scattering


class LowRankLinear(GhostLinear):
    """The function of a `PhantomLinear`, from the same parameters, computed tensor-parallel.

    Input `(…, in_shard)`, output `(…, out_shard)`. Each rank gathers all activations and all
    compressors, and computes everybody's ghosts itself: (p-1) m (B + k) elements sent per rank in
    each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        settings: As of `GhostLinear`.

    Attributes:
        weight, bias, compressor, decompressor: As of `PhantomLinear`, whose state it loads.

    Raises:
        StrategyError: What is asked does not fit the widths.
    """

    def __init__(
        self, in_features: int, out_features: int, **settings: Unpack[GhostSettings]
    ) -> None:
        super().__init__(in_features, out_features, **settings)
        ghosts, variant = self.ghosts, self.variant
        self._operator = LowRankOperator(
            ghosts=ghosts,
            is_shared=variant == "shared",
            in_widths=self.in_widths,
            **self.operator_kwargs(ghosts=ghosts, variant=variant),
        )

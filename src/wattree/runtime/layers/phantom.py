"""Phantom linear layers: each rank stores its own block and exchanges ghosts.

After S. K. Seal et al., arXiv 2508.00960 (2025), of which the abstract was read; operators and
initial values are derived in docs/design/0021-phantom-layers.md, whose letters are used here.
Row-major: x `(B, m)`, ghosts transposed `(k, B)`, so that gathering stacks them without a copy and
one product decompresses all.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from wattree.runtime.layers.ghosts import GhostLinear, GhostSettings
from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters, linear
from wattree.runtime.transfers import Pending


class PhantomOperator(LayerOperator):
    """x `(B, m)` → z `(B, m')`; parameters L, b, C, D as of `PhantomLinear`.

    Args:
        ghosts: k.
        is_shared: Whether one decompressor serves all sources.
        regather: Whether ghosts are exchanged again in the backward pass.
        others: As of `LayerOperator`.
    """

    def __init__(self, *, ghosts: int, is_shared: bool, regather: bool, **others: Any) -> None:
        super().__init__(**others)
        self.ghosts, self.is_shared, self.regather = ghosts, is_shared, regather

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z, and the peers' ghosts, or the own ones `C x` to send again."""
        weight, bias, compressor, decompressor = parameters
        ghosts = torch.mm(compressor, x.t())
        pending = self._start_gather(ghosts)
        # The local product runs while ghosts are on their way.
        z = linear(x, weight, bias)
        others = self._received(pending, ghosts)
        z.addmm_(others.t(), decompressor.t())
        return z, [ghosts if self.regather else others]

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; the reduce-scatter overlaps the matmuls that need no peer."""
        delta, x = call.delta, call.x
        weight, _, compressor, decompressor = call.parameters
        needs_x, _, _, needs_c, needs_d = call.needs
        others = call.made[0]
        gathering = scattering = own = None
        if self.regather and needs_d:
            gathering = self._start_gather(others)
        if needs_x or needs_c:
            scattering, own = self._start_scatter(decompressor, delta)
        own_gradients = call.own_gradients(x)
        d_x = torch.mm(delta, weight) if needs_x else None
        if gathering is not None:
            others = self._received(gathering, others)
        d_decompressor = torch.mm(delta.t(), others.t()) if needs_d else None
        d_compressor = None
        if scattering is not None:
            h = scattering.wait() if own is None else scattering.wait().sub_(own)
            d_compressor = torch.mm(h, x) if needs_c else None
            if d_x is not None:
                d_x.addmm_(h.t(), compressor)
        return [d_x, *own_gradients, d_compressor, d_decompressor]

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


class PhantomLinear(GhostLinear):
    """A linear layer whose off-diagonal blocks have rank k: `W_jj = L_j`, `W_ji = D_ji C_i`.

    Input `(…, in_shard)`, output `(…, out_shard)`. Forward all-gathers k ghosts of each rank and
    backward reduce-scatters their gradients: (p-1) k B elements sent per rank in each direction
    (shared: an all-reduce of k B). One rank, or no ghosts, needs no communication: a plain linear
    layer, or the block-diagonal one.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        regather: Exchange ghosts again in the backward pass instead of keeping them.
        settings: As of `GhostLinear`.

    Attributes:
        weight: `L_j`, `(out_shard, in_shard)`.
        bias: `b_j`, `(out_shard,)`, or None.
        compressor: `C_j`, `(ghosts, in_shard)`; None without ghosts or peers.
        decompressor: `D_j`: `(out_shard, (size - 1) ghosts)` with the blocks in the order of
            `group.peers`, or `(out_shard, ghosts)` if shared; None without ghosts or peers.

    Raises:
        StrategyError: What is asked does not fit the widths.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        regather: bool = False,
        **settings: Unpack[GhostSettings],
    ) -> None:
        super().__init__(in_features, out_features, **settings)
        self.regather = regather
        ghosts, variant = self.ghosts, self.variant
        self._operator = PhantomOperator(
            ghosts=ghosts,
            is_shared=variant == "shared",
            regather=regather,
            **self.operator_kwargs(ghosts=ghosts, variant=variant, regather=regather),
        )

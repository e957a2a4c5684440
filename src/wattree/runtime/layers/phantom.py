"""Phantom linear layers: each rank stores its own block and exchanges ghosts.

After S. K. Seal et al., arXiv 2508.00960 (2025), of which the abstract was read; operators and
initial values are derived in docs/design/0021-phantom-layers.md, whose letters are used here.
"""

from __future__ import annotations

from typing import Unpack

from wattree.runtime.layers.ghosts import GhostLinear, GhostSettings
from wattree.runtime.layers.phantom_operator import PhantomOperator


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

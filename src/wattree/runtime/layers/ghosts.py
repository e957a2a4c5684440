"""Common parts of layers with ghosts: parameters and their initial values.

Letters as in docs/design/0021-phantom-layers.md.
"""

from __future__ import annotations

from typing import Required, Unpack

import torch
from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.layers.initialize import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.sharded import LayerSettings, ShardedLinear
from wattree.runtime.shards import shard_slices

#: `pair`: a decompressor for each pair of ranks; `shared`: one for the sum of the others' ghosts.
VARIANTS = ("pair", "shared")


class GhostSettings(LayerSettings, total=False):
    """Keyword arguments of every layer with ghosts, described in `GhostLinear`."""

    ghosts: Required[int]
    variant: str


class GhostLinear(ShardedLinear):
    """Base of layers whose weight has blocks `W_jj = L_j`, and `W_ji` of rank k.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        ghosts: Ghost neurons of each rank, k; 0 up to the smallest input shard.
        variant: `pair` (`W_ji = D_ji C_i`) or `shared` (`W_ji = D_j C_i`).
        settings: As of `ShardedLinear`.

    Attributes:
        weight, bias, compressor, decompressor: As of `PhantomLinear`.
        has_ghosts: Whether there are any, and peers to send them to.

    Raises:
        StrategyError: What is asked does not fit the widths.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        ghosts: int,
        variant: str = "pair",
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__(in_features, out_features, **settings)
        self.ghosts, self.variant = ghosts, variant
        self._check_ghosts()
        self.has_ghosts = ghosts > 0 and self.group.size > 1
        sources = self.group.size - 1 if variant == "pair" else 1
        for name, shape in (
            ("compressor", (ghosts, self.in_shard)),
            ("decompressor", (self.out_shard, sources * ghosts)),
        ):
            made = nn.Parameter(self.weight.new_empty(shape)) if self.has_ghosts else None
            self.register_parameter(name, made)
        self.reset_parameters()

    @property
    def communicates(self) -> bool:
        """Return whether there are ghosts to exchange."""
        return self.has_ghosts

    def _operands(self) -> tuple[Tensor | None, ...]:
        return self.weight, self.bias, self.compressor, self.decompressor

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial values that keep the variance of a dense layer.

        Args:
            gain: v of Var(W) = v / in_features; of `nn.Linear` by default, 1 or 2 for the
                initializations of Glorot and He.
        """
        if self.weight.is_meta:
            return
        n, k = self.in_features, self.ghosts
        stream = rank_generator(self.group, self.weight.device)
        # Without ghosts the rows of a block-diagonal layer have no more inputs than their block.
        uniform_(self.weight, gain / (n if self.ghosts else self.in_shard), stream)
        self._start_bias(stream)
        if not self.has_ghosts:
            return
        uniform_(self.compressor, 1.0 / self.in_shard, stream)
        if self.variant == "shared":
            # One block serves sources of all widths: the variance for their mean.
            uniform_(self.decompressor, gain / (self.group.size * k), stream)
            return
        for peer, block in zip(self.group.peers, self.decompressor.split(k, dim=1), strict=True):
            uniform_(block, gain * self.in_widths[peer] / (n * k), stream)

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        with torch.no_grad():
            rows = self._dense_rows()
            return self.group.all_gather(rows, self.out_widths, self.name).wait()

    def _dense_rows(self) -> Tensor:
        shards = shard_slices(self.in_widths)
        rows = self.weight.new_zeros(self.out_shard, self.in_features)
        rows[:, shards[self.group.rank]] = self.weight
        if not self.has_ghosts:
            return rows
        mine = self.compressor.t().contiguous()
        compressors = self.group.all_gather(mine, self.in_widths, self.name).wait().t()
        for place, peer in enumerate(self.group.peers):
            begin = 0 if self.variant == "shared" else place * self.ghosts
            block = self.decompressor[:, begin : begin + self.ghosts]
            rows[:, shards[peer]] = block @ compressors[:, shards[peer]]
        return rows

    def _check_ghosts(self) -> None:
        misfits = {}
        if self.variant not in VARIANTS:
            misfits["variant"] = f"'{self.variant}' is none of {', '.join(VARIANTS)}"
        smallest = min(self.in_widths)
        if not 0 <= self.ghosts <= smallest:
            misfits["ghosts"] = (
                f"{self.ghosts} ghosts of shards as small as {smallest} "
                f"({self.in_features} over {self.group.size} ranks); use 0 to {smallest}"
            )
        if misfits:
            raise StrategyError({f"{self.name}.{key}": why for key, why in misfits.items()})

    def extra_repr(self) -> str:
        """Return the text that `print` shows."""
        return f"{super().extra_repr()}, ghosts={self.ghosts}, variant={self.variant}"

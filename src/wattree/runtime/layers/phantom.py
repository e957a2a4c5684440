"""Phantom linear layers: each rank keeps its own block and exchanges ghosts.

The operators are those of S. K. Seal et al., arXiv 2508.00960 (2025), as rederived in
docs/design/0021-phantom-layers.md, in the letters used there: rank j of p holds rows of width m_j.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.errors import StrategyError
from wattree.runtime.layers.initialise import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.phantom_function import ACTIVATIONS, PhantomSpec, phantom
from wattree.runtime.layers.sharded import ShardedLinear
from wattree.runtime.shards import shard_offsets

__all__ = ["VARIANTS", "PhantomLinear"]

#: `pair`: a decompressor for each pair of ranks; `shared`: one for the sum of the others' ghosts.
VARIANTS = ("pair", "shared")


class PhantomLinear(ShardedLinear):
    """A linear layer whose off-diagonal blocks have rank k: `W_jj = L_j`, `W_ji = D_ji C_i`.

    Input `(…, in_shard)`, output `(…, out_shard)`. One rank, or no ghosts, needs no communication:
    a plain linear layer, or the block-diagonal one.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        ghosts: Ghost neurons of each rank, k; 0 up to the smallest input shard.
        variant: `pair` (`W_ji = D_ji C_i`) or `shared` (`W_ji = D_j C_i`).
        bias: Whether to add `b_j`.
        ghost_bias: Whether ghosts have a bias.
        ghost_activation: `relu`, `gelu` or `tanh` of ghosts; None for linear ghosts, the only ones
            with a dense equivalent.
        regather: Exchange ghosts again in the backward pass instead of keeping them.
        overlap: Whether communication goes on during local products.
        device: Of the parameters.
        dtype: Of the parameters.
        name: What messages call the layer.

    Attributes:
        weight: `L_j`, `(out_shard, in_shard)`.
        bias: `b_j`, `(out_shard,)`, or None.
        compressor: `C_j`, `(ghosts, in_shard)`; None without ghosts or peers.
        ghost_bias: `(ghosts,)`, or None.
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
        group: Any = None,
        ghosts: int,
        variant: str = "pair",
        bias: bool = True,
        ghost_bias: bool = False,
        ghost_activation: str | None = None,
        regather: bool = False,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(in_features, out_features, group=group, overlap=overlap, name=name)
        self.ghosts, self.variant = ghosts, variant
        self.ghost_activation, self.regather = ghost_activation, regather
        self._check_choices()
        made = {"device": device, "dtype": dtype}
        self.has_ghosts = ghosts > 0 and self.group.size > 1
        self.weight = nn.Parameter(torch.empty(self.out_shard, self.in_shard, **made))
        self.bias = nn.Parameter(torch.empty(self.out_shard, **made)) if bias else None
        sources = self.group.size - 1 if variant == "pair" else 1
        for key, shape, is_there in (
            ("compressor", (ghosts, self.in_shard), self.has_ghosts),
            ("ghost_bias", (ghosts,), self.has_ghosts and ghost_bias),
            ("decompressor", (self.out_shard, sources * ghosts), self.has_ghosts),
        ):
            made_one = nn.Parameter(torch.empty(shape, **made)) if is_there else None
            self.register_parameter(key, made_one)
        self.spec = PhantomSpec(
            group=self.group,
            ghosts=ghosts,
            is_shared=variant == "shared",
            activation=ghost_activation,
            regather=regather,
            overlap=overlap,
            place=self.name,
        )
        self.reset_parameters()

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial values that keep the variance of a dense layer.

        Args:
            gain: v of Var(W) = v / in_features; of `nn.Linear` by default, 1 or 2 for the
                initialisations of Glorot and He.
        """
        if self.weight.is_meta:
            return
        n, k, size = self.in_features, self.ghosts, self.group.size
        # One rank draws exactly what nn.Linear would.
        stream = rank_generator(self.group.rank, self.weight.device) if size > 1 else None
        uniform_(self.weight, gain / n, stream)
        if self.bias is not None:
            uniform_(self.bias, LINEAR_GAIN / n, stream)
        if not self.has_ghosts:
            return
        uniform_(self.compressor, 1.0 / self.in_shard, stream)
        if self.ghost_bias is not None:
            nn.init.zeros_(self.ghost_bias)
        if self.variant == "shared":
            # One block serves sources of all widths: the variance of their mean.
            uniform_(self.decompressor, gain * (n / size) / (n * k), stream)
            return
        for peer, block in zip(self.group.peers, self.decompressor.split(k, dim=1), strict=True):
            uniform_(block, gain * self.in_widths[peer] / (n * k), stream)

    def facts(self) -> dict[str, Any]:
        """Return what all ranks of the group have to agree on."""
        return super().facts() | {
            "ghosts": self.ghosts,
            "variant": self.variant,
            "ghost_activation": self.ghost_activation,
            "ghost_bias": self.ghost_bias is not None,
            "regather": self.regather,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)` of `(…, in_shard)`."""
        if not self.has_ghosts:
            return functional.linear(x, self.weight, self.bias)
        self.check_input(x, self.in_shard)
        self.agreed(x)
        return phantom(
            self.spec,
            x,
            self.weight,
            self.bias,
            self.compressor,
            self.ghost_bias,
            self.decompressor,
        )

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.

        Raises:
            StrategyError: Ghosts have an activation or a bias: no linear layer is equivalent.
        """
        if self.has_ghosts and (self.ghost_activation or self.ghost_bias is not None):
            raise StrategyError(
                {self.name: "ghosts with an activation or a bias have no dense equivalent"}
            )
        with torch.no_grad():
            rows = self._dense_rows()
            return self.group.all_gather(rows, self.out_widths, self.name).wait()

    def _dense_rows(self) -> Tensor:
        rank, offsets = self.group.rank, shard_offsets(self.in_widths)
        rows = self.weight.new_zeros(self.out_shard, self.in_features)
        rows[:, offsets[rank] : offsets[rank + 1]] = self.weight
        if not self.has_ghosts:
            return rows
        mine = self.compressor.t().contiguous()
        compressors = self.group.all_gather(mine, self.in_widths, self.name).wait().t()
        for place, peer in enumerate(self.group.peers):
            begin = 0 if self.variant == "shared" else place * self.ghosts
            columns = slice(offsets[peer], offsets[peer + 1])
            block = self.decompressor[:, begin : begin + self.ghosts]
            rows[:, columns] = block @ compressors[:, columns]
        return rows

    def _check_choices(self) -> None:
        misfits = {}
        if self.variant not in VARIANTS:
            misfits["variant"] = f"'{self.variant}' is none of {', '.join(VARIANTS)}"
        if self.ghost_activation is not None and self.ghost_activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            misfits["ghost_activation"] = f"'{self.ghost_activation}' is none of {known}"
        smallest = min(self.in_widths)
        if not 0 <= self.ghosts <= smallest:
            misfits["ghosts"] = (
                f"{self.ghosts} ghosts of shards as small as {smallest} "
                f"({self.in_features} over {self.group.size} ranks); use 0 to {smallest}"
            )
        if misfits:
            raise StrategyError({f"{self.name}.{key}": why for key, why in misfits.items()})

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        return f"{super().extra_repr()}, ghosts={self.ghosts}, variant={self.variant}"

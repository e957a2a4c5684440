"""Linear layers as a strategy has them, with the weights that a model of that seed starts from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from wattree.runtime import layers
from wattree.runtime.group import Group
from wattree.runtime.models.start import normal_block
from wattree.runtime.recipe import Recipe
from wattree.runtime.shards import shard_offsets, shard_widths

__all__ = ["Layout", "Linears"]


class Layout(StrEnum):
    """Where the features of a tensor lie in the ranks of a replica."""

    WHOLE = "whole"  # all of them on every rank
    FEATURES = "features"  # a shard on each


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """Makes linear layers of a model for one rank.

    Attributes:
        recipe: How the ranks of a replica share the model.
        group: These ranks.
        seed: Of the weights.
        device: Where they are made.
        dtype: Of the parameters.
    """

    recipe: Recipe
    group: Group
    seed: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    def plain(self, rows: int, columns: int, *, name: str, std: float, bias: bool) -> nn.Module:
        """Return a layer that every rank has whole. `rows` inputs, `columns` outputs."""
        layer = nn.Linear(rows, columns, bias=bias, device=self.device, dtype=self.dtype)
        return self._started(layer, name, std, rows=(0, columns), columns=(0, rows))

    def gathered(self, rows: int, columns: int, *, name: str, std: float, bias: bool) -> nn.Module:
        """Return a layer split by outputs, whose sharded input is gathered."""
        layer = layers.GatherRowsLinear(
            rows, columns, bias=bias, overlap=self.recipe.overlap, name=name, **self._common
        )
        return self._started(layer, name, std, rows=self._shard(columns), columns=(0, rows))

    def column(
        self,
        rows: int,
        columns: int,
        *,
        name: str,
        std: float,
        bias: bool,
        sequence_parallel: bool = False,
    ) -> nn.Module:
        """Return a layer split by outputs, whose input every rank has."""
        layer = layers.ColumnParallelLinear(
            rows,
            columns,
            bias=bias,
            sequence_parallel=sequence_parallel,
            overlap=self.recipe.overlap,
            name=name,
            **self._common,
        )
        return self._started(layer, name, std, rows=self._shard(columns), columns=(0, rows))

    def row(
        self,
        rows: int,
        columns: int,
        *,
        name: str,
        std: float,
        bias: bool,
        sequence_parallel: bool = False,
    ) -> nn.Module:
        """Return a layer split by inputs, whose output every rank gets."""
        layer = layers.RowParallelLinear(
            rows,
            columns,
            bias=bias,
            sequence_parallel=sequence_parallel,
            overlap=self.recipe.overlap,
            name=name,
            **self._common,
        )
        return self._started(layer, name, std, rows=(0, columns), columns=self._shard(rows))

    def phantom(self, rows: int, columns: int, *, name: str, std: float, bias: bool) -> nn.Module:
        """Return a phantom layer: its own block whole, the others through ghosts.

        Own blocks are those of the dense layer of the same seed. Entries of the products of
        decompressors and compressors have the same variance as its entries.
        """
        recipe, group = self.recipe, self.group
        layer = layers.PhantomLinear(
            rows,
            columns,
            ghosts=recipe.ghosts,
            variant=recipe.variant,
            regather=recipe.regather,
            overlap=recipe.overlap,
            bias=bias,
            name=name,
            **self._common,
        )
        self._started(layer, name, std, rows=self._shard(columns), columns=self._shard(rows))
        if layer.has_ghosts:
            own, k = shard_widths(rows, group.size), recipe.ghosts
            # With ghosts of unit variance per unit input each product entry has std**2.
            self._drawn(
                layer.compressor, f"{name}.compressor.{group.rank}", own[group.rank] ** -0.5
            )
            mean = rows / group.size
            sources = (
                dict.fromkeys(["all"], mean)
                if recipe.variant == "shared"
                else {str(peer): own[peer] for peer in group.peers}
            )
            for source, block in zip(sources, layer.decompressor.split(k, dim=1), strict=True):
                drawn = f"{name}.decompressor.{group.rank}.{source}"
                self._drawn(block, drawn, std * (sources[source] / k) ** 0.5)
        return layer

    @property
    def _common(self) -> dict[str, Any]:
        return {"group": self.group, "device": self.device, "dtype": self.dtype}

    def _shard(self, width: int) -> tuple[int, int]:
        offsets = shard_offsets(shard_widths(width, self.group.size))
        return offsets[self.group.rank], offsets[self.group.rank + 1]

    def _started(
        self,
        layer: Any,
        name: str,
        std: float,
        *,
        rows: tuple[int, int],
        columns: tuple[int, int],
    ) -> Any:
        weight = normal_block(seed=self.seed, name=name, rows=rows, columns=columns, std=std)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.zero_()
        return layer

    def _drawn(self, parameter: Tensor, name: str, std: float) -> None:
        rows, columns = parameter.shape
        block = normal_block(
            seed=self.seed, name=name, rows=(0, rows), columns=(0, columns), std=std
        )
        with torch.no_grad():
            parameter.copy_(block)

"""Linear layers as a strategy has them, with the weights that a model of that seed starts from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from wattree.runtime import layers
from wattree.runtime.group import Group
from wattree.runtime.parallel.context import ContextShare
from wattree.runtime.parallel.exchange import ExpertShare
from wattree.runtime.recipe import Recipe, ReplicaKind
from wattree.runtime.shards import shard_offsets, shard_widths

#: Rows and columns of a tile.
_TILE = 512


class FeatureLayout(StrEnum):
    """The placement of a tensor's features on the ranks of a replica."""

    WHOLE = "whole"  # all of them on every rank
    FEATURES = "features"  # a shard on each
    VOCABULARY = "vocabulary"  # logits, a shard on each, whose loss is taken without the others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The initial weights of a linear layer, independent of how it is split.

    Attributes:
        name: Of the layer; its numbers follow from it and the seed.
        std: Standard deviation.
        bias: Whether there is one; it starts from zero.
        parts: Outputs of the layers that it is in one, such as gate and up, of each of which a
            rank has a shard; empty for one layer.
    """

    name: str
    std: float
    bias: bool
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """Makes linear layers of a model for one rank, of `inputs` and `outputs` features.

    Attributes:
        recipe: How the ranks of a replica share the model.
        device: Where they are made.
        sequence_parallel: What is between the layers is cut by position, the second dim.
        context: Which positions this rank has.
        experts: Which experts it has.
    """

    recipe: Recipe
    group: Group
    seed: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    sequence_parallel: bool = False
    context: ContextShare = field(default_factory=ContextShare)
    experts: ExpertShare = field(default_factory=ExpertShare)

    def plain(self, inputs: int, outputs: int, weights: Weights) -> nn.Module:
        """Return a layer that every rank has whole."""
        layer = nn.Linear(inputs, outputs, bias=weights.bias, device=self.device, dtype=self.dtype)
        return self._started(layer, weights, rows=[(0, outputs)], columns=(0, inputs))

    def gathered(self, inputs: int, outputs: int, weights: Weights) -> nn.Module:
        """Return a layer split by outputs, whose sharded input is gathered."""
        layer = layers.GatherRowsLinear(inputs, outputs, **self._settings(weights))
        rows = self._shards(outputs, weights)
        return self._started(layer, weights, rows=rows, columns=(0, inputs))

    def column(
        self, inputs: int, outputs: int, weights: Weights, *, last: bool = False
    ) -> nn.Module:
        """Return a layer split by outputs, whose input is replicated.

        Cut by position, the input is gathered once more in backward, as Megatron-LM does, and so
        simulations of it; that of the `last` layer stays, as its backward comes at once.
        """
        layer = layers.ColumnParallelLinear(
            inputs,
            outputs,
            sequence_parallel=self.sequence_parallel,
            sequence_dim=1,
            regather=self.sequence_parallel and not last,
            **self._settings(weights),
        )
        rows = self._shards(outputs, weights)
        return self._started(layer, weights, rows=rows, columns=(0, inputs))

    def row(self, inputs: int, outputs: int, weights: Weights) -> nn.Module:
        """Return a layer split by inputs, whose output is replicated."""
        layer = layers.RowParallelLinear(
            inputs,
            outputs,
            sequence_parallel=self.sequence_parallel,
            sequence_dim=1,
            **self._settings(weights),
        )
        columns = self.shard(inputs)
        return self._started(layer, weights, rows=[(0, outputs)], columns=columns)

    def phantom(self, inputs: int, outputs: int, weights: Weights) -> nn.Module:
        """Return a phantom layer: its own block whole, the others through ghosts.

        Of the control `low_rank` it computes the same from the activations of all ranks.

        Own blocks are those of the dense layer of the same seed. Entries of the products of
        decompressors and compressors have the same variance as its entries.
        """
        recipe = self.recipe
        phantoms = recipe.options.phantoms
        layer_kwargs = {
            "ghosts": recipe.ghosts,
            "variant": phantoms.variant,
            **self._settings(weights),
        }
        layer: layers.PhantomLinear | layers.LowRankLinear
        if recipe.kind is ReplicaKind.LOW_RANK:
            layer = layers.LowRankLinear(inputs, outputs, **layer_kwargs)
        else:
            again = phantoms.regather
            layer = layers.PhantomLinear(inputs, outputs, regather=again, **layer_kwargs)
        rows = self._shards(outputs, weights)
        self._started(layer, weights, rows=rows, columns=self.shard(inputs))
        if layer.has_ghosts:
            self._start_ghosts(layer, inputs, weights)
        return layer

    def shard(self, width: int) -> tuple[int, int]:
        """Return where this rank's shard of a width begins, and where the next one does."""
        offsets = shard_offsets(shard_widths(width, self.group.size))
        return offsets[self.group.rank], offsets[self.group.rank + 1]

    def draw(
        self, parameter: Tensor, name: str, std: float, *, rows: tuple[int, int] | None = None
    ) -> None:
        """Fill a matrix with normal numbers, which follow from a name and the seed.

        Args:
            std: Standard deviation.
            rows: Which ones of a whole matrix it has; None for all.
        """
        shape = parameter.shape
        block = normal_block(
            seed=self.seed, name=name, rows=rows or (0, shape[0]), columns=(0, shape[1]), std=std
        )
        with torch.no_grad():
            parameter.copy_(block)

    def _settings(self, weights: Weights) -> dict[str, Any]:
        return {
            "group": self.group,
            "bias": weights.bias,
            "overlap": self.recipe.overlap,
            "device": self.device,
            "dtype": self.dtype,
            "name": weights.name,
        }

    def _shards(self, outputs: int, weights: Weights) -> list[tuple[int, int]]:
        """Return the rows of the whole matrix that this rank has, part by part."""
        found, base = [], 0
        for part in weights.parts or (outputs,):
            begin, end = self.shard(part)
            found.append((base + begin, base + end))
            base += part
        return found

    def _started(
        self,
        layer: Any,
        weights: Weights,
        *,
        rows: list[tuple[int, int]],
        columns: tuple[int, int],
    ) -> Any:
        blocks = [
            normal_block(
                seed=self.seed, name=weights.name, rows=each, columns=columns, std=weights.std
            )
            for each in rows
        ]
        with torch.no_grad():
            layer.weight.copy_(torch.cat(blocks))
            if layer.bias is not None:
                layer.bias.zero_()
        return layer

    def _start_ghosts(self, layer: Any, inputs: int, weights: Weights) -> None:
        group, k = self.group, layer.ghosts
        widths = shard_widths(inputs, group.size)
        # With ghosts of unit variance per unit input each product entry has std**2.
        self.draw(
            layer.compressor, f"{weights.name}.compressor.{group.rank}", widths[group.rank] ** -0.5
        )
        sources = {str(peer): float(widths[peer]) for peer in group.peers}
        if layer.variant == "shared":  # one for sources of all widths: that of their mean
            sources = {"all": inputs / group.size}
        blocks = layer.decompressor.split(k, dim=1)
        for (source, width), block in zip(sources.items(), blocks, strict=True):
            name = f"{weights.name}.decompressor.{group.rank}.{source}"
            self.draw(block, name, weights.std * (width / k) ** 0.5)


def normal_block(
    *, seed: int, name: str, rows: tuple[int, int], columns: tuple[int, int], std: float
) -> Tensor:
    """Return a block of a matrix of normal numbers, `(rows, columns)`, float32 on the CPU.

    They are drawn in tiles, each from a seed of its own: ranks that hold the same entry draw the
    same number, however layers are spread.

    Args:
        rows, columns: First, and the one after the last, of the whole matrix.
        std: Standard deviation.
    """
    block = torch.empty(rows[1] - rows[0], columns[1] - columns[0])
    for i in range(rows[0] // _TILE, -(-rows[1] // _TILE)):
        for j in range(columns[0] // _TILE, -(-columns[1] // _TILE)):
            top, left = i * _TILE, j * _TILE
            r = slice(max(rows[0], top), min(rows[1], top + _TILE))
            generator = _generator(f"{seed}/{name}/{i}/{j}")
            tile = torch.randn(r.stop - top, _TILE, generator=generator)
            c = slice(max(columns[0], left), min(columns[1], left + _TILE))
            block[
                r.start - rows[0] : r.stop - rows[0], c.start - columns[0] : c.stop - columns[0]
            ] = tile[r.start - top : r.stop - top, c.start - left : c.stop - left]
    return block.mul_(std)


def _generator(text: str) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(number)

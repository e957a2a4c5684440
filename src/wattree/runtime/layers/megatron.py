"""Megatron's pair: a layer cut by columns, whose output feeds one cut by rows.

M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (2019); with sequence parallelism,
V. Korthikanti et al., "Reducing activation recomputation", arXiv 2205.05198 (2022).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from wattree.runtime.layers.megatron_operators import ColumnOperator, RowOperator
from wattree.runtime.layers.operator import run
from wattree.runtime.layers.sequence_operators import SequenceColumnOperator, SequenceRowOperator
from wattree.runtime.layers.sharded import LayerSettings, ShardedLinear


class _MegatronLinear(ShardedLinear):
    """Base of the pair, whose activations between its layers may be cut along the sequence."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool,
        sequence_dim: int,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__(in_features, out_features, **settings)
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)`; a column layer's whole sequence, a row layer's own part."""
        if not (self.communicates and self.sequence_parallel):
            return super().forward(x)
        first = x.movedim(self.sequence_dim, 0)
        rest = first.shape[1:-1]
        rows = first.reshape(first.shape[0], -1, x.shape[-1])
        z = run(self._operator, rows, self.weight, self.bias)
        return z.view(z.shape[0], *rest, z.shape[-1]).movedim(0, self.sequence_dim)


class ColumnParallelLinear(_MegatronLinear):
    """Input whole, output cut: `(…, in_features)`, the same on all ranks, to `(…, out_shard)`.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        sequence_parallel: The input is cut along `sequence_dim` and gathered.
        sequence_dim: Dim of the input that is cut; the layer is quickest with 0.
        regather: With `sequence_parallel`, keep the own part of the input for backward and gather
            it once more, as V. Korthikanti et al. do, instead of keeping the whole.
        settings: As of `ShardedLinear`.

    Attributes:
        weight: Own rows `(out_shard, in_features)`.
        bias: `(out_shard,)`, or None.
    """

    cuts = ("out",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        regather: bool = False,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            sequence_parallel=sequence_parallel,
            sequence_dim=sequence_dim,
            **settings,
        )
        shared = self.operator_kwargs()
        self._operator = (
            SequenceColumnOperator(regather=regather, **shared)
            if sequence_parallel
            else ColumnOperator(**shared)
        )
        self.reset_parameters()


class RowParallelLinear(_MegatronLinear):
    """Input cut, output whole: `(…, in_shard)` to `(…, out_features)`, the same on all ranks.

    The bias is on every rank, begins as zeros, and its gradient is whole on every rank, so that
    copies stay equal.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        sequence_parallel: The output is reduce-scattered along `sequence_dim`; the first ranks
            get one more where its length does not divide.
        sequence_dim: Dim of the output that is cut; the layer is quickest with 0.
        settings: As of `ShardedLinear`.

    Attributes:
        weight: Own columns `(out_features, in_shard)`.
        bias: `(out_features,)`, or None.
    """

    cuts = ("in",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            sequence_parallel=sequence_parallel,
            sequence_dim=sequence_dim,
            **settings,
        )
        kind = SequenceRowOperator if sequence_parallel else RowOperator
        self._operator = kind(**self.operator_kwargs())
        self.reset_parameters()

    def _start_bias(self, stream: torch.Generator | None) -> None:
        del stream
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        columns = self.weight.detach().t().contiguous()
        return self.group.all_gather(columns, self.in_widths, self.name).wait().t().contiguous()

    def dense_bias(self) -> Tensor | None:
        """Return the bias `(out_features,)`; that of this rank."""
        return None if self.bias is None else self.bias.detach()

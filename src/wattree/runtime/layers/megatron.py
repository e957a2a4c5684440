"""Megatron's pair: a layer cut by columns, whose output feeds one cut by rows.

M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (2019); with sequence parallelism,
V. Korthikanti et al., "Reducing activation recomputation", arXiv 2205.05198 (2022).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.runtime.layers.initialise import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.megatron_operators import ColumnOperator, RowOperator
from wattree.runtime.layers.operator import Operator, run
from wattree.runtime.layers.sequence_operators import SequenceColumnOperator, SequenceRowOperator
from wattree.runtime.layers.sharded import ShardedLinear, rows_of

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


class ColumnParallelLinear(ShardedLinear):
    """Input whole, output cut: `(…, in_features)`, the same on all ranks, to `(…, out_shard)`.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        bias: Whether to add one.
        sequence_parallel: The input is cut along `sequence_dim` and gathered.
        sequence_dim: Dim of the input that is cut; the layer is quickest with 0.
        regather: With `sequence_parallel`, keep the own part of the input for backward and gather
            it once more, as V. Korthikanti et al. do, instead of keeping the whole.
        overlap: Whether communication goes on during local products.
        device: Of the parameters.
        dtype: Of the parameters.
        name: What messages call the layer.

    Attributes:
        weight: Own rows `(out_shard, in_features)`.
        bias: `(out_shard,)`, or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Any = None,
        bias: bool = True,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        regather: bool = False,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(
            in_features, out_features, group=group, overlap=overlap, name=name, cuts=("out",)
        )
        made = {"device": device, "dtype": dtype}
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim
        self.weight = nn.Parameter(torch.empty(self.out_shard, in_features, **made))
        self.bias = nn.Parameter(torch.empty(self.out_shard, **made)) if bias else None
        told = self.told(in_features, bias=bias)
        self._operator: Operator = (
            SequenceColumnOperator(regather=regather, **told)
            if sequence_parallel
            else ColumnOperator(**told)
        )
        self.reset_parameters()

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial values of variance `gain / in_features`."""
        if self.weight.is_meta:
            return
        stream = rank_generator(self.group, self.weight.device)
        uniform_(self.weight, gain / self.in_features, stream)
        if self.bias is not None:
            uniform_(self.bias, LINEAR_GAIN / self.in_features, stream)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)`; the whole sequence of it."""
        if self.group.size == 1:
            return functional.linear(x, self.weight, self.bias)
        if self.sequence_parallel:
            return _along(self.sequence_dim, x, self._operator, self.weight, self.bias)
        z = run(self._operator, rows_of(x), self.weight, self.bias)
        return z.view(*x.shape[:-1], self.out_shard)

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        return self.group.all_gather(self.weight.detach(), self.out_widths, self.name).wait()


class RowParallelLinear(ShardedLinear):
    """Input cut, output whole: `(…, in_shard)` to `(…, out_features)`, the same on all ranks.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        bias: Whether to add one. It is on every rank, begins as zeros, and its gradient is whole
            on every rank, so that copies stay equal.
        sequence_parallel: The output is reduce-scattered along `sequence_dim`; the first ranks
            get one more where its length does not divide.
        sequence_dim: Dim of the output that is cut; the layer is quickest with 0.
        overlap: Whether communication goes on during local products.
        device: Of the parameters.
        dtype: Of the parameters.
        name: What messages call the layer.

    Attributes:
        weight: Own columns `(out_features, in_shard)`.
        bias: `(out_features,)`, or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Any = None,
        bias: bool = True,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(
            in_features, out_features, group=group, overlap=overlap, name=name, cuts=("in",)
        )
        made = {"device": device, "dtype": dtype}
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim
        self.weight = nn.Parameter(torch.empty(out_features, self.in_shard, **made))
        self.bias = nn.Parameter(torch.empty(out_features, **made)) if bias else None
        kind = SequenceRowOperator if sequence_parallel else RowOperator
        self._operator: Operator = kind(**self.told(self.in_shard, bias=bias))
        self.reset_parameters()

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial weights of variance `gain / in_features`; the bias is zero."""
        if self.weight.is_meta:
            return
        uniform_(
            self.weight, gain / self.in_features, rank_generator(self.group, self.weight.device)
        )
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_features)`, or this rank's part of the sequence of it."""
        if self.group.size == 1:
            return functional.linear(x, self.weight, self.bias)
        if self.sequence_parallel:
            return _along(self.sequence_dim, x, self._operator, self.weight, self.bias)
        z = run(self._operator, rows_of(x), self.weight, self.bias)
        return z.view(*x.shape[:-1], self.out_features)

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


def _along(dim: int, x: Tensor, operator: Operator, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what an operator makes of `(s, b, features)`, with the sequence where it was."""
    first = x.movedim(dim, 0)
    rest = first.shape[1:-1]
    z = run(operator, first.reshape(first.shape[0], -1, x.shape[-1]), weight, bias)
    return z.view(z.shape[0], *rest, z.shape[-1]).movedim(0, dim)

"""Tensor parallelism by rows: activations are gathered, their gradients reduce-scattered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.runtime.layers.initialise import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.operator import run
from wattree.runtime.layers.rows_operator import GatherRowsOperator
from wattree.runtime.layers.sharded import ShardedLinear, rows_of

__all__ = ["GatherRowsLinear"]


class GatherRowsLinear(ShardedLinear):
    """Rows of a dense layer on each rank; input `(…, in_shard)`, output `(…, out_shard)`.

    Forward all-gathers the input and backward reduce-scatters its gradient: (p-1) m B elements
    sent per rank in each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        bias: Whether to add one.
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
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(in_features, out_features, group=group, overlap=overlap, name=name)
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self.out_shard, in_features, **made))
        self.bias = nn.Parameter(torch.empty(self.out_shard, **made)) if bias else None
        self._operator = GatherRowsOperator(
            in_widths=self.in_widths, **self.told(self.in_shard, bias=bias)
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
        """Return `(…, out_shard)` of `(…, in_shard)`."""
        if self.group.size == 1:
            return functional.linear(x, self.weight, self.bias)
        z = run(self._operator, rows_of(x), self.weight, self.bias)
        return z.view(*x.shape[:-1], self.out_shard)

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        return self.group.all_gather(self.weight.detach(), self.out_widths, self.name).wait()

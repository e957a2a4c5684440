"""Tensor parallelism by rows: activations are gathered, their gradients reduce-scattered."""

from __future__ import annotations

from typing import Unpack

from wattree.runtime.layers.rows_operator import GatherRowsOperator
from wattree.runtime.layers.sharded import LayerSettings, ShardedLinear


class GatherRowsLinear(ShardedLinear):
    """Rows of a dense layer on each rank; input `(…, in_shard)`, output `(…, out_shard)`.

    Forward all-gathers the input and backward reduce-scatters its gradient: (p-1) m B elements
    sent per rank in each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        settings: As of `ShardedLinear`.

    Attributes:
        weight: Own rows `(out_shard, in_features)`.
        bias: `(out_shard,)`, or None.
    """

    reads_whole = True

    def __init__(
        self, in_features: int, out_features: int, **settings: Unpack[LayerSettings]
    ) -> None:
        super().__init__(in_features, out_features, **settings)
        self._operator = GatherRowsOperator(in_widths=self.in_widths, **self.operator_kwargs())
        self.reset_parameters()

"""Tensor parallelism by rows: activations are gathered, their gradients reduce-scattered.

Features first, `(n, B)`, in what is sent: gathering stacks shards without a copy.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from wattree.runtime.layers.operator import (
    BackwardCall,
    LayerOperator,
    Parameters,
    linear,
    transposed_into,
)
from wattree.runtime.layers.sharded import LayerSettings, ShardedLinear
from wattree.runtime.shards import shard_slices


class GatherRowsOperator(LayerOperator):
    """x `(B, m)` → z `(B, m')`; parameters: own rows `(m', n)`, bias.

    Args:
        in_widths: Input shard of every rank.
        others: As of `LayerOperator`.
    """

    saves_input = False

    def __init__(self, *, in_widths: tuple[int, ...], **others: Any) -> None:
        super().__init__(**others)
        self.in_widths = in_widths
        self._columns = shard_slices(in_widths)

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z, and the gathered input `(n, B)`."""
        weight, bias = parameters
        if not self.overlap:
            whole = self.group.all_gather(x.t().contiguous(), self.in_widths, self.place).wait()
            z = torch.mm(whole.t(), weight.t())
            return (z if bias is None else z.add_(bias)), [whole]
        gathering = self.group.gathering(x.t().contiguous(), self.in_widths, self.place)
        # Each product runs while the next shard is on its way.
        own = weight[:, self._columns[self.group.rank]]
        z = linear(x, own, bias)
        for peer in gathering.arriving():
            columns = self._columns[peer]
            z.addmm_(gathering.buffer[columns].t(), weight[:, columns].t())
        return z, [gathering.buffer]

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; the reduce-scatter runs during their matmuls."""
        delta, weight, (whole,) = call.delta, call.parameters[0], call.made
        scattering = None
        if call.needs[0]:
            shape = (weight.shape[1], delta.shape[0])
            scattering = self.group.scattering(delta, shape, self.in_widths, self.place)
            if not self.overlap:  # one product is faster than those with slices of the weight
                transposed_into(scattering.buffer, delta, weight)
            for rank in scattering.order:  # each block is on its way during the next product
                if self.overlap:
                    transposed_into(scattering.block(rank), delta, weight[:, self._columns[rank]])
                scattering.send(rank)
            scattering.unless(self.overlap)
        own = call.own_gradients(whole.t())
        return [scattering.wait().t() if scattering else None, *own]


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

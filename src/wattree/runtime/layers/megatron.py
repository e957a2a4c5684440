"""Megatron's pair: a layer cut by columns, whose output feeds one cut by rows.

M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (2019); with sequence parallelism,
V. Korthikanti et al., "Reducing activation recomputation", arXiv 2205.05198 (2022).
"""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.group import Group
from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters, linear, run
from wattree.runtime.layers.sequence_operators import SequenceColumnOperator, SequenceRowOperator
from wattree.runtime.layers.sharded import LayerSettings, ShardedLinear

#: An all-reduce is cut into at most so many chunks, of at least so many bytes: below, messages
#: cost their latency (the smallest that links were measured with: 256 KiB).
_MOST_CHUNKS, _LEAST_BYTES = 4, 256 * 1024


class ColumnOperator(LayerOperator):
    """x `(B, n)`, the same on all ranks → z `(B, m')`; parameters: rows `(m', n)`, bias."""

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z; nothing is sent."""
        weight, bias = parameters
        return linear(x, weight, bias), []

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; that of x is all-reduced during the matmuls."""
        d_x = None
        if call.needs[0]:
            d_x = _Reduced(self, call.parameters[0].t(), call.delta.t())
        own = call.own_gradients(call.x)
        return [d_x.wait().t() if d_x else None, *own]


class RowOperator(LayerOperator):
    """x `(B, m)` → z `(B, n')`, the same on all ranks; parameters: columns `(n', m)`, bias `(n')`.

    The bias is on every rank and is added once.
    """

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z; it is all-reduced during the matmuls."""
        weight, bias = parameters
        whole = _Reduced(self, weight, x.t()).wait().t()
        # One pass adds the bias and brings features last again.
        z = x.new_empty(whole.shape)
        return (z.copy_(whole) if bias is None else torch.add(whole, bias, out=z)), []

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; nothing is sent."""
        d_x = torch.mm(call.delta, call.parameters[0]) if call.needs[0] else None
        return [d_x, *call.own_gradients(call.x)]


class _Reduced:
    """The sum over ranks of `left @ right`, `(n, m) @ (m, B)`, made and sent in chunks.

    Each chunk of features is sent during the product that makes the next. Chunks of rows would
    read the weight once for each.
    """

    def __init__(self, operator: LayerOperator, left: Tensor, right: Tensor) -> None:
        group: Group = operator.group
        self._whole = left.new_empty(left.shape[0], right.shape[1])
        count = 1
        if operator.overlap:
            whole_bytes = self._whole.nbytes
            count = max(1, min(_MOST_CHUNKS, whole_bytes // _LEAST_BYTES, left.shape[0]))
        self._pending = []
        chunks = zip(left.chunk(count), self._whole.chunk(count), strict=True)
        for part, buffer in chunks:
            torch.mm(part, right, out=buffer)
            self._pending.append(group.all_reduce(buffer, operator.place).unless(operator.overlap))

    def wait(self) -> Tensor:
        for pending in self._pending:
            pending.wait()
        return self._whole


class MegatronLinear(ShardedLinear):
    """Base of the pair, whose activations between its layers may be cut along the sequence.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        sequence_parallel: Activations between the pair are cut along `sequence_dim`, and gathered
            for the column layer; the first ranks get one more where its length does not divide.
        sequence_dim: Dim that is cut; the layer is quickest with 0.
        regather: With `sequence_parallel`, keep the own part of a column layer's input for backward
            and gather it once more, as V. Korthikanti et al. do, instead of keeping the whole.
        settings: As of `ShardedLinear`.

    Raises:
        StrategyError: As of `ShardedLinear`, or there is nothing to gather again.
    """

    #: Without and with sequence parallelism.
    operators: ClassVar[tuple[Any, Any]]

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
        super().__init__(in_features, out_features, **settings)
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim
        if regather and not (sequence_parallel and "out" in self.cuts):
            why = "found True; expected False but for a column layer with sequence_parallel=True"
            raise StrategyError({f"{self.name}.regather": f"{why}: others gather no input"})
        of_operator = {"regather": True} if regather else {}
        operator = self.operators[sequence_parallel]
        self._operator = operator(**of_operator, **self.operator_kwargs())
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)`; a column layer's whole sequence, a row layer's own part."""
        if not (self.communicates and self.sequence_parallel):
            return super().forward(x)
        first = x.movedim(self.sequence_dim, 0)
        rest = first.shape[1:-1]
        rows = first.reshape(first.shape[0], -1, x.shape[-1])
        z = run(self._operator, rows, self.weight, self.bias)
        return z.view(z.shape[0], *rest, z.shape[-1]).movedim(0, self.sequence_dim)


class ColumnParallelLinear(MegatronLinear):
    """Input whole, output cut: `(…, in_features)`, the same on all ranks, to `(…, out_shard)`.

    Attributes:
        weight: Own rows `(out_shard, in_features)`.
        bias: `(out_shard,)`, or None.
    """

    cuts = ("out",)
    operators = (ColumnOperator, SequenceColumnOperator)


class RowParallelLinear(MegatronLinear):
    """Input cut, output whole: `(…, in_shard)` to `(…, out_features)`, the same on all ranks.

    The bias is on every rank, begins as zeros, and its gradient is whole on every rank, so that
    copies stay equal.

    Attributes:
        weight: Own columns `(out_features, in_shard)`.
        bias: `(out_features,)`, or None.
    """

    cuts = ("in",)
    operators = (RowOperator, SequenceRowOperator)

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

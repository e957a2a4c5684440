"""The operators of Megatron's pair, without sequence parallelism: column, then row.

Of two layers and one direction only one communicates, by an all-reduce of `(B, n)`. It is cut into
chunks of features, so that it runs during the product that makes the next chunk. Chunks of rows
would read the weight once for each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wattree.runtime.group import Group
from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters, linear

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
    """The sum over ranks of `left @ right`, `(n, m) @ (m, B)`, made and sent in chunks."""

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

"""The operators of Megatron's pair with sequence parallelism.

Between the pair, activations are cut along the sequence, dim 0: the column layer gathers them, the
row layer reduce-scatters its sums; backward the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wattree.errors import CommunicationError
from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters, linear
from wattree.runtime.shards import shard_slices, shard_widths
from wattree.runtime.transfers import NativeScattering, Scattering

#: Rows of a block from which on blocks are made one by one, and sent while the next is made.
#: Fewer rows read the weight as often for too little arithmetic.
_ROWS_WORTH = 128


class SequenceColumnOperator(LayerOperator):
    """x `(s_i, b, n)` → z `(S, b, m')`; parameters: rows `(m', n)`, bias `(m')`.

    Args:
        regather: Keep the own part of the input for backward and gather it once more, instead of
            keeping the whole.
        others: As of `LayerOperator`.
    """

    same_rows = False

    def __init__(self, *, regather: bool = False, **others: Any) -> None:
        super().__init__(**others)
        self.regather = self.saves_input = regather

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z, and the gathered input `(S b, n)`; matmuls run as it arrives."""
        weight, bias = parameters
        lengths = self.lengths(x)
        gathering = self.group.gathering(x.contiguous(), lengths, self.place)
        z = x.new_empty(sum(lengths), x.shape[1], weight.shape[0])
        parts = list(zip(gathering.buffer.split(lengths), z.split(lengths), strict=True))
        if self.overlap and _is_worth(x):
            for rank in (self.group.rank, *gathering.arriving()):
                linear(_flat(parts[rank][0]), weight, bias, out=_flat(parts[rank][1]))
        else:
            list(gathering.arriving())
            linear(_flat(gathering.buffer), weight, bias, out=_flat(z))
        return z, [] if self.regather else [_flat(gathering.buffer)]

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; the reduce-scatter runs during their matmuls."""
        delta, x, weight = call.delta, call.x, call.parameters[0]
        needs_x, needs_weight, needs_bias = call.needs
        flat = _flat(delta)
        lengths = self._lengths_of[delta.shape[0]]
        gathering = scattering = None
        if self.regather and needs_weight:
            gathering = self.group.gathering(x.contiguous(), lengths, self.place)
        if needs_x:
            scattering = _scattered(self, delta, weight, lengths).unless(self.overlap)
        if gathering is not None:
            list(gathering.arriving())
        d_weight = None
        if needs_weight:
            d_weight = torch.mm(flat.t(), _flat(gathering.buffer) if gathering else call.made[0])
        d_bias = flat.sum(0) if needs_bias else None
        return [scattering.wait() if scattering else None, d_weight, d_bias]

    def lengths(self, x: Tensor) -> list[int]:
        """Return the shard of the sequence on every rank, as they agreed at the first such call."""
        found = [facts["own_rows"][0] for facts in self.agreed(x)]
        self._lengths_of[sum(found)] = found
        return found

    @property
    def _lengths_of(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = self.__dict__.setdefault("_by_total", {})
        return found


class SequenceRowOperator(LayerOperator):
    """x `(S, b, m)` → z `(s_i, b, n')`; parameters: columns `(n', m)`, bias `(n')`."""

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return z; blocks of the sum are sent as they are made."""
        weight, bias = parameters
        z = _scattered(self, x, weight.t(), self.lengths(x.shape[0])).wait()
        return (z if bias is None else z.add_(bias)), []

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients; matmuls run as the gradient of the output arrives.

        The bias is on every rank, and so is its whole gradient.
        """
        delta, x, weight = call.delta, call.x, call.parameters[0]
        needs_x, needs_weight, needs_bias = call.needs
        lengths = self.lengths(x.shape[0])
        gathering = self.group.gathering(delta.contiguous(), lengths, self.place)
        d_x = x.new_empty(x.shape) if needs_x else None
        whole = _flat(gathering.buffer)
        if d_x is not None and self.overlap and _is_worth(delta):
            parts = list(zip(gathering.buffer.split(lengths), d_x.split(lengths), strict=True))
            for rank in (self.group.rank, *gathering.arriving()):
                torch.mm(_flat(parts[rank][0]), weight, out=_flat(parts[rank][1]))
        else:
            list(gathering.arriving())
            if d_x is not None:
                torch.mm(whole, weight, out=_flat(d_x))
        d_weight = torch.mm(whole.t(), _flat(x)) if needs_weight else None
        return [d_x, d_weight, whole.sum(0) if needs_bias else None]

    def lengths(self, whole: int) -> list[int]:
        """Return the shard of the sequence on every rank."""
        if whole < self.group.size:
            raise CommunicationError(
                f"{self.at}: a sequence of {whole} cannot be cut over {self.group.size} ranks"
            )
        return list(shard_widths(whole, self.group.size))


def _scattered(
    operator: LayerOperator, x: Tensor, right: Tensor, lengths: Sequence[int]
) -> Scattering | NativeScattering:
    """Return the reduce-scatter of `x @ right` in flight, cut along the sequence."""
    shape = (*x.shape[:-1], right.shape[1])
    scattering = operator.group.scattering(x, shape, lengths, operator.place)
    parts = shard_slices(lengths)
    if operator.overlap and min(lengths) * x.shape[1] >= _ROWS_WORTH:
        for rank in scattering.order:
            torch.mm(_flat(x[parts[rank]]), right, out=_flat(scattering.block(rank)))
            scattering.send(rank)
        return scattering
    torch.mm(_flat(x), right, out=_flat(scattering.buffer))
    for rank in scattering.order:
        scattering.send(rank)
    return scattering


def _is_worth(x: Tensor) -> bool:
    return x.shape[0] * x.shape[1] >= _ROWS_WORTH


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])

"""All-to-all exchanges of rows, and who shares the experts of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """Which experts of a layer this rank has, and who has the others.

    Attributes:
        size: Ranks that share the experts.
        rank: This one's number among them.
        process_group: They.
        over_tensor: Ranks of tp are among them, each with positions and whole experts of its own.
    """

    size: int = 1
    rank: int = 0
    process_group: Any = None
    over_tensor: bool = False


def exchanged(
    x: Tensor,
    group: Any,
    received: Sequence[int] | None = None,
    sent: Sequence[int] | None = None,
) -> Tensor:
    """Return the rows that each rank has for this one; gradients go back.

    Args:
        x: Rows for each rank, one after another, `(n, …)`.
        group: The ranks.
        received, sent: Rows from, and for, each rank; None where all are equal.
    """
    found: Tensor = _Exchanged.apply(x, group, received, sent)
    return found


class _Exchanged(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        group: Any,
        received: Sequence[int] | None,
        sent: Sequence[int] | None,
    ) -> Tensor:
        ctx.arguments = group, sent, received
        rows = x.shape[0] if received is None else sum(received)
        found = x.new_empty(rows, *x.shape[1:])
        dist.all_to_all_single(found, x.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return exchanged(gradients[0], *ctx.arguments), None, None, None

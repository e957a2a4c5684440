"""Attention where each rank has some of the positions of a sample.

PyTorch's own `context_parallel` knows the attention kernels of accelerators alone (torch 2.13:
flash, memory-efficient, cuDNN), so exchanges are written here, on any backend and in any precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from wattree.runtime.group import one_tensor
from wattree.runtime.parallel.exchange import exchanged
from wattree.runtime.regions import crossed
from wattree.strategy import ULYSSES, ContextExchange, PositionOrder

if TYPE_CHECKING:
    from wattree.runtime.train.session import RankSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShare:
    """Which positions of samples this rank has, and who has the others.

    Attributes:
        size: Ranks that share a sample, the degree of cp.
        rank: This one's number among them.
        exchange: How attention reaches the positions of others.
        order: Which positions a rank has: one of `PositionOrder`.
    """

    size: int = 1
    rank: int = 0
    process_group: Any = None
    exchange: str = ContextExchange.OVERLAPPED.value
    order: str = PositionOrder.CONTIGUOUS.value

    def positions(self, length: int, device: Any, *, rank: int | None = None) -> Tensor:
        """Return the positions that a rank has, of samples of which each has `length`."""
        rank = self.rank if rank is None else rank
        if self.size == 1 or self.order == PositionOrder.CONTIGUOUS:
            return torch.arange(rank * length, (rank + 1) * length, device=device)
        half = length // 2
        late = (2 * self.size - 1 - rank) * half
        parts = [torch.arange(begin, begin + half, device=device) for begin in (rank * half, late)]
        return torch.cat(parts)

    def all_positions(self, length: int, device: Any) -> Tensor:
        """Return the positions of all ranks, rank after rank."""
        found = [self.positions(length, device, rank=rank) for rank in range(self.size)]
        return torch.cat(found)

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's positions of samples, `(batch, sequence, …)`."""
        mine = self.positions(x.shape[1] // self.size, x.device)
        return x.index_select(1, mine)

    def weight(self, count: Tensor) -> Tensor:
        """Return the weight of this rank's mean over `count` items in that over all ranks.

        The mean over ranks of means that are so weighted is the mean over everything.
        """
        total = count.to(torch.float64)
        dist.all_reduce(total, group=self.process_group)
        return count * self.size / total


def context_share(session: RankSession) -> ContextShare:
    """Return which positions of samples a rank has."""
    recipe = session.recipe
    parallelism = recipe.options.parallelism
    if recipe.options.cp == 1:
        return ContextShare()
    is_in_order = parallelism.context == ULYSSES
    order = PositionOrder.CONTIGUOUS if is_in_order else parallelism.context_order
    return ContextShare(
        size=recipe.options.cp,
        rank=recipe.grid.index(session.rank, ("cp",)),
        process_group=session.context_group,
        exchange=parallelism.context,
        order=str(order),
    )


class AttentionCore(nn.Module):
    """Causal attention of `(batch, heads, positions, features)`, positions split over ranks."""

    def __init__(self, context: ContextShare) -> None:
        super().__init__()
        self.context = context

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention output of each position of this rank."""
        if self.context.size == 1:
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
            )
        return _EXCHANGES[self.context.exchange](q, k, v, self.context)


def _by_gathering(q: Tensor, k: Tensor, v: Tensor, context: ContextShare) -> Tensor:
    """Every rank gets the keys and values of all positions."""
    length = q.shape[2]
    group = context.process_group
    both = crossed(
        torch.stack([k, v]), lambda x: _gathered(x, group), lambda whole: _reduced(whole, group)
    )
    keys, values = both.movedim(0, 3).flatten(3, 4).unbind(0)  # ranks side by side, as positions
    mine = context.positions(length, q.device)
    is_seen = mine[:, None] >= context.all_positions(length, q.device)[None]
    return functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=is_seen, enable_gqa=q.shape[1] != k.shape[1]
    )


def _by_heads(q: Tensor, k: Tensor, v: Tensor, context: ContextShare) -> Tensor:
    """Every rank gets all positions of some of the heads (DeepSpeed Ulysses, 2023)."""
    q, k, v = (_to_heads(each, context) for each in (q, k, v))
    mixed = functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )
    parts = torch.stack(mixed.chunk(context.size, dim=2))
    back = exchanged(parts, context.process_group)
    return back.movedim(0, 1).flatten(1, 2)


def _to_heads(x: Tensor, context: ContextShare) -> Tensor:
    parts = exchanged(torch.stack(x.chunk(context.size, dim=1)), context.process_group)
    return parts.movedim(0, 2).flatten(2, 3)


def _by_ring(q: Tensor, k: Tensor, v: Tensor, context: ContextShare) -> Tensor:
    """Keys and values travel around a ring; attention to each block overlaps the next transfer.

    Blocks are joined by their maxima and sums (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise
    Transformers", 2023); the scores of a block are in memory, as no fused kernel returns both.
    """
    length, repeats = q.shape[2], q.shape[1] // k.shape[1]
    mine = context.positions(length, q.device)
    block = torch.stack([k, v])
    most = q.new_full((*q.shape[:3], 1), -math.inf)
    total, mixed = torch.zeros_like(most), torch.zeros_like(q)
    for step in range(context.size):
        works: list[Any] = []
        arriving = _next(block, context, works) if step < context.size - 1 else block
        theirs = context.positions(length, q.device, rank=(context.rank - step) % context.size)
        is_seen = mine[:, None] >= theirs[None]
        # Also where none is seen: every block is part of every rank's backward, or others wait.
        keys, values = block.repeat_interleave(repeats, dim=2).unbind(0)
        scores = (q @ keys.transpose(2, 3)) * q.shape[3] ** -0.5
        scores = scores.masked_fill(~is_seen, torch.finfo(scores.dtype).min)
        # Any number may be taken out of both sums: maxima have no gradient.
        higher = torch.maximum(most, scores.detach().amax(3, keepdim=True))
        weights = (scores - higher).exp() * is_seen
        before = (most - higher).exp()
        total = total * before + weights.sum(3, keepdim=True)
        mixed = mixed * before + weights @ values
        most = higher
        for work in works:
            work.wait()
        block = arriving
    return mixed / total


_EXCHANGES: Mapping[str, Callable[[Tensor, Tensor, Tensor, ContextShare], Tensor]] = {
    ContextExchange.OVERLAPPED.value: _by_gathering,
    ContextExchange.GATHER.value: _by_gathering,
    ContextExchange.RING.value: _by_ring,
    ULYSSES: _by_heads,
}


def _gathered(x: Tensor, group: Any) -> Tensor:
    """Return `x` of all ranks, `(ranks, …)`."""
    whole = x.new_empty(group.size(), *x.shape)
    one_tensor("all_gather")(whole.flatten(0, 1), x.contiguous(), group=group)
    return whole


def _reduced(whole: Tensor, group: Any) -> Tensor:
    """Return the sum over ranks of what each has for this one, of `(ranks, …)`."""
    part = whole.new_empty(whole.shape[1:])
    one_tensor("reduce_scatter")(part, whole.contiguous().flatten(0, 1), group=group)
    return part


def _next(block: Tensor, context: ContextShare, works: list[Any]) -> Tensor:
    """Return the data of the previous rank, valid after `works` are awaited, which this adds."""

    def forward(own: Tensor) -> Tensor:
        return _passed(own, context, works, by=1)

    def backward(gradient: Tensor) -> Tensor:
        started: list[Any] = []
        back = _passed(gradient, context, started, by=-1)
        for work in started:
            work.wait()
        return back

    return crossed(block, forward, backward)


def _passed(out: Tensor, context: ContextShare, works: list[Any], *, by: int) -> Tensor:
    """Return the data of the rank `by` places behind, while the own goes as far ahead."""
    into = torch.empty_like(out, memory_format=torch.contiguous_format)
    group = context.process_group
    ahead, behind = (
        dist.get_global_rank(group, (context.rank + step) % context.size) for step in (by, -by)
    )
    works += dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, out.contiguous(), ahead, group),
            dist.P2POp(dist.irecv, into, behind, group),
        ]
    )
    return into

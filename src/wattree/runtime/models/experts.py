"""Mixtures of experts in the built-in decoder: each token visits a few feed-forward parts.

PyTorch has no layer of experts, so routing and exchanges are written here. No token is dropped, and
there is no loss of balance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wattree.capture import TransformerShape
from wattree.runtime.models.feed_forward import FeedForwardPart
from wattree.runtime.models.linears import Linears, Weights
from wattree.runtime.parallel.exchange import exchanged
from wattree.runtime.regions import join_parts, split_parts


def check_experts(shape: TransformerShape, linears: Linears, *, sequence: int) -> list[str]:
    """Return the reasons why a mixture of experts cannot be split over its ranks, or run."""
    if not shape.experts:
        return []
    problems = []
    recipe, share = linears.recipe, linears.experts
    if not 1 <= shape.top_k <= shape.experts:
        problems.append(f"top_k: found {shape.top_k}, expected 1 to {shape.experts}, the experts")
    if shape.experts % share.size:
        problems.append(
            f"experts: found {shape.experts}, expected a multiple of {share.size}, the ranks that "
            "share them"
        )
    if recipe.kind.has_ghosts:
        problems.append("experts: are not made of phantom layers; use tensor or megatron")
    tp, positions = recipe.options.tp, sequence // recipe.options.cp
    if (share.over_tensor or recipe.sequence_parallel) and positions % tp:
        problems.append(
            f"experts: route the positions of each rank, and {positions} do not split over "
            f"strategy.tp, {tp}"
        )
    return problems


class Experts(nn.Module):
    """The experts that this rank has, on the rows that were routed to each."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the experts' outputs for rows, grouped by expert with the given counts."""
        given = rows.split(list(counts))
        return torch.cat([part(x) for part, x in zip(self.parts, given, strict=True)])


def experts_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of the experts of a model, or of a part of it."""
    for each in module.modules():
        if isinstance(each, Experts):
            yield from each.parameters()


class MixtureOfExperts(nn.Module):
    """Router, the experts of this rank, and those that every token visits."""

    def __init__(self, shape: TransformerShape, linears: Linears, name: str) -> None:
        super().__init__()
        self.group, self.share, self.name = linears.group, linears.experts, name
        self.top_k, self.count = shape.top_k, shape.experts
        # Whole positions come in where they are not cut already, and parts are routed on each rank.
        self.is_cut, self.routes_parts = linears.sequence_parallel, self.share.over_tensor
        weights = Weights(name=f"{name}.router", std=shape.hidden**-0.5, bias=False)
        self.router = linears.plain(shape.hidden, shape.experts, weights)
        self.router.weight.is_partial = self.routes_parts
        mine = shape.experts // self.share.size
        one, alone = replace(shape, mlp_bias=False), replace(linears, sequence_parallel=False)
        self.experts = Experts(
            [
                FeedForwardPart(
                    one,
                    alone,
                    f"{name}.experts.{number}",
                    inner=shape.expert_ffn or shape.ffn or 4 * shape.hidden,
                    whole=self.share.over_tensor,
                )
                for number in range(mine * self.share.rank, mine * (self.share.rank + 1))
            ]
        )
        self.shared: nn.Module | None = None
        if shape.shared_ffn:
            self.shared = FeedForwardPart(shape, linears, f"{name}.shared", inner=shape.shared_ffn)

    def forward(self, x: Tensor) -> Tensor:
        """Return the experts' contribution to the residual."""
        mine = x
        if self.is_cut and not self.routes_parts:
            mine = join_parts(x, self.group, x.shape[1] * self.group.size, self.name, dim=1)
        elif self.routes_parts and not self.is_cut:
            mine = split_parts(x, self.group, self.name, dim=1)
        out = self._routed(mine.flatten(0, 1)).view_as(mine)
        if self.is_cut and not self.routes_parts:
            out = split_parts(out, self.group, self.name, dim=1)
        elif self.routes_parts and not self.is_cut:
            out = join_parts(out, self.group, x.shape[1], self.name, dim=1)
        return out if self.shared is None else out + self.shared(x)

    def _routed(self, x: Tensor) -> Tensor:
        """Return the sum of the experts' outputs for each token, `(tokens, hidden)`."""
        weights, chosen = self.router(x).softmax(dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.top_k
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        made = self._by_experts(x[tokens], counts) * weights.flatten()[order, None]
        return torch.zeros_like(x, dtype=made.dtype).index_add(0, tokens, made)

    def _by_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' outputs for rows, ordered by expert, on any rank."""
        share = self.share
        if share.size == 1:
            return self.experts(rows, counts.tolist())
        mine = counts.view(share.size, -1)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine, group=share.process_group)
        sent, received = mine.sum(1).tolist(), theirs.sum(1).tolist()
        taken = exchanged(rows, share.process_group, received, sent)
        # Rows arrive by source, then expert; experts take theirs in a row.
        numbers = torch.arange(mine.shape[1], device=rows.device).repeat(share.size)
        order = numbers.repeat_interleave(theirs.flatten()).argsort(stable=True)
        made = self.experts(taken[order], theirs.sum(0).tolist())
        return exchanged(made[order.argsort()], share.process_group, sent, received)

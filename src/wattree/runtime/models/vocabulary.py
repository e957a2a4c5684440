"""Token tables and losses over a vocabulary that is cut over ranks.

Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (2019), section 3: what ranks exchange of logits are
numbers per token, not the logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.runtime.group import Group
from wattree.runtime.regions import sum_parts
from wattree.runtime.shards import shard_offsets, shard_widths

#: Target of places that have none, as PyTorch's losses have it.
IGNORED = -100


class VocabularyEmbedding(nn.Module):
    """Rows of a token table; the sum over ranks gives whole vectors.

    Args:
        vocabulary: Rows of the whole table.
        hidden: Features.

    Attributes:
        weight: Own rows, `(vocabulary_shard, hidden)`.
    """

    def __init__(
        self, vocabulary: int, hidden: int, *, group: Group, device: Any, dtype: Any
    ) -> None:
        super().__init__()
        offsets = shard_offsets(shard_widths(vocabulary, group.size))
        self.begin, self.end = offsets[group.rank], offsets[group.rank + 1]
        self.group = group
        self.weight = nn.Parameter(
            torch.empty(self.end - self.begin, hidden, device=device, dtype=dtype)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return `(batch, sequence, hidden)` of ids `(batch, sequence)`, the same on all ranks."""
        if self.group.size == 1:
            return functional.embedding(ids, self.weight)
        is_mine = (ids >= self.begin) & (ids < self.end)
        found = functional.embedding((ids - self.begin).where(is_mine, 0), self.weight)
        return sum_parts(found * is_mine.unsqueeze(-1), self.group, "embedding")


def vocabulary_loss(logits: Tensor, targets: Tensor, group: Group, vocabulary: int) -> Tensor:
    """Return the mean cross entropy of logits with a split vocabulary; the same on all ranks.

    Args:
        logits: Own part, `(tokens, vocabulary_shard)`.
        targets: Ids of the whole vocabulary, `(tokens,)`; `IGNORED` counts for nothing.
    """
    if group.size == 1:
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED)
    loss: Tensor = _VocabularyLoss.apply(logits, targets, group, vocabulary)
    return loss


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group, vocabulary: int) -> Tensor:
        begin = shard_offsets(shard_widths(vocabulary, group.size))[group.rank]
        is_mine = (targets >= begin) & (targets < begin + logits.shape[-1])
        places = (targets - begin).where(is_mine, 0)
        chosen = logits.gather(1, places[:, None])[:, 0] * is_mine
        statistics = torch.stack([logits.logsumexp(dim=1), chosen])[None]
        parts = group.all_gather(statistics, [1] * group.size, "loss").wait()
        total = parts[:, 0].logsumexp(dim=0)
        counts = targets != IGNORED
        ctx.save_for_backward(logits, total, places, is_mine, counts)
        return ((total - parts[:, 1].sum(0)) * counts).sum() / counts.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, total, places, is_mine, counts = ctx.saved_tensors
        found = (logits - total[:, None]).exp()
        found.scatter_add_(1, places[:, None], -is_mine[:, None].to(found.dtype))
        found *= (counts * (gradients[0] / counts.sum()))[:, None]
        return found, None, None, None

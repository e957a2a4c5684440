"""Neural collaborative filtering (NeuMF) [1] in the size of MLPerf's MovieLens-20M benchmark [2].

References:
    [1] X. He et al., "Neural Collaborative Filtering", WWW 2017, arXiv:1708.05031.
    [2] NVIDIA, DeepLearningExamples, PyTorch/Recommendation/NCF: 138,493 users, 26,744 items,
        64 factors, layers 256, 256, 128, 64.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class NeuMF(nn.Module):
    """Ids of users and items `(B,)` and whether they interacted `(B,)` to the loss."""

    def __init__(
        self,
        *,
        users: int = 138493,
        items: int = 26744,
        factors: int = 64,
        layers: tuple[int, ...] = (256, 256, 128, 64),
    ) -> None:
        super().__init__()
        self.mf_user_embed = nn.Embedding(users, factors)
        self.mf_item_embed = nn.Embedding(items, factors)
        self.mlp_user_embed = nn.Embedding(users, layers[0] // 2)
        self.mlp_item_embed = nn.Embedding(items, layers[0] // 2)
        self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(layers))
        self.final = nn.Linear(layers[-1] + factors, 1)

    def forward(self, user: Tensor, item: Tensor, label: Tensor) -> Tensor:
        factors = self.mf_user_embed(user) * self.mf_item_embed(item)
        x = torch.cat([self.mlp_user_embed(user), self.mlp_item_embed(item)], 1)
        for layer in self.mlp:
            x = functional.relu(layer(x))
        logits = self.final(torch.cat([factors, x], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, label)


build = NeuMF


def example_inputs(batch: int, *, users: int = 138493, items: int = 26744) -> tuple[Tensor, ...]:
    """Return users, items and labels."""
    return (
        torch.randint(0, users, (batch,)),
        torch.randint(0, items, (batch,)),
        torch.rand(batch),
    )

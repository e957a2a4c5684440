"""Wide & Deep [1]: a linear model on ids in parallel with a network on their embeddings.

References:
    [1] H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016,
        arXiv:1606.07792, figure 4: embeddings of 32, layers of 1024, 512 and 256.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class WideDeep(nn.Module):
    """Dense features `(B, dense)`, an id per table `(B, tables)`, labels `(B,)` to the loss.

    Args:
        rows: Of each table.
        dense: Features that are numbers.
        width: Features of a row.
        hidden: Widths of the network.
    """

    def __init__(
        self,
        *,
        rows: tuple[int, ...],
        dense: int = 13,
        width: int = 32,
        hidden: tuple[int, ...] = (1024, 512, 256),
    ) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Embedding(n, 1) for n in rows)
        self.wide_dense = nn.Linear(dense, 1)
        self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in rows)
        parts: list[nn.Module] = []
        for features_in, features in pairwise((len(rows) * width + dense, *hidden)):
            parts += [nn.Linear(features_in, features), nn.ReLU(inplace=True)]
        self.deep = nn.Sequential(*parts, nn.Linear(hidden[-1], 1))

    def forward(self, dense: Tensor, ids: Tensor, label: Tensor) -> Tensor:
        columns = ids.unbind(1)
        weights = [table(each) for table, each in zip(self.wide, columns, strict=True)]
        linear = self.wide_dense(dense) + torch.cat(weights, 1).sum(1, keepdim=True)
        rows = [table(each) for table, each in zip(self.embeddings, columns, strict=True)]
        logits = linear + self.deep(torch.cat([dense, *rows], 1))
        return functional.binary_cross_entropy_with_logits(logits.squeeze(1), label)


build = WideDeep


def example_inputs(batch: int, *, rows: tuple[int, ...], dense: int = 13) -> tuple[Tensor, ...]:
    """Return dense features, ids and labels."""
    return (
        torch.randn(batch, dense),
        torch.zeros(batch, len(rows), dtype=torch.long),
        torch.rand(batch),
    )

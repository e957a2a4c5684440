"""DLRM [1] with dot products, with the low-rank cross network of DCN-V2 [2], or with neither.

Tables are looked up by ids `(B, hot)`; the rows of a bag are added up. Their gradients are sparse,
as in the public implementations: only rows that were looked up are written.

References:
    [1] M. Naumov et al., "Deep Learning Recommendation Model for Personalization and
        Recommendation Systems", 2019, arXiv:1906.00091.
    [2] R. Wang et al., "DCN V2", WWW 2021, arXiv:2008.13535, section 3.5 (low rank).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def _mlp(sizes: tuple[int, ...], *, ends_linear: bool) -> nn.Sequential:
    parts: list[nn.Module] = []
    for features_in, features in pairwise(sizes):
        parts += [nn.Linear(features_in, features), nn.ReLU(inplace=True)]
    return nn.Sequential(*(parts[:-1] if ends_linear else parts))


class _Dot(nn.Module):
    """The dense feature and products of each two features, padded to a multiple of `multiple`."""

    def __init__(self, features: int, width: int, multiple: int) -> None:
        super().__init__()
        # Indices of a strictly lower triangle; registered, so that they move with the model.
        pairs = torch.tril_indices(features, features, -1)
        self.register_buffer("rows", pairs[0], persistent=False)
        self.register_buffer("columns", pairs[1], persistent=False)
        size = features * (features - 1) // 2 + width
        self.padding = -size % multiple
        self.out_features = size + self.padding

    def forward(self, x: Tensor) -> Tensor:
        products = torch.bmm(x, x.transpose(1, 2))[:, self.rows, self.columns]
        parts = [x[:, 0], products]
        if self.padding:
            parts.append(x.new_zeros(x.shape[0], self.padding))
        return torch.cat(parts, 1)


class _LowRankCross(nn.Module):
    """`x0 * (U V x + b) + x`, several times."""

    def __init__(self, features: int, rank: int, layers: int) -> None:
        super().__init__()
        self.v = nn.ModuleList(nn.Linear(features, rank, bias=False) for _ in range(layers))
        self.w = nn.ModuleList(nn.Linear(rank, features) for _ in range(layers))
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        first = x = x.flatten(1)
        for down, up in zip(self.v, self.w, strict=True):
            x = first * up(down(x)) + x
        return x


class _Concatenation(nn.Module):
    """All features side by side, as the networks of cluster-design studies have them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class DLRM(nn.Module):
    """Dense features `(B, dense)`, ids `(B, hot)` per table and labels `(B,)` to the loss.

    Args:
        rows: Of each table.
        width: Features of a row.
        bottom: Dense features and hidden widths of the network below; it ends in `width`.
        top: Hidden widths of the network above; it ends in 1.
        cross_rank: Rank of a cross network; None: dot products of each two features.
        multiple: The dot products are padded to a multiple of it.
        concatenate: Features go side by side into the network above, without products.
    """

    def __init__(
        self,
        *,
        rows: tuple[int, ...],
        width: int = 128,
        bottom: tuple[int, ...] = (13, 512, 256),
        top: tuple[int, ...] = (1024, 1024, 512, 256),
        cross_rank: int | None = None,
        cross_layers: int = 3,
        multiple: int = 1,
        concatenate: bool = False,
    ) -> None:
        super().__init__()
        features = len(rows) + 1
        self.embeddings = nn.ModuleList(
            nn.EmbeddingBag(n, width, mode="sum", sparse=True) for n in rows
        )
        self.bottom_mlp = _mlp((*bottom, width), ends_linear=False)
        self.interaction: _Dot | _LowRankCross | _Concatenation
        if concatenate:
            self.interaction = _Concatenation(features * width)
        elif cross_rank is None:
            self.interaction = _Dot(features, width, multiple)
        else:
            self.interaction = _LowRankCross(features * width, cross_rank, cross_layers)
        self.top_mlp = _mlp((self.interaction.out_features, *top, 1), ends_linear=True)

    def forward(self, dense: Tensor, ids: list[Tensor], label: Tensor) -> Tensor:
        bags = [table(each) for table, each in zip(self.embeddings, ids, strict=True)]
        x = torch.stack([self.bottom_mlp(dense), *bags], 1)
        logits = self.top_mlp(self.interaction(x)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, label)


build = DLRM


def example_inputs(
    batch: int,
    *,
    rows: tuple[int, ...],
    bottom: tuple[int, ...] = (13,),
    hot: tuple[int, ...] | int = 1,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return dense features, ids of each table and labels.

    Args:
        batch: Samples.
        rows: Of each table.
        bottom: As in `build`; the first is the number of dense features.
        hot: Ids per sample, of each table or of all.
    """
    counts = [hot] * len(rows) if isinstance(hot, int) else list(hot)
    ids = [torch.randint(0, n, (batch, k)) for n, k in zip(rows, counts, strict=True)]
    return torch.randn(batch, bottom[0]), ids, torch.rand(batch)

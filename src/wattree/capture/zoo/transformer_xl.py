"""Transformer-XL [1]: attention that reaches back into the segment before.

The head is an adaptive softmax [2]: frequent words first, each rarer cluster for the words that
fall into it. How many words do depends on the text; here each cluster gets the share that Zipf's
law gives it (frequency inverse to rank), so that no size depends on values.

References:
    [1] Z. Dai et al., "Transformer-XL", ACL 2019, arXiv:1901.02860; sizes as in NVIDIA,
        DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL, for WikiText-103.
    [2] E. Grave et al., "Efficient softmax approximation for GPUs", ICML 2017, arXiv:1609.04309.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def zipf_share(first: int, last: int, vocabulary: int) -> float:
    """Return the share of text in words of rank `first` to `last - 1` (from 0) of a vocabulary."""

    def harmonic(count: int) -> float:  # Euler's expansion; exact to 1e-8 from 100 words on
        return math.log(count) + 0.5772156649015329 + 1 / (2 * count) if count else 0.0

    return (harmonic(last) - harmonic(first)) / harmonic(vocabulary)


class _AdaptiveEmbedding(nn.Module):
    """A table for each cluster, narrower for rarer words, and a projection to the common width.

    With `divisor` 1 there is one table. Otherwise each cluster's share of the ids is looked up in
    its table.
    """

    def __init__(
        self, cutoffs: tuple[int, ...], width: int, divisor: int, shares: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.width, self.shares = width, shares
        ends = cutoffs if divisor > 1 else cutoffs[-1:]
        starts = (0, *ends[:-1])
        widths = [width // divisor**number for number in range(len(ends))]
        self.emb_layers = nn.ModuleList(
            nn.Embedding(end - start, each)
            for start, end, each in zip(starts, ends, widths, strict=True)
        )
        self.emb_projs = nn.ModuleList(
            nn.Linear(each, width, bias=False) for each in widths if divisor > 1
        )

    def forward(self, ids: Tensor) -> Tensor:
        if not self.emb_projs:
            return self.emb_layers[0](ids) * self.width**0.5
        parts = []
        layers = zip(self.emb_layers, self.emb_projs, strict=True)
        for (table, projection), each in zip(layers, _cut(ids, self.shares), strict=True):
            parts.append(projection(table(each)))
        return torch.cat(parts, 0) * self.width**0.5


def _cut(x: Tensor, shares: tuple[float, ...]) -> tuple[Tensor, ...]:
    """Return pieces of the first dim (positions), as long as their shares, each at least one."""
    length = x.shape[0]
    sizes = [max(1, round(share * length)) for share in shares[1:]]
    return x.split([length - sum(sizes), *sizes], 0)


class _RelativeAttention(nn.Module):
    """Scores of content and of distance, over the memory and the segment."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.qkv_net = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.r_net = nn.Linear(width, heads * head_width, bias=False)
        self.o_net = nn.Linear(heads * head_width, width, bias=False)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(0.0)
        self.layer_norm = nn.LayerNorm(width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_width)

    def forward(
        self, x: Tensor, memory: Tensor, positions: Tensor, biases: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:  # fmt: skip
        length, batch, _ = x.shape
        q, k, v = self.qkv_net(torch.cat([memory, x], 0)).chunk(3, -1)
        q, k, v = self._heads(q[-length:]), self._heads(k), self._heads(v)
        r = self._heads(self.r_net(positions))
        content, distance = biases
        scores = torch.einsum("ibnd,jbnd->bnij", q + content, k)
        by_distance = torch.einsum("ibnd,jnd->bnij", q + distance, r)
        # Row i is moved by i, which turns columns of distances into columns of keys.
        padded = functional.pad(by_distance, (1, 0)).view(batch, self.heads, -1, length)
        scores = scores + padded[:, :, 1:].view_as(by_distance)
        scores = (scores * self.head_width**-0.5).masked_fill(mask, -65000.0)
        weights = self.dropatt(functional.softmax(scores, -1))
        y = torch.einsum("bnij,jbnd->ibnd", weights, v).flatten(2)
        return self.layer_norm(x + self.drop(self.o_net(y)))


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dec_attn = _RelativeAttention(width, heads, head_width, dropout)
        self.pos_ff = nn.Sequential(
            nn.Linear(width, inner),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(inner, width),
            nn.Dropout(dropout),
        )
        self.layer_norm = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, memory: Tensor, positions: Tensor, biases: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:  # fmt: skip
        x = self.dec_attn(x, memory, positions, biases, mask)
        return self.layer_norm(x + self.pos_ff(x))


class _AdaptiveSoftmax(nn.Module):
    """Log-likelihood loss with clusters; its tables are those of the embedding."""

    def __init__(
        self, embedding: _AdaptiveEmbedding, cutoffs: tuple[int, ...], shares: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.cutoffs, self.shares = cutoffs, shares
        clusters = len(cutoffs) - 1
        self.cluster_weight = nn.Parameter(torch.zeros(clusters, embedding.width))
        self.cluster_bias = nn.Parameter(torch.zeros(clusters))
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(table.num_embeddings)) for table in embedding.emb_layers
        )
        # The projections of rarer clusters are those of the embedding; the first has its own.
        self.out_projs = nn.ParameterList(
            projection.weight if number else nn.Parameter(torch.randn_like(projection.weight))
            for number, projection in enumerate(embedding.emb_projs)
        )

    def _logits(self, x: Tensor, weight: Tensor, bias: Tensor, cluster: int) -> Tensor:
        if self.out_projs:
            x = x @ self.out_projs[cluster]
        return functional.linear(x, weight, bias)

    def forward(self, x: Tensor, target: Tensor, tables: list[Tensor]) -> Tensor:
        weights, biases = _clusters(self.cutoffs, tables, list(self.biases))
        weight = torch.cat([weights[0], self.cluster_weight])
        bias = torch.cat([biases[0], self.cluster_bias])
        head = functional.log_softmax(self._logits(x, weight, bias, 0), -1)
        loss = -head.gather(-1, target.unsqueeze(-1)).sum()
        pieces = zip(_cut(x, self.shares), _cut(target, self.shares), strict=True)
        for cluster, (piece, wanted) in enumerate(pieces):
            if cluster:
                logits = self._logits(piece, weights[cluster], biases[cluster], cluster)
                tail = functional.log_softmax(logits, -1)
                loss = loss - tail.gather(-1, wanted.unsqueeze(-1)).sum()
        return loss / target.numel()


def _clusters(
    cutoffs: tuple[int, ...], tables: list[Tensor], biases: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights and biases of each cluster: slices, if there is one table for all."""
    if len(tables) > 1:
        return tables, biases
    ranges = list(zip((0, *cutoffs[:-1]), cutoffs, strict=True))
    return [tables[0][a:b] for a, b in ranges], [biases[0][a:b] for a, b in ranges]


class TransformerXL(nn.Module):
    """Ids `(S, B)`, the ids that follow `(S, B)` and the memory of each layer to the loss.

    Args:
        width: Features of a token.
        head_width: Features of a head.
        inner: Width of the feed-forward part.
        cutoffs: Where the clusters of words end; the last is the vocabulary.
        divisor: Each rarer cluster's tables are narrower by it.
        dropout: Probability.
    """

    def __init__(
        self,
        *,
        layers: int = 16,
        width: int = 512,
        heads: int = 8,
        head_width: int = 64,
        inner: int = 2048,
        cutoffs: tuple[int, ...] = (19997, 39997, 199997, 267735),
        divisor: int = 1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        shares = tuple(
            zipf_share(start, end, cutoffs[-1])
            for start, end in zip((0, *cutoffs[:-1]), cutoffs, strict=True)
        )
        self.word_emb = _AdaptiveEmbedding(cutoffs, width, divisor, shares)
        self.drop = nn.Dropout(dropout)
        self.r_w_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.r_r_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.layers = nn.ModuleList(
            _Layer(width, heads, head_width, inner, dropout) for _ in range(layers)
        )
        self.crit = _AdaptiveSoftmax(self.word_emb, cutoffs, shares)

    def _positions(self, x: Tensor, count: int) -> Tensor:
        width = x.shape[-1]
        steps = torch.arange(0, width, 2, device=x.device, dtype=x.dtype)
        distances = torch.arange(count - 1, -1, -1, device=x.device, dtype=x.dtype)
        angles = distances[:, None] / 10000 ** (steps / width)
        return self.drop(torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, ids: Tensor, target: Tensor, memories: list[Tensor]) -> Tensor:
        x = self.drop(self.word_emb(ids))
        count = len(ids) + len(memories[0])
        positions = self._positions(x, count)
        ones = torch.ones(len(ids), count, dtype=torch.bool, device=x.device)
        mask = ones.triu(1 + len(memories[0]))
        biases = (self.r_w_bias, self.r_r_bias)
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, memory, positions, biases, mask)
        tables = [table.weight for table in self.word_emb.emb_layers]
        return self.crit(self.drop(x), target, tables)


build = TransformerXL


def example_inputs(
    batch: int,
    *,
    layers: int = 16,
    width: int = 512,
    target_length: int = 192,
    memory_length: int = 192,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return ids, the next ids, and each layer's inputs of the previous segment."""
    ids = torch.zeros(target_length, batch, dtype=torch.long)
    memories = [torch.randn(memory_length, batch, width) for _ in range(layers)]
    return ids, ids.clone(), memories

"""Recommenders and networks of graphs, in plain PyTorch, for `reports_vision.yaml`.

FPMC (doi:10.1145/1772690.1772773), GRU4Rec (arXiv:1606.08117), SASRec (arXiv:1808.09781) and
BERT4Rec (arXiv:1904.06690) with RecBole's sizes; GCN (arXiv:1609.02907) and GAT (arXiv:1710.10903)
on a whole graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_LENGTH = 20


class _Layer(nn.Module):
    def __init__(self, width: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 256), nn.Linear(256, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5 + mask
        y = functional.dropout(scores.softmax(dim=-1), 0.5) @ v
        x = self.norm1(x + functional.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.5))
        y = self.down(functional.gelu(self.up(x)))
        return self.norm2(x + functional.dropout(y, 0.5))


class _Sequence(nn.Module):
    def __init__(self, items: int, kind: str) -> None:
        super().__init__()
        self.kind, self.items = kind, nn.Embedding(items + 1, 64)
        if kind == "gru":
            self.recurrent = nn.GRU(64, 128, bias=False, batch_first=True)
            self.dense = nn.Linear(128, 64)
        else:
            self.places, self.norm = nn.Embedding(_LENGTH, 64), nn.LayerNorm(64)
            self.layers = nn.ModuleList(_Layer() for _ in range(2))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        y = self.items(x)
        if self.kind == "gru":
            y = self.recurrent(functional.dropout(y, 0.3))[0]
            y = self.dense(y)
        else:
            y = functional.dropout(self.norm(y + self.places.weight), 0.5)
            mask = (x > 0).float()[:, None, None]
            if self.kind == "causal":
                mask = mask * torch.tril(torch.ones_like(mask.expand(-1, 1, _LENGTH, -1)))
            mask = (1.0 - mask) * -10000.0
            for layer in self.layers:
                y = layer(y, mask)
        if self.kind == "both":  # a fifth of the items is masked
            logits = y[:, : _LENGTH // 5] @ self.items.weight.t()
            return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        logits = y[:, -1] @ self.items.weight.t()
        return functional.cross_entropy(logits, wanted[:, 0])


def sequence(items: int, kind: str = "causal") -> nn.Module:
    """Return SASRec (`causal`), BERT4Rec (`both`) or GRU4Rec (`gru`) for sequences of 20."""
    return _Sequence(items, kind)


class _Factors(nn.Module):
    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 64), nn.Embedding(items, 64)
        self.last, self.next = nn.Embedding(items, 64), nn.Embedding(items, 64)

    def forward(self, users: Tensor, before: Tensor, wanted: Tensor, other: Tensor) -> Tensor:
        user, last = self.user(users), self.last(before)
        good = (user * self.item(wanted)).sum(dim=-1) + (last * self.next(wanted)).sum(dim=-1)
        bad = (user * self.item(other)).sum(dim=-1) + (last * self.next(other)).sum(dim=-1)
        return -torch.log(1e-10 + torch.sigmoid(good - bad)).mean()


def fpmc(users: int, items: int) -> nn.Module:
    """Return FPMC with the loss of pairs."""
    return _Factors(users, items)


class _Graph(nn.Module):
    """Two layers on one graph; an epoch trains on it and then evaluates it."""

    def __init__(self, nodes: int, edges: int, inputs: int, classes: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        inner = 8 * heads if heads else 16
        self.one = nn.Linear(inputs, inner, bias=False)
        self.two = nn.Linear(inner, classes, bias=False)
        self.biases = nn.ParameterList([torch.empty(inner), torch.empty(classes)])
        self.register_buffer("source", torch.zeros(edges + nodes, dtype=torch.long))
        self.register_buffer("target", torch.zeros(edges + nodes, dtype=torch.long))
        self.register_buffer("norm", torch.ones(edges + nodes, 1))
        if heads:
            self.scores = nn.ParameterList([torch.empty(heads, 16), torch.empty(1, 2 * classes)])

    def _spread(self, x: Tensor, layer: int) -> Tensor:
        y = x.index_select(1, self.source)
        if self.heads:
            heads = self.heads if not layer else 1
            y = y.unflatten(-1, (heads, -1))
            there = x.index_select(1, self.target).unflatten(-1, (heads, -1))
            score = (torch.cat([there, y], dim=-1) * self.scores[layer]).sum(dim=-1)
            score = functional.leaky_relu(score, 0.2).exp()
            total = torch.zeros_like(x[..., :heads]).index_add(1, self.target, score)
            score = score / total.index_select(1, self.target)
            y = (y * functional.dropout(score, 0.6)[..., None]).flatten(2)
        else:
            y = y * self.norm
        return torch.zeros_like(x).index_add(1, self.target, y) + self.biases[layer]

    def _logits(self, x: Tensor) -> Tensor:
        x = self._spread(self.one(functional.dropout(x, 0.5)), 0)
        x = functional.elu(x) if self.heads else functional.relu(x)
        return self._spread(self.two(functional.dropout(x, 0.5)), 1).log_softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        loss = -self._logits(x)[:, :60, 0].mean()
        with torch.no_grad():
            found = self._logits(x).argmax(dim=-1)
        return loss + 0.0 * found.sum()


def graph(nodes: int, edges: int, inputs: int, classes: int, heads: int = 0) -> nn.Module:
    """Return GCN, or GAT if there are heads, on a graph of so many nodes and directed edges."""
    return _Graph(nodes, edges, inputs, classes, heads)

"""A decoder in plain PyTorch, of a catalog entry's sizes, for `benchmarks.gpu_training`.

RMS norms before attention and the gated feed-forward part, rotary positions, grouped keys and
values, fused attention, and the table of the embedding as its head: Llama 3.2 1B is one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.shape import TransformerShape

#: Base of the wavelengths of rotary positions (Llama 3).
_BASE = 500_000.0


class _Layer(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden, shape.ffn
        self.width = shape.head_dim or hidden // shape.heads
        self.heads, self.groups = shape.heads, shape.kv_heads or shape.heads
        rows = (self.heads + 2 * self.groups) * self.width
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(hidden, rows, bias=False)
        self.out = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self._attended(self.norms[0](x), turns)
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        down: Tensor = self.down(functional.silu(gate) * up)
        return x + down

    def _attended(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        query, key, value = heads.split([self.heads, self.groups, self.groups], dim=1)
        found = functional.scaled_dot_product_attention(
            _turned(query, turns),
            _turned(key, turns),
            value,
            is_causal=True,
            enable_gqa=self.groups != self.heads,
        )
        out: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return out


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (each.to(x.dtype) for each in turns)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Decoder(nn.Module):
    """A decoder that returns the logits of each position, `(batch x sequence, vocab)`."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.table = nn.Embedding(shape.vocab, shape.hidden)
        nn.init.normal_(self.table.weight, std=shape.hidden**-0.5)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self._width = shape.head_dim or shape.hidden // shape.heads

    def forward(self, ids: Tensor) -> Tensor:
        """Return what follows each token."""
        half = torch.arange(self._width // 2, device=ids.device)
        rates = _BASE ** (-half / half.numel())
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device), rates)
        turns = angles.cos(), angles.sin()
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x, turns)
        return functional.linear(self.norm(x), self.table.weight).flatten(0, 1)

"""Modules as users write them, for ranks that share their linear layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["attending", "curved", "failing_samples", "stack"]


def stack(width: int = 24) -> nn.Module:
    """A stack of linear layers; 3 over 2 ranks are cut unevenly where the width is odd."""
    return nn.Sequential(
        nn.Linear(width, width + 1),
        nn.Tanh(),
        nn.Dropout(0.0),
        nn.Linear(width + 1, width),
        nn.ReLU(),
        nn.Linear(width, 5),
    )


class _Curved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(24, 24), nn.LayerNorm(24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(functional.relu(self.norm(self.first(x)))) + x
        return y


def curved() -> nn.Module:
    """A module that is no stack, and named like no family."""
    return _Curved()


class _Attention(nn.Module):
    head_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k_proj, self.v_proj = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = [each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in self._in]
        q, k, v = heads
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    @property
    def _in(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.q_proj, self.k_proj, self.v_proj


class _FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24), nn.Linear(16, 24)
        self.down_proj = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.self_attn, self.mlp = nn.LayerNorm(16), _Attention(), _FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm(x))
        y: Tensor = x + self.mlp(self.norm(x))
        return y


def attending() -> nn.Module:
    """A layer of a decoder, named like those of Llama."""
    return _Attending()


def failing_samples() -> None:
    """Samples that cannot be had."""
    raise ValueError("no samples today")


#: A module whose feed-forward layers and mixing of tokens `train` tells apart.
MIXER = """
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.token = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        x = x + self.token(x.transpose(1, 2)).transpose(1, 2)
        for _ in range(self.calls):
            x = x + self.fc2(torch.relu(self.fc1(x)))
        return x

def build(calls):
    return nn.Sequential(Mixer(calls), Mixer(calls))
"""

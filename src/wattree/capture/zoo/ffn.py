"""A stack of fully connected layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(*, width: int = 4096, depth: int = 8, classes: int = 1000) -> nn.Module:
    """Return `depth` linear layers of `width` features with ReLU between, then a classifier."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


def example_inputs(batch: int, *, width: int = 4096) -> tuple[Tensor]:
    """Return a batch of vectors."""
    return (torch.randn(batch, width),)

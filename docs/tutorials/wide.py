"""A sequence model whose inputs are made for a batch and a length, for docs/tutorials."""

from __future__ import annotations

import torch
from torch import nn


def build() -> nn.Module:
    """Return a small tagger: an embedding, an encoder layer, and logits per position."""
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, batch_first=True)
    return nn.Sequential(nn.Embedding(1000, 128), layer, nn.Linear(128, 20))


def example_inputs(batch: int, sequence_length: int) -> torch.Tensor:
    """Return ids of tokens. Shape `(batch, sequence_length)`."""
    return torch.randint(1000, (batch, sequence_length))

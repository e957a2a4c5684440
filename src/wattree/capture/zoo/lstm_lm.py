"""A recurrent language model: table, LSTM layers, head and cross-entropy.

References:
    [1] W. Zaremba et al., "Recurrent Neural Network Regularization", 2014, arXiv:1409.2329,
        section 4.1: the large model has two layers of 1500, dropout 0.65, 35 steps, 10,000 words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LSTMLanguageModel(nn.Module):
    """Ids `(B, S)` and the ids that follow `(B, S)` to the loss."""

    def __init__(
        self,
        *,
        vocabulary: int = 10000,
        width: int = 1500,
        layers: int = 2,
        dropout: float = 0.65,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, width)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x, _ = self.rnn(self.drop(self.encoder(ids)))
        logits = self.decoder(self.drop(x))
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


build = LSTMLanguageModel


def example_inputs(
    batch: int, sequence_length: int, *, vocabulary: int = 10000
) -> tuple[Tensor, Tensor]:
    """Return ids and the ids that follow."""
    shape = (batch, sequence_length)
    return torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, shape)

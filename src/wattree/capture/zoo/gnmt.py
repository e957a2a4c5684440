"""GNMT [1] in the size of MLPerf's translation benchmark [2].

Source and target have the same length. The attention of the first decoder layer is computed for
all steps after that layer, as [2] does in training. Lengths are not masked.

References:
    [1] Y. Wu et al., "Google's Neural Machine Translation System", 2016, arXiv:1609.08144.
    [2] NVIDIA, DeepLearningExamples, PyTorch/Translation/GNMT (GNMT v2): 4 + 4 layers of 1024,
        vocabulary 32,320 (padded), one table for both languages, Bahdanau attention, dropout 0.2,
        label smoothing 0.1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Attention(nn.Module):
    """Normalized additive attention: `v / |v| * g . tanh(q + k + b)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_q = nn.Linear(width, width, bias=False)
        self.linear_k = nn.Linear(width, width, bias=False)
        self.linear_att = nn.Parameter(torch.randn(width))
        self.normalize_scalar = nn.Parameter(torch.full((1,), width**-0.5))
        self.normalize_bias = nn.Parameter(torch.zeros(width))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        q, k = self.linear_q(query), self.linear_k(keys)
        summed = q.unsqueeze(2) + k.unsqueeze(1) + self.normalize_bias
        vector = self.linear_att / self.linear_att.norm() * self.normalize_scalar
        scores = torch.tanh(summed).matmul(vector)
        return torch.bmm(functional.softmax(scores, -1), keys)


class _Encoder(nn.Module):
    """One bidirectional layer, then forward layers; shortcuts from the third on."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        rnn = [nn.LSTM(width, width, batch_first=True, bidirectional=True)]
        rnn += [
            nn.LSTM(2 * width if number == 1 else width, width, batch_first=True)
            for number in range(1, layers)
        ]
        self.rnn_layers = nn.ModuleList(rnn)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.rnn_layers):
            y, _ = layer(self.dropout(x))
            x = y + x if number >= 2 else y
        return x


class _Decoder(nn.Module):
    """Layers that read the attention of the first; shortcuts from the third on."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.att_rnn = nn.LSTM(width, width, batch_first=True)
        self.attention = _Attention(width)
        self.rnn_layers = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x, _ = self.att_rnn(self.dropout(x))
        attended = self.attention(x, context)
        for number, layer in enumerate(self.rnn_layers):
            y, _ = layer(torch.cat([self.dropout(x), attended], 2))
            x = y + x if number >= 1 else y
        return x


class GNMT(nn.Module):
    """Ids of source, target and next words, each `(B, S)`, to the loss."""

    def __init__(
        self,
        *,
        vocabulary: int = 32320,
        width: int = 1024,
        layers: int = 4,
        dropout: float = 0.2,
        smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedder = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.encoder = _Encoder(width, layers, dropout)
        self.decoder = _Decoder(width, layers, dropout)
        self.classifier = nn.Linear(width, vocabulary)
        self.smoothing = smoothing

    def forward(self, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        context = self.encoder(self.embedder(source))
        x = self.decoder(self.embedder(target), context)
        logits = self.classifier(x).flatten(0, 1)
        return functional.cross_entropy(logits, following.flatten(), label_smoothing=self.smoothing)


build = GNMT


def example_inputs(
    batch: int, sequence_length: int, *, vocabulary: int = 32320
) -> tuple[Tensor, ...]:
    """Return ids of the source, of the target, and of the word after each target word."""
    shape = (batch, sequence_length)
    return tuple(torch.randint(0, vocabulary, shape) for _ in range(3))

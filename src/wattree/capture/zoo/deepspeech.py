"""Deep Speech 2 [1]: convolutions over a spectrogram, then recurrent layers in both directions.

The output is the log-probability of each letter at each step; the CTC loss, whose work depends on
the transcripts and is small compared with the layers, is left out. All samples have the same
length.

References:
    [1] D. Amodei et al., "Deep Speech 2", ICML 2016, arXiv:1512.02595.
    [2] S. Naren, deepspeech.pytorch: the common implementation; its sizes are the defaults here
        (two convolutions of 32 channels, five bidirectional layers of 1024, 29 letters).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Frequencies of a spectrogram with windows of 20 ms at 16 kHz: 320 / 2 + 1.
_FREQUENCIES = 161


class _RecurrentLayer(nn.Module):
    """Batch norm over features, and a layer that adds up its two directions."""

    def __init__(self, width_in: int, width: int, cell: type[nn.Module], *, norm: bool) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(width_in) if norm else None
        self.rnn = cell(width_in, width, bidirectional=True, batch_first=True, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_norm is not None:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        x, _ = self.rnn(x)
        return x.view(x.shape[0], x.shape[1], 2, -1).sum(2)


class DeepSpeech2(nn.Module):
    """Spectrograms `(B, 1, 161, frames)` to log-probabilities `(B, steps, letters)`.

    Args:
        cell: `lstm` or `gru`.
    """

    def __init__(
        self, *, width: int = 1024, layers: int = 5, cell: str = "lstm", letters: int = 29
    ) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        height = ((_FREQUENCIES + 1) // 2 + 1) // 2
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnns = nn.Sequential(
            *(
                _RecurrentLayer(width if number else 32 * height, width, kind, norm=number > 0)
                for number in range(layers)
            )
        )
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, letters, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(1, 2).transpose(1, 2)
        x = self.rnns(x)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return functional.log_softmax(self.fc(x), -1)


build = DeepSpeech2


def example_inputs(batch: int, *, frames: int = 1600) -> tuple[Tensor]:
    """Return spectrograms; a frame is 10 ms."""
    return (torch.randn(batch, 1, _FREQUENCIES, frames),)

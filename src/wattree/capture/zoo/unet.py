"""U-Net [1] with padded convolutions, so that the output has the size of the input.

References:
    [1] O. Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation",
        MICCAI 2015, arXiv:1505.04597, figure 1 (there without padding).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def _double(features_in: int, features: int, *, norm: bool) -> nn.Sequential:
    parts: list[nn.Module] = []
    for width in (features_in, features):
        parts.append(nn.Conv2d(width, features, 3, padding=1, bias=not norm))
        if norm:
            parts.append(nn.BatchNorm2d(features))
        parts.append(nn.ReLU(inplace=True))
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Images `(B, channels, H, W)` to logits of each pixel `(B, classes, H, W)`.

    Args:
        width: Channels of the first level; each further one has twice as many.
        depth: How often the image is halved.
        norm: Whether batch norm follows each convolution, as in most implementations.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 2,
        width: int = 64,
        depth: int = 4,
        norm: bool = True,
    ) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double(a, b, norm=norm) for a, b in pairwise([channels, *sizes]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(_double(2 * a, a, norm=norm) for a in sizes[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skipped.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([skipped[level], self.grow[level](x)], 1))
        return self.head(x)


build = UNet


def example_inputs(batch: int, *, channels: int = 3, image_size: int = 512) -> tuple[Tensor]:
    """Return a batch of images."""
    return (torch.randn(batch, channels, image_size, image_size),)

"""VGG [1]: stacks of 3×3 convolutions and three fully connected layers.

References:
    [1] K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
        Recognition", ICLR 2015, arXiv:1409.1556, table 1: configurations A, B, D, E.
"""

from __future__ import annotations

from torch import Tensor, nn

from wattree.capture.zoo.layers import images

#: Layers → convolutions of each stage.
_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def features(layers: int, *, norm: bool = False) -> nn.Sequential:
    """Return the convolutional part, pooled after each stage."""
    parts: list[nn.Module] = []
    width_in = 3
    for convolutions, width in zip(_STAGES[layers], (64, 128, 256, 512, 512), strict=True):
        for _ in range(convolutions):
            parts.append(nn.Conv2d(width_in, width, 3, padding=1))
            if norm:
                parts.append(nn.BatchNorm2d(width))
            parts.append(nn.ReLU(inplace=True))
            width_in = width
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts)


class VGG(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`; 11, 13, 16 or 19 layers."""

    def __init__(
        self, *, layers: int = 16, norm: bool = False, classes: int = 1000, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.features = features(layers, norm=norm)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


build = VGG
example_inputs = images

"""ShuffleNetV2 [1]: half of the channels pass by, then the halves are interleaved.

References:
    [1] N. Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design",
        ECCV 2018, arXiv:1807.11164, table 5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wattree.capture.zoo.layers import conv_norm, images

#: Width multiplier → channels of the stages and of the last convolution.
_WIDTHS = {
    0.5: (48, 96, 192, 1024),
    1.0: (116, 232, 464, 1024),
    1.5: (176, 352, 704, 1024),
    2.0: (244, 488, 976, 2048),
}


def _shuffled(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
    return x.reshape(batch, channels, height, width)


class _Unit(nn.Module):
    def __init__(self, features_in: int, features: int, stride: int) -> None:
        super().__init__()
        half = features // 2
        self.stride = stride
        self.branch1 = nn.Sequential()
        if stride == 2:
            self.branch1 = nn.Sequential(
                conv_norm(
                    features_in, features_in, 3, stride=2, groups=features_in, activation=None
                ),
                conv_norm(features_in, half, 1),
            )
        self.branch2 = nn.Sequential(
            conv_norm(features_in if stride == 2 else half, half, 1),
            conv_norm(half, half, 3, stride=stride, groups=half, activation=None),
            conv_norm(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            return _shuffled(torch.cat([self.branch1(x), self.branch2(x)], 1))
        left, right = x.chunk(2, 1)
        return _shuffled(torch.cat([left, self.branch2(right)], 1))


class ShuffleNetV2(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`; width 0.5, 1.0, 1.5 or 2.0."""

    def __init__(self, *, multiplier: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        *stages, last = _WIDTHS[multiplier]
        self.conv1 = conv_norm(3, 24, 3, stride=2)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        width = 24
        parts: list[nn.Module] = []
        for features, repeats in zip(stages, (4, 8, 4), strict=True):
            parts.append(
                nn.Sequential(
                    _Unit(width, features, 2),
                    *(_Unit(features, features, 1) for _ in range(repeats - 1)),
                )
            )
            width = features
        self.stages = nn.Sequential(*parts)
        self.conv5 = conv_norm(width, last, 1)
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv5(self.stages(self.maxpool(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


build = ShuffleNetV2
example_inputs = images

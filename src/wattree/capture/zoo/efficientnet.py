"""EfficientNet b0 to b7 [1], and NVIDIA's with wider squeeze and excitation [2].

Left out is stochastic depth, which drops whole residual branches of single samples in training.

References:
    [1] M. Tan, Q. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
        ICML 2019, arXiv:1905.11946, table 1.
    [2] NVIDIA, DeepLearningExamples, PyTorch/Classification/ConvNets/efficientnet: the squeezed
        channels are a quarter of the expanded ones, not of those that come in.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn

from wattree.capture.zoo.layers import SqueezeExcite, conv_norm, divisible, images

_silu = partial(nn.SiLU, inplace=True)

#: b0: (expansion, kernel, stride of the first, channels, blocks).
_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip


class _MBConv(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(
        self,
        features_in: int,
        features: int,
        *,
        expansion: int,
        kernel: int,
        stride: int,
        wide: bool,
        epsilon: float,
    ) -> None:
        super().__init__()
        norm = partial(conv_norm, epsilon=epsilon)
        expanded = features_in * expansion
        squeezed = max(1, (expanded if wide else features_in) // 4)
        parts: list[nn.Module] = []
        if expansion != 1:
            parts.append(norm(features_in, expanded, 1, activation=_silu))
        parts += [
            norm(expanded, expanded, kernel, stride=stride, groups=expanded, activation=_silu),
            SqueezeExcite(expanded, squeezed, activation=_silu),
            norm(expanded, features, 1, activation=None),
        ]
        self.block = nn.Sequential(*parts)
        self.has_shortcut = stride == 1 and features_in == features

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        if self.has_shortcut:
            y += x
        return y


class EfficientNet(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`.

    Args:
        width: Factor on the channels of b0.
        depth: Factor on its blocks.
        wide_squeeze: Squeeze to a quarter of the expanded channels.
        classes: Logits.
    """

    def __init__(
        self,
        *,
        width: float = 1.0,
        depth: float = 1.0,
        dropout: float = 0.2,
        wide_squeeze: bool = False,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        epsilon = 1e-3 if depth >= 2.2 else 1e-5  # the published b5 to b7 were trained so
        features = divisible(32 * width)
        parts: list[nn.Module] = [
            conv_norm(3, features, 3, stride=2, epsilon=epsilon, activation=_silu)
        ]
        for expansion, kernel, stride, channels, blocks in _STAGES:
            wider = divisible(channels * width)
            for position in range(math.ceil(blocks * depth)):
                parts.append(
                    _MBConv(
                        features,
                        wider,
                        expansion=expansion,
                        kernel=kernel,
                        stride=1 if position else stride,
                        wide=wide_squeeze,
                        epsilon=epsilon,
                    )
                )
                features = wider
        parts.append(conv_norm(features, 4 * features, 1, epsilon=epsilon, activation=_silu))
        self.features = nn.Sequential(*parts)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(4 * features, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


build = EfficientNet
example_inputs = images

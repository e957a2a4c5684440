"""MobileNet v1 [1], v2 [2] and v3-large [3].

References:
    [1] A. Howard et al., "MobileNets", 2017, arXiv:1704.04861, table 1.
    [2] M. Sandler et al., "MobileNetV2", CVPR 2018, arXiv:1801.04381, table 2.
    [3] A. Howard et al., "Searching for MobileNetV3", ICCV 2019, arXiv:1905.02244, table 1.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from wattree.capture.zoo.layers import (
    Activation,
    SqueezeExcite,
    conv_norm,
    divisible,
    images,
)

_relu = partial(nn.ReLU, inplace=True)
_relu6 = partial(nn.ReLU6, inplace=True)
_hardswish = partial(nn.Hardswish, inplace=True)

#: v1: (channels, stride) of each separable convolution.
_V1 = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    *((512, 1),) * 5, (1024, 2), (1024, 1),
)  # fmt: skip
#: v2: (expansion, channels, blocks, stride of the first).
_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
#: v3-large: (kernel, expanded, channels, squeeze and excite, hard swish, stride).
_V3_LARGE = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


class InvertedResidual(nn.Module):
    """Expands by a 1×1 convolution, convolves each channel alone, and projects back.

    Args:
        features_in: Channels in.
        expanded: Channels between; the expansion is left out where they equal `features_in`.
        features: Channels out; a shortcut where they equal `features_in` at stride 1.
        squeezed: Channels of a squeeze and excitation before the projection; None: there is none.
        activation: After expansion and depthwise convolution.
    """

    def __init__(
        self,
        features_in: int,
        expanded: int,
        features: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        squeezed: int | None = None,
        activation: Activation = _relu6,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        norm = partial(conv_norm, epsilon=epsilon)
        parts: list[nn.Module] = []
        if expanded != features_in:
            parts.append(norm(features_in, expanded, 1, activation=activation))
        parts.append(
            norm(expanded, expanded, kernel, stride=stride, groups=expanded, activation=activation)
        )
        if squeezed is not None:
            parts.append(SqueezeExcite(expanded, squeezed, gate=nn.Hardsigmoid))
        parts.append(norm(expanded, features, 1, activation=None))
        self.block = nn.Sequential(*parts)
        self.has_shortcut = stride == 1 and features_in == features

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.has_shortcut else self.block(x)


class _Classifier(nn.Module):
    """Features, their mean over positions, and linear layers."""

    def __init__(self, features: nn.Module, *classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _v1(classes: int) -> nn.Module:
    width = 32
    parts = [conv_norm(3, width, 3, stride=2)]
    for features, stride in _V1:
        parts += [
            conv_norm(width, width, 3, stride=stride, groups=width),
            conv_norm(width, features, 1),
        ]
        width = features
    return _Classifier(nn.Sequential(*parts), nn.Linear(width, classes))


def _v2(classes: int, multiplier: float) -> nn.Module:
    width = divisible(32 * multiplier)
    parts: list[nn.Module] = [conv_norm(3, width, 3, stride=2, activation=_relu6)]
    for expansion, channels, blocks, stride in _V2:
        features = divisible(channels * multiplier)
        for position in range(blocks):
            first = stride if position == 0 else 1
            parts.append(InvertedResidual(width, width * expansion, features, stride=first))
            width = features
    last = divisible(1280 * max(1.0, multiplier))
    parts.append(conv_norm(width, last, 1, activation=_relu6))
    return _Classifier(nn.Sequential(*parts), nn.Dropout(0.2), nn.Linear(last, classes))


def _v3_large(classes: int) -> nn.Module:
    norm = partial(conv_norm, epsilon=1e-3)
    width = 16
    parts: list[nn.Module] = [norm(3, width, 3, stride=2, activation=_hardswish)]
    for kernel, expanded, features, squeezes, is_hard, stride in _V3_LARGE:
        parts.append(
            InvertedResidual(
                width,
                expanded,
                features,
                kernel=kernel,
                stride=stride,
                squeezed=divisible(expanded / 4) if squeezes else None,
                activation=_hardswish if is_hard else _relu,
                epsilon=1e-3,
            )
        )
        width = features
    parts.append(norm(width, 960, 1, activation=_hardswish))
    return _Classifier(
        nn.Sequential(*parts),
        nn.Linear(960, 1280),
        _hardswish(),
        nn.Dropout(0.2),
        nn.Linear(1280, classes),
    )


def build(*, version: int = 2, multiplier: float = 1.0, classes: int = 1000) -> nn.Module:
    """Return a MobileNet of version 1, 2 or 3 (large).

    Args:
        multiplier: Width of version 2.
        classes: Logits.
    """
    if version == 1:
        return _v1(classes)
    return _v2(classes, multiplier) if version == 2 else _v3_large(classes)


example_inputs = images

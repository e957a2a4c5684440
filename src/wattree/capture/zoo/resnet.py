"""ResNet [1] and wider variants: ResNeXt [2], Wide ResNet [3], squeeze and excitation [4].

The stride of a bottleneck stands in its 3×3 convolution ("v1.5"), as in the public weights.

References:
    [1] K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385.
    [2] S. Xie et al., "Aggregated Residual Transformations", CVPR 2017, arXiv:1611.05431.
    [3] S. Zagoruyko, N. Komodakis, "Wide Residual Networks", BMVC 2016, arXiv:1605.07146.
    [4] J. Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018, arXiv:1709.01507.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from wattree.capture.zoo.layers import SqueezeExcite, divisible, images

#: Layers → (residual blocks of each stage, whether they are bottlenecks).
_STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}

Norm = Callable[[int], nn.Module]


def _shortcut(features_in: int, features: int, stride: int, norm: Norm) -> nn.Module | None:
    if stride == 1 and features_in == features:
        return None
    return nn.Sequential(nn.Conv2d(features_in, features, 1, stride, bias=False), norm(features))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, features_in: int, planes: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features_in, planes, 3, stride, 1, bias=False)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = norm(planes)
        self.downsample = _shortcut(features_in, planes, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    """A 3×3 convolution of fewer channels between two 1×1, with a shortcut.

    Args:
        features_in: Channels in.
        planes: A quarter of the channels out.
        stride: Of the 3×3 convolution.
        groups: Of the 3×3 convolution.
        squeeze_excite: Gate the channels, squeezed 16-fold, before the sum.
    """

    expansion = 4

    def __init__(
        self,
        features_in: int,
        planes: int,
        stride: int,
        norm: Norm,
        *,
        groups: int = 1,
        width: int | None = None,
        squeeze_excite: bool = False,
    ) -> None:
        super().__init__()
        width = width or planes
        features = planes * self.expansion
        self.conv1 = nn.Conv2d(features_in, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, features, 1, bias=False)
        self.bn3 = norm(features)
        self.se = SqueezeExcite(features, divisible(features / 16)) if squeeze_excite else None
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(features_in, features, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.se is not None:
            y = self.se(y)
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`.

    Args:
        layers: 18, 34, 50, 101 or 152.
        groups: Of the 3×3 convolutions of bottlenecks.
        width_per_group: Their channels per group in the first stage.
        classes: Logits.
        norm: Makes a batch norm of so many channels.
    """

    def __init__(
        self,
        layers: int,
        *,
        groups: int = 1,
        width_per_group: int = 64,
        squeeze_excite: bool = False,
        classes: int = 1000,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        blocks, is_bottleneck = _STAGES[layers]
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = norm(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        features = 64
        for stage, count in enumerate(blocks):
            planes = 64 << stage
            parts: list[nn.Module] = []
            for position in range(count):
                stride = 2 if stage and not position else 1
                if is_bottleneck:
                    parts.append(
                        Bottleneck(
                            features,
                            planes,
                            stride,
                            norm,
                            groups=groups,
                            width=planes * width_per_group // 64 * groups,
                            squeeze_excite=squeeze_excite,
                        )
                    )
                else:
                    parts.append(BasicBlock(features, planes, stride, norm))
                features = planes * (4 if is_bottleneck else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*parts))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(features, classes)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the output of each of the four stages."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        outputs = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            outputs.append(x)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.stages(x)[-1]).flatten(1))


def build(
    *,
    layers: int = 50,
    groups: int = 1,
    width_per_group: int = 64,
    squeeze_excite: bool = False,
    classes: int = 1000,
) -> nn.Module:
    """Return a ResNet with 18, 34, 50, 101 or 152 layers, or a wider relative of it."""
    return ResNet(
        layers,
        groups=groups,
        width_per_group=width_per_group,
        squeeze_excite=squeeze_excite,
        classes=classes,
    )


example_inputs = images

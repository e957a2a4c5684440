"""DenseNet [1]: each layer reads the outputs of all layers before it.

References:
    [1] G. Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, arXiv:1608.06993,
        table 1.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from wattree.capture.zoo.layers import images

#: Layers → (layers of each block, growth, features of the stem).
_BLOCKS = {
    121: ((6, 12, 24, 16), 32, 64),
    161: ((6, 12, 36, 24), 48, 96),
    169: ((6, 12, 32, 32), 32, 64),
    201: ((6, 12, 48, 32), 32, 64),
}


class _DenseLayer(nn.Module):
    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(features)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(features, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, earlier: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(earlier, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class _DenseBlock(nn.Module):
    def __init__(self, layers: int, features: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _DenseLayer(features + position * growth, growth) for position in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs))
        return torch.cat(outputs, 1)


def _transition(features: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(features),
        nn.ReLU(inplace=True),
        nn.Conv2d(features, features // 2, 1, bias=False),
        nn.AvgPool2d(2),
    )


class DenseNet(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`; 121, 161, 169 or 201 layers."""

    def __init__(self, *, layers: int = 121, classes: int = 1000) -> None:
        super().__init__()
        counts, growth, features = _BLOCKS[layers]
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, features, 7, 2, 3, bias=False),
            norm0=nn.BatchNorm2d(features),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, 2, 1),
        )
        for number, count in enumerate(counts, start=1):
            parts[f"denseblock{number}"] = _DenseBlock(count, features, growth)
            features += count * growth
            if number < len(counts):
                parts[f"transition{number}"] = _transition(features)
                features //= 2
        parts["norm5"] = nn.BatchNorm2d(features)
        parts["relu5"] = nn.ReLU(inplace=True)
        self.features = nn.Sequential(parts)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


build = DenseNet
example_inputs = images

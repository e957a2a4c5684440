"""SSD300 [1] on VGG-16, or on ResNet-50 as NVIDIA trains it [2], with the MultiBox loss.

Targets (offsets and class of every default box) are inputs: matching boxes with objects is part of
data loading. Hard negatives are chosen by rank, as [2] does, so that no size depends on values.

References:
    [1] W. Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, arXiv:1512.02325.
    [2] NVIDIA, DeepLearningExamples, PyTorch/Detection/SSD: the stride of the fourth stage of
        ResNet-50 is 1, and the fifth is left out.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.layers import conv_norm
from wattree.capture.zoo.resnet import ResNet
from wattree.capture.zoo.vgg import features as vgg_features

#: Default boxes at each position of the six maps.
_BOXES = (4, 6, 6, 6, 4, 4)
#: Sides of the maps for images of 300 × 300.
_SIDES = (38, 19, 10, 5, 3, 1)
_BOX_COUNT = sum(side**2 * boxes for side, boxes in zip(_SIDES, _BOXES, strict=True))


class _VGGMaps(nn.Module):
    """VGG-16 to `conv4_3`, then dilated convolutions and ever smaller maps."""

    widths = (512, 1024, 512, 256, 256, 256)

    def __init__(self) -> None:
        super().__init__()
        layers = list(vgg_features(16))
        layers[16] = nn.MaxPool2d(2, ceil_mode=True)  # 75 positions become 38
        self.features = nn.Sequential(*layers[:23])
        self.scale_weight = nn.Parameter(torch.ones(512) * 20)
        self.conv5 = nn.Sequential(
            *layers[23:30],
            nn.MaxPool2d(3, 1, 1),
            nn.Conv2d(512, 1024, 3, padding=6, dilation=6),
            nn.ReLU(inplace=True),
            nn.Conv2d(1024, 1024, 1),
            nn.ReLU(inplace=True),
        )
        sizes = ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
        extra: list[nn.Module] = []
        width = 1024
        for inner, features, stride, padding in sizes:
            extra.append(
                nn.Sequential(
                    nn.Conv2d(width, inner, 1),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(inner, features, 3, stride, padding),
                    nn.ReLU(inplace=True),
                )
            )
            width = features
        self.extra = nn.ModuleList(extra)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.features(x)
        maps = [self.scale_weight.view(1, -1, 1, 1) * functional.normalize(x)]
        x = self.conv5(x)
        maps.append(x)
        for block in self.extra:
            x = block(x)
            maps.append(x)
        return maps


class _ResNetMaps(nn.Module):
    """ResNet-50 to its third stage of residual blocks, then ever smaller maps."""

    widths = (1024, 512, 512, 256, 256, 256)

    def __init__(self) -> None:
        super().__init__()
        backbone = ResNet(50)
        first = backbone.layer3[0]
        first.conv2.stride = first.downsample[0].stride = (1, 1)
        self.feature_extractor = nn.Sequential(
            backbone.conv1,
            backbone.bn1,
            backbone.relu,
            backbone.maxpool,
            backbone.layer1,
            backbone.layer2,
            backbone.layer3,
        )
        inner = (256, 256, 128, 128, 128)
        self.additional_blocks = nn.ModuleList(
            nn.Sequential(
                conv_norm(width, between, 1),
                conv_norm(between, features, 3, stride=2)
                if number < 3
                else conv_norm(between, features, 3, padding=0),
            )
            for number, ((width, features), between) in enumerate(
                zip(pairwise(self.widths), inner, strict=True)
            )
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.feature_extractor(x)
        maps = [x]
        for block in self.additional_blocks:
            x = block(x)
            maps.append(x)
        return maps


def _multi_box_loss(offsets: Tensor, scores: Tensor, target: Tensor, label: Tensor) -> Tensor:
    """Return smooth L1 of the boxes with objects and cross-entropy of these and the hardest others.

    Args:
        offsets: Shape `(B, 4, boxes)`.
        scores: Shape `(B, classes, boxes)`.
        target: As `offsets`.
        label: Class of each box, 0 for background. Shape `(B, boxes)`.
    """
    positive = label > 0
    count = positive.sum(1)
    distance = functional.smooth_l1_loss(offsets, target, reduction="none").sum(1)
    location = (positive.float() * distance).sum(1)
    entropy = functional.cross_entropy(scores, label, reduction="none")
    negative = entropy.detach().masked_fill(positive, 0.0)
    rank = negative.argsort(1, descending=True).argsort(1)
    chosen = rank < (3 * count).clamp(max=label.shape[1])[:, None]
    confidence = (entropy * (positive.float() + chosen.float())).sum(1)
    return ((location + confidence) / count.float().clamp(min=1e-6)).mean()


class SSD300(nn.Module):
    """Images `(B, 3, 300, 300)` and targets of the default boxes to the loss."""

    def __init__(self, maps: _VGGMaps | _ResNetMaps, classes: int) -> None:
        super().__init__()
        self.backbone = maps
        self.classes = classes
        sizes = tuple(zip(maps.widths, _BOXES, strict=True))
        self.loc = nn.ModuleList(nn.Conv2d(width, 4 * n, 3, padding=1) for width, n in sizes)
        self.conf = nn.ModuleList(nn.Conv2d(width, classes * n, 3, padding=1) for width, n in sizes)

    def forward(self, x: Tensor, target: Tensor, label: Tensor) -> Tensor:
        maps = self.backbone(x)
        batch = x.shape[0]
        offsets = [head(m).reshape(batch, 4, -1) for head, m in zip(self.loc, maps, strict=True)]
        scores = [
            head(m).reshape(batch, self.classes, -1)
            for head, m in zip(self.conf, maps, strict=True)
        ]
        return _multi_box_loss(torch.cat(offsets, 2), torch.cat(scores, 2), target, label)


def build(*, backbone: str = "resnet50", classes: int = 81) -> nn.Module:
    """Return an SSD300 on `resnet50` or `vgg16`; `classes` include the background."""
    return SSD300(_ResNetMaps() if backbone == "resnet50" else _VGGMaps(), classes)


def example_inputs(batch: int) -> tuple[Tensor, ...]:
    """Return images, box offsets and box classes."""
    return (
        torch.randn(batch, 3, 300, 300),
        torch.randn(batch, 4, _BOX_COUNT),
        torch.zeros(batch, _BOX_COUNT, dtype=torch.long),
    )

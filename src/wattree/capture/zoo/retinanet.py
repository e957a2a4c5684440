"""RetinaNet [1] on ResNet-50, or on ResNeXt-50 as MLPerf trains it [2], with the focal loss.

Targets (offsets and class of every anchor) are inputs: matching anchors with objects is left out.
Batch norm of the backbone is frozen, and so are its first layers.

References:
    [1] T.-Y. Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, arXiv:1708.02002.
    [2] MLCommons, training/single_stage_detector: ResNeXt-50 32x4d, 264 classes of OpenImages,
        images of 800 × 800.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.resnet import ResNet

#: Anchors at each position: three sizes and three shapes.
_ANCHORS = 9


class _FrozenBatchNorm(nn.Module):
    """Batch norm with constant statistics and scales."""

    def __init__(self, features: int) -> None:
        super().__init__()
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(features))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.weight * (self.running_var + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        shift = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        return x * scale + shift


class FeaturePyramid(nn.Module):
    """Five maps of 256 channels, each half as wide as the one before."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(nn.Conv2d(width, 256, 1) for width in widths)
        self.layer_blocks = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in widths)
        self.p6 = nn.Conv2d(256, 256, 3, 2, 1)
        self.p7 = nn.Conv2d(256, 256, 3, 2, 1)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        x = self.inner_blocks[-1](maps[-1])
        outputs = [self.layer_blocks[-1](x)]
        for level in reversed(range(len(maps) - 1)):
            inner = self.inner_blocks[level](maps[level])
            x = inner + functional.interpolate(x, size=inner.shape[-2:], mode="nearest")
            outputs.insert(0, self.layer_blocks[level](x))
        outputs.append(self.p6(outputs[-1]))
        outputs.append(self.p7(functional.relu(outputs[-1])))
        return outputs


class _Head(nn.Module):
    """Four convolutions and one with the outputs of each anchor; shared by all maps."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.values = values
        self.conv = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True))
                for _ in range(4)
            )
        )
        self.last = nn.Conv2d(256, _ANCHORS * values, 3, padding=1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        outputs = []
        for each in maps:
            x = self.last(self.conv(each))
            batch, _, height, width = x.shape
            x = x.view(batch, _ANCHORS, self.values, height, width).permute(0, 3, 4, 1, 2)
            outputs.append(x.reshape(batch, -1, self.values))
        return torch.cat(outputs, 1)


def _loss(scores: Tensor, offsets: Tensor, target: Tensor, label: Tensor) -> Tensor:
    """Return focal loss and L1 of the anchors with objects, per such anchor.

    Args:
        scores: Logits. Shape `(B, anchors, classes)`.
        offsets: Shape `(B, anchors, 4)`.
        target: As `offsets`.
        label: Class of each anchor, -1 for background. Shape `(B, anchors)`.
    """
    positive = label >= 0
    count = positive.sum().clamp(min=1).float()
    wanted = functional.one_hot(label.clamp(min=0), scores.shape[-1]).to(scores.dtype)
    wanted = wanted * positive[..., None]
    chance = torch.sigmoid(scores)
    entropy = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    right = chance * wanted + (1 - chance) * (1 - wanted)
    weight = 0.25 * wanted + 0.75 * (1 - wanted)
    focal = (weight * entropy * (1 - right) ** 2).sum()
    distance = ((offsets - target).abs() * positive[..., None]).sum()
    return (focal + distance) / count


class RetinaNet(nn.Module):
    """Images `(B, 3, H, W)` and targets of the anchors to the loss."""

    def __init__(self, backbone: ResNet, *, classes: int) -> None:
        super().__init__()
        del backbone.fc
        for name, parameter in backbone.named_parameters():
            if name.startswith(("conv1", "layer1")):
                parameter.requires_grad_(False)
        self.body = backbone
        self.fpn = FeaturePyramid((512, 1024, 2048))
        self.classification_head = _Head(classes)
        self.regression_head = _Head(4)

    def forward(self, x: Tensor, target: Tensor, label: Tensor) -> Tensor:
        maps = self.fpn(self.body.stages(x)[1:])
        return _loss(self.classification_head(maps), self.regression_head(maps), target, label)


def build(*, groups: int = 1, width_per_group: int = 64, classes: int = 91) -> nn.Module:
    """Return a RetinaNet on a ResNet-50 or a wider relative of it."""
    backbone = ResNet(50, groups=groups, width_per_group=width_per_group, norm=_FrozenBatchNorm)
    return RetinaNet(backbone, classes=classes)


def example_inputs(batch: int, *, image_size: int = 800) -> tuple[Tensor, ...]:
    """Return images, anchor offsets and anchor classes."""
    anchors = sum(math.ceil(image_size / (8 << level)) ** 2 for level in range(5)) * _ANCHORS
    return (
        torch.randn(batch, 3, image_size, image_size),
        torch.randn(batch, anchors, 4),
        torch.zeros(batch, anchors, dtype=torch.long),
    )

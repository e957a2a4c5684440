"""Networks that find objects and poses, in plain PyTorch, for `reports_vision.yaml`.

Faster, Mask and Keypoint R-CNN (arXiv:1703.06870) and RetinaNet (arXiv:1708.02002) on ResNets as
detectron2 and maskrcnn-benchmark have them, without choice of anchors and proposals; the networks
of Simple Baselines (arXiv:1804.06208).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_DEPTHS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


class Fixed(nn.Module):
    """Batch norm with fixed statistics and scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled and shifted input."""
        scale = self.weight * (self.variance + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class _Unit(nn.Module):
    """A residual block of two or three convolutions."""

    def __init__(
        self, inputs: int, width: int, outputs: int, stride: int, *, dilation: int, groups: int,
        norm: type[nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        at = (dilation, dilation)
        if outputs > width or groups > 1:
            self.convolutions = nn.ModuleList(
                [
                    nn.Conv2d(inputs, width, 1, bias=False),
                    nn.Conv2d(width, width, 3, stride, *at, groups=groups, bias=False),
                    nn.Conv2d(width, outputs, 1, bias=False),
                ]
            )
        else:
            self.convolutions = nn.ModuleList(
                [
                    nn.Conv2d(inputs, width, 3, stride, *at, bias=False),
                    nn.Conv2d(width, outputs, 3, 1, *at, bias=False),
                ]
            )
        self.norms = nn.ModuleList(norm(one.out_channels) for one in self.convolutions)
        self.bypass: nn.Module | None = None
        if inputs != outputs or stride > 1:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.bypass = nn.Sequential(convolution, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y, last = x, len(self.norms) - 1
        for index, (one, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(one(y))
            y = functional.relu(y, inplace=True) if index < last else y
        return functional.relu(y + (x if self.bypass is None else self.bypass(x)), inplace=True)


def stage(
    inputs: int, width: int, depth: int, stride: int, *, dilation: int = 1, wide: bool = True,
    groups: int = 1, base: int = 64, norm: type[nn.Module] = nn.BatchNorm2d,
) -> nn.Sequential:  # fmt: skip
    """Return a stage of residual blocks; `wide` ones end in four times the width."""
    outputs = 4 * width if wide else width
    inner = width * base * groups // 64
    blocks = []
    for index in range(depth):
        step = 1 if index else stride
        blocks.append(
            _Unit(inputs, inner, outputs, step, dilation=dilation, groups=groups, norm=norm)
        )
        inputs = outputs
    return nn.Sequential(*blocks)


class ResNet(nn.Module):
    """A ResNet that returns what its stages return."""

    def __init__(
        self, depth: int, *, dilated: int = 0, groups: int = 1, base: int = 64, stages: int = 4,
        frozen: int = 0, norm: type[nn.Module] = nn.BatchNorm2d, deep_stem: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        wide, inputs = depth >= 50, 64
        if deep_stem:
            shapes, parts = ((3, 32, 2), (32, 32, 1), (32, 64, 1)), []
            for before, after, stride in shapes:
                parts += [nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after)]
                parts.append(nn.ReLU(inplace=True))
            self.stem = nn.Sequential(*parts)
        else:
            first = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.stem = nn.Sequential(first, norm(64), nn.ReLU(inplace=True))
        self.stages = nn.ModuleList()
        for index, blocks in enumerate(_DEPTHS[depth][:stages]):
            spread = max(0, index - 3 + dilated)  # stages that keep their size
            width = 64 << index
            self.stages.append(
                stage(
                    inputs, width, blocks, 2 if index and not spread else 1, dilation=1 << spread,
                    wide=wide, groups=groups, base=base, norm=norm,
                )
            )  # fmt: skip
            inputs = 4 * width if wide else width
        for part in (self.stem, *self.stages)[:frozen]:
            part.requires_grad_(requires_grad=False)
        self.outputs = inputs

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return what each stage makes of the images."""
        x, kept = functional.max_pool2d(self.stem(x), 3, 2, 1), []
        for part in self.stages:
            x = part(x)
            kept.append(x)
        return kept


class _Pyramid(nn.Module):
    def __init__(self, widths: list[int], outputs: int = 256) -> None:
        super().__init__()
        self.across = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in widths)
        self.after = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in widths)

    def forward(self, found: list[Tensor]) -> list[Tensor]:
        maps = [one(x) for one, x in zip(self.across, found, strict=True)]
        for index in range(len(maps) - 1, 0, -1):
            larger = functional.interpolate(maps[index], size=maps[index - 1].shape[-2:])
            maps[index - 1] = maps[index - 1] + larger
        return [one(x) for one, x in zip(self.after, maps, strict=True)]


class _Proposals(nn.Module):
    def __init__(self, width: int, anchors: int) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(width, width, 3, padding=1)
        self.score, self.box = nn.Conv2d(width, anchors, 1), nn.Conv2d(width, 4 * anchors, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.hidden(x))
        return functional.softplus(self.score(x)).sum() + self.box(x).abs().sum()


def _regions(x: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Sample regions of a map: `size` by `size` bins of four points each (RoIAlign)."""
    steps = torch.linspace(0.0, 1.0, 2 * size, device=x.device)
    across = boxes[..., None, 0:1] + steps[:, None] * boxes[..., None, 2:3]
    down = boxes[..., None, 1:2] + steps[:, None] * boxes[..., None, 3:4]
    grid = torch.cat(
        [
            across[:, :, None].expand(-1, -1, 2 * size, -1, -1),
            down[:, :, :, None].expand(-1, -1, -1, 2 * size, -1),
        ],
        dim=-1,
    )
    found = functional.grid_sample(x, grid.flatten(1, 2), align_corners=False)
    found = functional.avg_pool2d(found, 2).unflatten(2, (boxes.shape[1], size))
    return found.transpose(1, 2).flatten(0, 1)


class _TwoStage(nn.Module):
    """R-CNN: proposals, boxes, and masks or key points of a quarter of the regions."""

    def __init__(self, depth: int, kind: str, neck: str, groups: int, base: int) -> None:
        super().__init__()
        self.kind, self.neck = kind, neck
        stages = 3 if neck == "c4" else 4
        self.backbone = ResNet(
            depth, dilated=1 if neck == "dc5" else 0, groups=groups, base=base, stages=stages,
            frozen=2, norm=Fixed,
        )  # fmt: skip
        self.pyramid = _Pyramid([256, 512, 1024, 2048]) if neck == "fpn" else None
        width = {"fpn": 256, "c4": 1024, "dc5": 2048}[neck]
        self.proposals = _Proposals(width, 3 if neck == "fpn" else 15)
        if kind == "proposals":
            return
        if neck == "c4":
            self.head: nn.Module = stage(1024, 512, 3, 2, norm=Fixed)
            last = 2048
        else:
            layers = [nn.Flatten(), nn.Linear(49 * width, 1024), nn.ReLU(inplace=True)]
            self.head = nn.Sequential(*layers, nn.Linear(1024, 1024), nn.ReLU(inplace=True))
            last = 1024
        self.classes, self.boxes = nn.Linear(last, 81), nn.Linear(last, 320)
        if kind in ("masks", "points"):
            inner, depth = (256, 4) if kind == "masks" else (512, 8)
            parts: list[nn.Module] = []
            for index in range(depth):
                before = inner if index else width
                parts += [nn.Conv2d(before, inner, 3, padding=1), nn.ReLU(inplace=True)]
            if kind == "masks":
                parts += [nn.ConvTranspose2d(inner, 256, 2, 2), nn.ReLU(), nn.Conv2d(256, 80, 1)]
            else:
                parts += [nn.ConvTranspose2d(inner, 17, 4, 2, 1)]
            self.shapes = nn.Sequential(*parts)

    def forward(self, x: Tensor, regions: Tensor) -> Tensor:
        found = self.backbone(x)
        if self.pyramid is not None:
            found = self.pyramid(found)
            found.append(found[-1][..., ::2, ::2])
        else:
            found = found[-1:]
        loss = torch.stack([self.proposals(one) for one in found]).sum()
        if self.kind == "proposals":
            return loss
        largest = found[1] if self.pyramid is not None else found[0]
        y = self.head(_regions(largest, regions, 14 if self.neck == "c4" else 7))
        y = y.mean(dim=(2, 3)) if self.neck == "c4" else y
        loss = loss - self.classes(y).log_softmax(dim=-1)[:, 0].sum() + self.boxes(y).abs().sum()
        if self.kind in ("masks", "points"):
            y = self.shapes(_regions(largest, regions[:, : regions.shape[1] // 4], 14))
            if self.kind == "points":
                y = functional.interpolate(y, scale_factor=2, mode="bilinear").flatten(2)
                return loss - y.log_softmax(dim=-1)[..., 0].sum()
            loss = loss + functional.softplus(y).sum()
        return loss


def two_stage(
    depth: int = 50, kind: str = "boxes", neck: str = "fpn", groups: int = 1, base: int = 64
) -> nn.Module:
    """Return an R-CNN for images and boxes (left, top, width, height in -1 to 1) of regions."""
    return _TwoStage(depth, kind, neck, groups, base)


class _OneStage(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.backbone = ResNet(depth, frozen=2, norm=Fixed)
        widths = [512, 1024, 2048] if depth >= 50 else [128, 256, 512]
        self.pyramid = _Pyramid(widths)
        self.sixth = nn.Conv2d(widths[-1], 256, 3, 2, 1)
        self.seventh = nn.Conv2d(256, 256, 3, 2, 1)
        self.score, self.box = self._head(9 * 80), self._head(9 * 4)

    @staticmethod
    def _head(outputs: int) -> nn.Sequential:
        parts: list[nn.Module] = []
        for _ in range(4):
            parts += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*parts, nn.Conv2d(256, outputs, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        kept = self.backbone(x)
        found = self.pyramid(kept[1:])
        sixth = self.sixth(kept[-1])
        found += [sixth, self.seventh(functional.relu(sixth))]
        losses = []
        for one in found:
            logits = self.score(one).float()
            chance = logits.sigmoid()
            focal = -0.25 * (1.0 - chance) ** 2.0 * functional.logsigmoid(logits)
            losses.append(focal.sum() + functional.smooth_l1_loss(self.box(one), one[:, :36]))
        return torch.stack(losses).sum()


def retinanet(depth: int = 50) -> nn.Module:
    """Return RetinaNet with focal loss, without its matching of anchors."""
    return _OneStage(depth)


class _Pose(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.backbone, parts, inputs = ResNet(depth), [], 2048
        for _ in range(3):
            parts += [nn.ConvTranspose2d(inputs, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256)]
            parts.append(nn.ReLU(inplace=True))
            inputs = 256
        self.head = nn.Sequential(*parts, nn.Conv2d(256, 17, 1))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return (self.head(self.backbone(x)[-1]) - wanted).square().mean()


def pose(depth: int = 50) -> nn.Module:
    """Return a ResNet with three transposed convolutions and heat maps of 17 points."""
    return _Pose(depth)


class _Contrast(nn.Module):
    """MoCo: an encoder, a slow copy of it and a queue of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = ResNet(50), ResNet(50)
        self.query_last, self.key_last = nn.Linear(2048, 128), nn.Linear(2048, 128)
        for part in (self.key, self.key_last):
            part.requires_grad_(requires_grad=False)
        self.register_buffer("queue", torch.ones(128, 65536))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        q = self.query_last(self.query(one)[-1].mean(dim=(2, 3)))
        q = functional.normalize(q, dim=1)
        with torch.no_grad():
            slow = [*self.key.parameters(), *self.key_last.parameters()]
            fast = [*self.query.parameters(), *self.query_last.parameters()]
            for mine, other in zip(slow, fast, strict=True):
                mine.data.mul_(0.999).add_(other.data, alpha=0.001)
            k = self.key_last(self.key(two)[-1].mean(dim=(2, 3)))
            k = functional.normalize(k, dim=1)
        logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ self.queue], dim=1) / 0.07
        return -logits.log_softmax(dim=1)[:, 0].mean()


def moco() -> nn.Module:
    """Return MoCo with ResNet-50 for two views of each image."""
    return _Contrast()

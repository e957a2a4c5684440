"""Networks with an output for every pixel, in plain PyTorch, for `reports_vision.yaml`.

PSPNet (arXiv:1612.01105) and UPerNet (arXiv:1807.10221) with the auxiliary head and the stem of
mmsegmentation, HRNet (arXiv:1902.09212) and the hourglass of CenterNet (arXiv:1904.07850).
"""

from __future__ import annotations

import torch
from detectors import ResNet, stage
from torch import Tensor, nn
from torch.nn import functional


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Pools(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.sizes = (1, 2, 3, 6)
        self.parts = nn.ModuleList(_conv(inputs, width, 1) for _ in self.sizes)
        self.last = _conv(inputs + 4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for size, part in zip(self.sizes, self.parts, strict=True):
            y = part(functional.adaptive_avg_pool2d(x, size))
            found.append(functional.interpolate(y, size=x.shape[-2:], mode="bilinear"))
        return self.last(torch.cat(found, dim=1))


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    logits = functional.interpolate(logits, size=labels.shape[-2:], mode="bilinear")
    return functional.cross_entropy(logits, labels)


class _Parser(nn.Module):
    def __init__(self, depth: int, classes: int, dilated: int, kind: str, *, deep: bool) -> None:
        super().__init__()
        self.backbone, self.kind = ResNet(depth, dilated=dilated, deep_stem=deep), kind
        widths = [256, 512, 1024, 2048] if depth >= 50 else [64, 128, 256, 512]
        inner = 512 if depth >= 50 else 128
        self.pools = _Pools(widths[-1], inner)
        if kind == "upernet":
            self.across = nn.ModuleList(_conv(width, inner, 1) for width in widths[:-1])
            self.after = nn.ModuleList(_conv(inner, inner) for _ in widths[:-1])
            self.joined = _conv(4 * inner, inner)
        self.last = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(inner, classes, 1))
        aside = _conv(widths[2], inner // 2)
        self.aside = nn.Sequential(aside, nn.Dropout2d(0.1), nn.Conv2d(inner // 2, classes, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        kept = self.backbone(x)
        y = self.pools(kept[-1])
        if self.kind == "upernet":
            maps = [one(part) for one, part in zip(self.across, kept[:-1], strict=True)] + [y]
            for index in range(3, 0, -1):
                size = maps[index - 1].shape[-2:]
                larger = functional.interpolate(maps[index], size=size, mode="bilinear")
                maps[index - 1] = maps[index - 1] + larger
            maps = [one(part) for one, part in zip(self.after, maps[:-1], strict=True)] + maps[3:]
            size = maps[0].shape[-2:]
            larger = [functional.interpolate(one, size=size, mode="bilinear") for one in maps[1:]]
            y = self.joined(torch.cat([maps[0], *larger], dim=1))
        return _loss(self.last(y), labels) + 0.4 * _loss(self.aside(kept[2]), labels)


def pspnet(
    depth: int = 50, classes: int = 19, dilated: int = 2, deep: bool = True  # noqa: FBT001, FBT002
) -> nn.Module:  # fmt: skip
    """Return PSPNet; `dilated` stages keep their size."""
    return _Parser(depth, classes, dilated, "pspnet", deep=deep)


def upernet(depth: int = 50, classes: int = 19) -> nn.Module:
    """Return UPerNet on a ResNet."""
    return _Parser(depth, classes, 0, "upernet", deep=True)


class _Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.one = _conv(inputs, outputs, 3, stride)
        self.two = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.bypass: nn.Module = nn.Identity()
        if inputs != outputs or stride > 1:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.bypass = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.two(self.one(x)) + self.bypass(x), inplace=True)


class _Exchange(nn.Module):
    """Four blocks on each branch, then every branch adds up what all others send."""

    def __init__(self, widths: list[int], outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*[_Basic(width, width) for _ in range(4)]) for width in widths
        )
        self.ways = nn.ModuleList()
        for to in range(outputs):
            row = nn.ModuleList()
            for source, width in enumerate(widths):
                if source > to:
                    flat = nn.Conv2d(width, widths[to], 1, bias=False)
                    row.append(nn.Sequential(flat, nn.BatchNorm2d(widths[to])))
                elif source < to:
                    steps: list[nn.Module] = [
                        _conv(width, width, 3, 2) for _ in range(to - source - 1)
                    ]
                    last = nn.Conv2d(width, widths[to], 3, 2, 1, bias=False)
                    row.append(nn.Sequential(*steps, last, nn.BatchNorm2d(widths[to])))
                else:
                    row.append(nn.Identity())
            self.ways.append(row)

    def forward(self, found: list[Tensor]) -> list[Tensor]:
        found = [branch(x) for branch, x in zip(self.branches, found, strict=True)]
        sums = []
        for to, row in enumerate(self.ways):
            total: Tensor | None = None
            for source, way in enumerate(row):
                y = way(found[source])
                if source > to:
                    y = functional.interpolate(y, size=found[to].shape[-2:])
                total = y if total is None else total + y
            sums.append(functional.relu(total))
        return sums


class _HighResolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 64, 3, 2), _conv(64, 64, 3, 2))
        self.first = stage(64, 64, 4, 1)
        widths = [width << index for index in range(4)]
        self.enter = nn.ModuleList([_conv(256, width), _conv(256, widths[1], 3, 2)])
        self.third, self.fourth = (
            _conv(widths[1], widths[2], 3, 2),
            _conv(widths[2], widths[3], 3, 2),
        )
        self.stages = nn.ModuleList()
        for branches, modules in ((2, 1), (3, 4), (4, 3)):
            parts = []
            for index in range(modules):
                last = branches == 4 and index == modules - 1
                parts.append(_Exchange(widths[:branches], 1 if last else branches))
            self.stages.append(nn.Sequential(*parts))
        self.last = nn.Conv2d(width, 17, 1)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        x = self.first(self.stem(x))
        found = self.stages[0]([one(x) for one in self.enter])
        found = self.stages[1]([*found, self.third(found[-1])])
        found = self.stages[2]([*found, self.fourth(found[-1])])
        return (self.last(found[0]) - wanted).square().mean()


def hrnet(width: int = 32) -> nn.Module:
    """Return HRNet for poses, with heat maps of 17 points."""
    return _HighResolution(width)


class _Hourglass(nn.Module):
    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        here, below = widths[:2]
        self.up = nn.Sequential(*[_Basic(here, here) for _ in range(depths[0])])
        down = [_Basic(here, below, 2)] + [_Basic(below, below) for _ in range(depths[0] - 1)]
        self.down = nn.Sequential(*down)
        if len(widths) > 2:
            self.inner: nn.Module = _Hourglass(widths[1:], depths[1:])
        else:
            self.inner = nn.Sequential(*[_Basic(below, below) for _ in range(depths[1])])
        back = [_Basic(below, below) for _ in range(depths[0] - 1)] + [_Basic(below, here)]
        self.back = nn.Sequential(*back)

    def forward(self, x: Tensor) -> Tensor:
        y = self.back(self.inner(self.down(x)))
        return self.up(x) + functional.interpolate(y, scale_factor=2)


class _Centers(nn.Module):
    def __init__(self, heads: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 128, 7, 2), _Basic(128, 256, 2))
        widths, depths = (256, 256, 384, 384, 384, 512), (2, 2, 2, 2, 2, 4)
        self.hourglasses = nn.ModuleList(_Hourglass(widths, depths) for _ in range(2))
        self.after = nn.ModuleList(_conv(256, 256) for _ in range(2))
        self.mixed, self.kept, self.between = (
            _conv(256, 256, 1),
            _conv(256, 256, 1),
            _Basic(256, 256),
        )
        self.heads = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, one, 1))
                for one in heads
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, loss = self.stem(x), []
        for index in range(2):
            y = self.after[index](self.hourglasses[index](x))
            found = [head(y) for head in self.heads[index]]
            loss += [functional.softplus(found[0]).sum(), *[one.abs().sum() for one in found[1:]]]
            if not index:
                x = self.between(functional.relu(self.kept(x) + self.mixed(y)))
        return torch.stack(loss).sum()


def hourglass(heads: tuple[int, ...] = (80, 2, 2)) -> nn.Module:
    """Return CenterNet's Hourglass-104 with heads of the given widths."""
    return _Centers(tuple(heads))

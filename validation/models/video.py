"""Networks of video clips in plain PyTorch, for `reports_vision.yaml`.

TSN (arXiv:1705.02953), TSM (arXiv:1811.08383), I3D (arXiv:1705.07750), SlowOnly and SlowFast
(arXiv:1812.03982), R(2+1)D (arXiv:1711.11248) as mmaction2 configures them.
"""

from __future__ import annotations

import torch
from detectors import ResNet
from torch import Tensor, nn
from torch.nn import functional

_CLASSES = 400


class _Frames(nn.Module):
    """ResNet-50 on frames, averaged; on request, neighbors exchange an eighth of their channels."""

    def __init__(self, frames: int, *, shifts: bool) -> None:
        super().__init__()
        self.frames, self.backbone = frames, ResNet(50)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(2048, _CLASSES)
        if shifts:
            for part in self.backbone.stages:
                for block in part:
                    block.convolutions[0] = _Shifted(block.convolutions[0], frames)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.backbone(x.flatten(0, 1))[-1].mean(dim=(2, 3))
        y = self.last(self.drop(y)).unflatten(0, (-1, self.frames)).mean(dim=1)
        return functional.cross_entropy(y, labels)


class _Shifted(nn.Module):
    def __init__(self, convolution: nn.Module, frames: int) -> None:
        super().__init__()
        self.convolution, self.frames = convolution, frames
        self.out_channels = convolution.out_channels

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(0, (-1, self.frames))
        part = x.shape[2] // 8
        back = torch.cat([x[:, 1:, :part], torch.zeros_like(x[:, :1, :part])], dim=1)
        ahead = torch.cat(
            [torch.zeros_like(x[:, :1, part : 2 * part]), x[:, :-1, part : 2 * part]], dim=1
        )
        x = torch.cat([back, ahead, x[:, :, 2 * part :]], dim=2)
        return self.convolution(x.flatten(0, 1))


def tsn() -> nn.Module:
    """Return TSN of three segments."""
    return _Frames(3, shifts=False)


def tsm() -> nn.Module:
    """Return TSM of eight frames."""
    return _Frames(8, shifts=True)


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, *, inflated: bool) -> None:
        super().__init__()
        size = 3 if inflated else 1
        self.one = nn.Conv3d(inputs, width, (size, 1, 1), padding=(size // 2, 0, 0), bias=False)
        at, pad = (1, stride, stride), (0, 1, 1)
        self.two = nn.Conv3d(width, width, (1, 3, 3), at, pad, bias=False)
        self.three = nn.Conv3d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm3d(one) for one in (width, width, 4 * width))
        self.bypass: nn.Module = nn.Identity()
        if inputs != 4 * width:
            convolution = nn.Conv3d(inputs, 4 * width, 1, at, bias=False)
            self.bypass = nn.Sequential(convolution, nn.BatchNorm3d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.one(x)), inplace=True)
        y = functional.relu(self.norms[1](self.two(y)), inplace=True)
        return functional.relu(self.norms[2](self.three(y)) + self.bypass(x), inplace=True)


class _Path(nn.Module):
    """ResNet-50 over time: what its stem and blocks span, and widths added by side paths."""

    def __init__(
        self, base: int, size: int, steps: tuple[int, int], inflated: tuple[str, ...],
        added: tuple[int, ...] = (0, 0, 0, 0),
    ) -> None:  # fmt: skip
        super().__init__()
        stem = nn.Conv3d(3, base, (size, 7, 7), (steps[0], 2, 2), (size // 2, 3, 3), bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(base), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool3d((1, 3, 3), (steps[1], 2, 2), (0, 1, 1))
        self.stages, inputs = nn.ModuleList(), base
        for index, spans in enumerate(inflated):
            width, blocks = base << index, []
            inputs += added[index]
            for block, span in enumerate(spans):
                stride = 2 if index and not block else 1
                blocks.append(_Block(inputs, width, stride, inflated=span == "1"))
                inputs = 4 * width
            self.stages.append(nn.Sequential(*blocks))


_NEVER, _ALWAYS = ("000", "0000", "000000", "000"), ("111", "1111", "111111", "111")
_LATE = ("000", "0000", "111111", "111")


class _Clip(nn.Module):
    def __init__(self, path: _Path, *, halves: bool) -> None:
        super().__init__()
        self.path, self.halves = path, halves
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(2048, _CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.path.pool(self.path.stem(x))
        for index, part in enumerate(self.path.stages):
            x = part(x)
            if not index and self.halves:
                x = functional.max_pool3d(x, (2, 1, 1), (2, 1, 1))
        y = self.last(self.drop(x.mean(dim=(2, 3, 4))))
        return functional.cross_entropy(y, labels)


def i3d(heavy: bool = False) -> nn.Module:  # noqa: FBT001, FBT002 - an argument of a job
    """Return I3D; the heavy one keeps all frames in its stem."""
    spans = ("111", "1010", "101010", "010")
    return _Clip(_Path(64, 5, (1, 1) if heavy else (2, 2), spans), halves=True)


def slow_only() -> nn.Module:
    """Return SlowOnly."""
    return _Clip(_Path(64, 1, (1, 1), _LATE), halves=False)


class _SlowFast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slow = _Path(64, 1, (1, 1), _LATE, (16, 64, 128, 256))
        self.fast = _Path(8, 5, (1, 1), _ALWAYS)
        self.sides = nn.ModuleList(
            nn.Conv3d(width, 2 * width, (5, 1, 1), (8, 1, 1), (2, 0, 0), bias=False)
            for width in (8, 32, 64, 128)
        )
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(2304, _CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        slow, fast = self.slow.stem(x[:, :, ::8]), self.fast.stem(x)
        slow, fast = self.slow.pool(slow), self.fast.pool(fast)
        for one, two, side in zip(self.slow.stages, self.fast.stages, self.sides, strict=True):
            slow = one(torch.cat([slow, side(fast)], dim=1))
            fast = two(fast)
        y = torch.cat([slow.mean(dim=(2, 3, 4)), fast.mean(dim=(2, 3, 4))], dim=1)
        return functional.cross_entropy(self.last(self.drop(y)), labels)


def slowfast() -> nn.Module:
    """Return SlowFast 4x16 of 32 frames."""
    return _SlowFast()


class _Split(nn.Sequential):
    """A convolution over space, then one over time."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        inner = 27 * inputs * outputs // (9 * inputs + 3 * outputs)
        super().__init__(
            nn.Conv3d(inputs, inner, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(inner),
            nn.ReLU(inplace=True),
            nn.Conv3d(inner, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
        )


class _SplitBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = _Split(inputs, outputs, stride), _Split(outputs, outputs, 1)
        self.norm1, self.norm2 = nn.BatchNorm3d(outputs), nn.BatchNorm3d(outputs)
        self.bypass: nn.Module = nn.Identity()
        if inputs != outputs:
            convolution = nn.Conv3d(inputs, outputs, 1, stride, bias=False)
            self.bypass = nn.Sequential(convolution, nn.BatchNorm3d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.one(x)), inplace=True)
        return functional.relu(self.norm2(self.two(y)) + self.bypass(x), inplace=True)


class _TwoPlusOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False),
            nn.BatchNorm3d(45),
            nn.ReLU(inplace=True),
            nn.Conv3d(45, 64, (3, 1, 1), padding=(1, 0, 0), bias=False),
            nn.BatchNorm3d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        )
        self.blocks, inputs = nn.ModuleList(), 64
        for index, depth in enumerate((3, 4, 6, 3)):
            for block in range(depth):
                width = 64 << index
                self.blocks.append(_SplitBlock(inputs, width, 2 if index and not block else 1))
                inputs = width
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(512, _CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.last(self.drop(x.mean(dim=(2, 3, 4)))), labels)


def r2plus1d() -> nn.Module:
    """Return R(2+1)D of 34 layers."""
    return _TwoPlusOne()

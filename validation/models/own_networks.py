"""Networks of published runs in plain PyTorch, for `validation/reports_own.yaml`.

U-Nets of pixels as EDM (arXiv:2206.00364, DDPM++) and the script `train_unconditional.py` of
diffusers have them, and YOLOv5 6.0 (github:ultralytics/yolov5, models/yolov5s.yaml) without its
loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Residual(nn.Module):
    """Two convolutions with an embedded noise level between them, and attention on request."""

    def __init__(
        self, inputs: int, outputs: int, time: int, *, heads: int = 0, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs or scale != 1.0 else None
        self.norm3 = nn.GroupNorm(32, outputs) if heads else None
        self.qkv = nn.Conv2d(outputs, 3 * outputs, 1) if heads else None
        self.proj = nn.Conv2d(outputs, outputs, 1) if heads else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        factor = int(self.scale) if self.scale > 1 else None
        if factor:
            x = functional.interpolate(x, scale_factor=factor, mode="nearest")
        elif self.scale < 1:
            x = functional.avg_pool2d(x, 2)
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        y = self.conv2(functional.silu(self.norm2(y)))
        x = y + (x if self.skip is None else self.skip(x))
        if self.norm3 is None or self.qkv is None or self.proj is None:
            return x
        q, k, v = self.qkv(self.norm3(x)).flatten(2).unflatten(1, (3, self.heads, -1)).unbind(1)
        scores = torch.einsum("bhcq,bhck->bhqk", q, k / k.shape[2] ** 0.5).softmax(dim=-1)
        mixed = torch.einsum("bhqk,bhck->bhcq", scores, v).flatten(1, 2)
        return x + self.proj(mixed.unflatten(-1, x.shape[2:]))


class _Pixels(nn.Module):
    """A U-Net: blocks of each level, one more on the way up; attention on some levels."""

    def __init__(
        self,
        first: int,
        widths: tuple[int, ...],
        blocks: int,
        attention: tuple[int, ...],
        *,
        head_width: int | None,
        resamples_in_blocks: bool,
    ) -> None:
        super().__init__()
        time = 4 * first
        self.embed = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, width = [first], first

        def block(inputs: int, outputs: int, level: int, scale: float = 1.0) -> nn.Module:
            attends = level in attention and scale == 1.0
            heads = (outputs // head_width if head_width else 1) if attends else 0
            return _Residual(inputs, outputs, time, heads=heads, scale=scale)

        for level, outputs in enumerate(widths):
            if level:
                in_block = block(width, width, level, 0.5)
                self.down.append(
                    in_block if resamples_in_blocks else nn.Conv2d(width, width, 3, 2, 1)
                )
                kept.append(width)
            for _ in range(blocks):
                self.down.append(block(width, outputs, level))
                width = outputs
                kept.append(width)
        last = len(widths) - 1
        deepest = attention[-1] if attention else last
        self.middle = nn.ModuleList([block(width, width, deepest), block(width, width, -1)])
        for level in range(last, -1, -1):
            for index in range(blocks + 1):  # EDM attends in the last one of a level on the way up
                attends = index == blocks or not resamples_in_blocks
                at = level if attends else -1
                self.up.append(block(width + kept.pop(), widths[level], at))
                width = widths[level]
            if level:
                in_block = block(width, width, level, 2.0)
                self.up.append(
                    in_block if resamples_in_blocks else nn.Conv2d(width, width, 3, padding=1)
                )
        self.norm, self.last = nn.GroupNorm(32, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        time = functional.silu(self.embed(noise))
        target, x = x, self.first(x)
        kept = [x]
        for part in self.down:
            x = part(x, time) if isinstance(part, _Residual) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, time)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                x = part(functional.interpolate(x, scale_factor=2, mode="nearest"))
            elif part.scale > 1:
                x = part(x, time)
            else:
                x = part(torch.cat([x, kept.pop()], dim=1), time)
        return (self.last(functional.silu(self.norm(x))) - target).square().mean()


def ddpmpp(widths: tuple[int, ...] = (256, 256, 256)) -> nn.Module:
    """Return EDM's DDPM++: attention at 16 pixels of images of 32 or 64."""
    return _Pixels(
        128, tuple(widths), 4, (len(widths) - 2,), head_width=None, resamples_in_blocks=True
    )


def unconditional() -> nn.Module:
    """Return the U-Net of diffusers' script for images of 64 pixels."""
    widths = (128, 128, 256, 256, 512, 512)
    return _Pixels(128, widths, 2, (4,), head_width=8, resamples_in_blocks=False)


class _Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        padding = 2 if size == 6 else size // 2
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
        self.norm, self.act = nn.BatchNorm2d(outputs), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class _Bottleneck(nn.Module):
    def __init__(self, width: int, *, adds: bool) -> None:
        super().__init__()
        self.one, self.two, self.adds = _Conv(width, width), _Conv(width, width, 3), adds

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x))
        return x + y if self.adds else y


class _C3(nn.Module):
    def __init__(self, inputs: int, outputs: int, depth: int, *, adds: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.one, self.two = _Conv(inputs, half), _Conv(inputs, half)
        self.parts = nn.Sequential(*(_Bottleneck(half, adds=adds) for _ in range(depth)))
        self.three = _Conv(2 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(torch.cat([self.parts(self.one(x)), self.two(x)], dim=1))


class _Pooled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = _Conv(width, width // 2), _Conv(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.one(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.two(torch.cat(parts, dim=1))


class _Yolo(nn.Module):
    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        a, b, c, d, e = (int(width * size) for size in (64, 128, 256, 512, 1024))
        n3, n6, n9 = (max(round(depth * count), 1) for count in (3, 6, 9))
        self.stem = nn.Sequential(_Conv(3, a, 6, 2), _Conv(a, b, 3, 2), _C3(b, b, n3))
        self.third = nn.Sequential(_Conv(b, c, 3, 2), _C3(c, c, n6))
        self.fourth = nn.Sequential(_Conv(c, d, 3, 2), _C3(d, d, n9))
        self.fifth = nn.Sequential(_Conv(d, e, 3, 2), _C3(e, e, n3), _Pooled(e))
        self.top, self.top_out = _Conv(e, d), _C3(2 * d, d, n3, adds=False)
        self.mid, self.small = _Conv(d, c), _C3(2 * c, c, n3, adds=False)
        self.down1, self.medium = _Conv(c, c, 3, 2), _C3(d, d, n3, adds=False)
        self.down2, self.large = _Conv(d, d, 3, 2), _C3(e, e, n3, adds=False)
        self.heads = nn.ModuleList(nn.Conv2d(size, 255, 1) for size in (c, d, e))

    def forward(self, x: Tensor) -> list[Tensor]:
        third = self.third(self.stem(x))
        fourth = self.fourth(third)
        top = self.top(self.fifth(fourth))
        y = self.top_out(torch.cat([_twice(top), fourth], dim=1))
        mid = self.mid(y)
        small = self.small(torch.cat([_twice(mid), third], dim=1))
        medium = self.medium(torch.cat([self.down1(small), mid], dim=1))
        large = self.large(torch.cat([self.down2(medium), top], dim=1))
        return [
            head(y).unflatten(1, (3, 85)).permute(0, 1, 3, 4, 2).contiguous()
            for head, y in zip(self.heads, (small, medium, large), strict=True)
        ]


def _twice(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


def yolov5(width: float = 0.5, depth: float = 0.33) -> nn.Module:
    """Return YOLOv5s, or another by its multiples of width and depth."""
    return _Yolo(width, depth)

"""Diffusion models of published runs in plain PyTorch, for `validation/reports_small.yaml`.

`encoded_dit` is the catalog's DiT on images, behind the frozen encoder of Stable Diffusion's
autoencoder; `unet` is the U-Net of Stable Diffusion 2 (arXiv:2112.10752) on latents and text
embeddings, at any size of images.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.dit import DiT


def _sinusoids(steps: Tensor, width: int) -> Tensor:
    rates = torch.exp(
        -math.log(10000.0) * torch.arange(width // 2, dtype=torch.float32) / (width // 2)
    )
    angles = steps[:, None] * rates[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class _Attention(nn.Module):
    def __init__(
        self, width: int, heads: int, context: int | None = None, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=bias)
        self.to_k = nn.Linear(context or width, width, bias=bias)
        self.to_v = nn.Linear(context or width, width, bias=bias)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            layer(of).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, of in ((self.to_q, x), (self.to_k, source), (self.to_v, source))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class _EncodedDiT(nn.Module):
    """DiT-XL/2 behind the frozen encoder, with the mean square of what it predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.network = _Encoder(), DiT()

    def forward(self, x: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            latents = self.encoder(x)
        return self.network(latents, steps, labels).square().mean()


class _Resnet(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs) if time else None
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        if self.time is not None:
            h = h + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))


class _Encoder(nn.Module):
    """The encoder of Stable Diffusion's autoencoder: 8 x 8 pixels to 4 values."""

    def __init__(self) -> None:
        super().__init__()
        widths = (128, 128, 256, 512, 512)
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.levels, self.downs = nn.ModuleList(), nn.ModuleList()
        for level, (before, width) in enumerate(itertools.pairwise(widths)):
            self.levels.append(
                nn.Sequential(_Resnet(before, width, None), _Resnet(width, width, None))
            )
            if level < 3:
                self.downs.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
        self.middle1, self.middle2 = _Resnet(512, 512, None), _Resnet(512, 512, None)
        self.norm, self.attn = nn.GroupNorm(32, 512), _Attention(512, 1, bias=True)
        self.last = nn.Conv2d(512, 4, 3, padding=1)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for level, blocks in enumerate(self.levels):
            h = blocks(h)
            if level < len(self.downs):
                h = self.downs[level](h)
        h = self.middle1(h)
        tokens = self.attn(self.norm(h).flatten(2).transpose(1, 2))
        h = h + tokens.transpose(1, 2).unflatten(2, h.shape[2:])
        return self.last(functional.silu(self.middle2(h)))


class _TextBlock(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = _Attention(width, heads), _Attention(width, heads, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), text)
        value, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        return x + self.down(value * functional.gelu(gate))


class _Transformer(nn.Module):
    def __init__(self, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.proj_in, self.proj_out = nn.Linear(width, width), nn.Linear(width, width)
        self.blocks = nn.ModuleList(_TextBlock(width, width // 64, context) for _ in range(depth))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        for block in self.blocks:
            h = block(h, text)
        return x + self.proj_out(h).transpose(1, 2).unflatten(2, x.shape[2:])


class _Stage(nn.Module):
    """A ResNet block, and a transformer of some depth behind it."""

    def __init__(self, inputs: int, outputs: int, depth: int, context: int, time: int) -> None:
        super().__init__()
        self.resnet = _Resnet(inputs, outputs, time)
        self.transformer = _Transformer(outputs, depth, context) if depth else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        h = self.resnet(x, time)
        return h if self.transformer is None else self.transformer(h, text)


class _UNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], middle: int, context: int) -> None:
        super().__init__()
        widths = [320 * factor for factor in (1, 2, 4, 4)][: len(depths)]
        time = 1280
        self.time1, self.time2 = nn.Linear(320, time), nn.Linear(time, time)
        self.first = nn.Conv2d(4, 320, 3, padding=1)
        self.down, self.downs, skips, before = nn.ModuleList(), nn.ModuleList(), [320], 320
        for level, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for _ in range(2):
                self.down.append(_Stage(before, width, depth, context, time))
                before = width
                skips.append(width)
            if level < len(widths) - 1:
                self.downs.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle1 = _Stage(before, before, middle, context, time)
        self.middle2 = _Stage(before, before, 0, context, time)
        self.up, self.ups = nn.ModuleList(), nn.ModuleList()
        for level, (width, depth) in reversed(list(enumerate(zip(widths, depths, strict=True)))):
            for _ in range(3):
                self.up.append(_Stage(before + skips.pop(), width, depth, context, time))
                before = width
            if level:
                self.ups.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, 320), nn.Conv2d(320, 4, 3, padding=1)

    def forward(self, x: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        time = self.time2(functional.silu(self.time1(_sinusoids(steps, 320))))
        h = self.first(x)
        saved = [h]
        for index, stage in enumerate(self.down):
            h = stage(h, time, text)
            saved.append(h)
            if index % 2 and index // 2 < len(self.downs):
                h = self.downs[index // 2](h)
                saved.append(h)
        h = self.middle2(self.middle1(h, time, text), time, text)
        for index, stage in enumerate(self.up):
            h = stage(torch.cat([h, saved.pop()], dim=1), time, text)
            if index % 3 == 2 and index // 3 < len(self.ups):
                h = self.ups[index // 3](functional.interpolate(h, scale_factor=2.0))
        return self.last(functional.silu(self.norm(h))).square().mean()


def encoded_dit() -> nn.Module:
    """Return DiT-XL/2 behind the frozen encoder of the autoencoder."""
    return _EncodedDiT()


def unet() -> nn.Module:
    """Return the U-Net of Stable Diffusion 2."""
    return _UNet((1, 1, 1, 0), 1, 1024)

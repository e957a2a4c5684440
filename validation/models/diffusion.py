"""Diffusion models of published runs in plain PyTorch, for `validation/reports_small.yaml`.

`dit` is DiT (Peebles and Xie, arXiv:2212.09748, table 1) on latents, or on images behind the frozen
encoder of Stable Diffusion's autoencoder. `unet` is the U-Net of Stable Diffusion 2 or of SDXL
(arXiv:2112.10752, arXiv:2307.01952, table 1) on latents and text embeddings, `flux` the
transformer of FLUX.1-dev (black-forest-labs/flux, model.py).
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional


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


class _DiTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = _Attention(width, heads, bias=True)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        parts = self.modulation(functional.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        hidden = self.fc1(self.norm2(x) * (1 + scale2) + shift2)
        return x + gate2 * self.fc2(functional.gelu(hidden, approximate="tanh"))


class _DiT(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, *, encodes: bool) -> None:
        super().__init__()
        self.encoder = _Encoder() if encodes else None
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, 256, width), requires_grad=False)
        self.time1, self.time2 = nn.Linear(256, width), nn.Linear(width, width)
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(_DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 2 * 2 * 8)

    def forward(self, x: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        if self.encoder is not None:
            with torch.no_grad():
                x = self.encoder(x)
        h = self.patch(x).flatten(2).transpose(1, 2) + self.positions
        c = self.time2(functional.silu(self.time1(_sinusoids(steps, 256)))) + self.label(labels)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.modulation(functional.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        return self.out(self.norm(h) * (1 + scale) + shift).square().mean()


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


def _attended(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class _Stream(nn.Module):
    """What a block of two streams has for one of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class _DoubleBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.image, self.text = heads, _Stream(width), _Stream(width)

    def forward(self, x: Tensor, text: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        streams = ((self.text, text), (self.image, x))
        parts = [s.modulation(functional.silu(c)).unsqueeze(1).chunk(6, dim=-1) for s, _ in streams]
        qkv = [
            s.qkv(s.norm1(of) * (1 + part[1]) + part[0])
            for (s, of), part in zip(streams, parts, strict=True)
        ]
        mixed = _attended(torch.cat(qkv, dim=1), self.heads)
        results = []
        for (s, of), part, own in zip(
            streams, parts, mixed.split((512, x.shape[1]), 1), strict=True
        ):
            h = of + part[2] * s.proj(own)
            up = s.up(s.norm2(h) * (1 + part[4]) + part[3])
            results.append(h + part[5] * s.down(functional.gelu(up, approximate="tanh")))
        return results[1], results[0]


class _SingleBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 3 * width)
        self.linear1, self.linear2 = nn.Linear(width, 7 * width), nn.Linear(5 * width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(functional.silu(c)).unsqueeze(1).chunk(3, dim=-1)
        both = self.linear1(self.norm(x) * (1 + scale) + shift)
        qkv, up = both.split((3 * self.width, 4 * self.width), dim=-1)
        hidden = functional.gelu(up, approximate="tanh")
        return x + gate * self.linear2(torch.cat([_attended(qkv, self.heads), hidden], dim=-1))


class _Flux(nn.Module):
    def __init__(self, double: int, single: int, width: int, heads: int) -> None:
        super().__init__()
        self.image_in, self.text_in = nn.Linear(64, width), nn.Linear(4096, width)
        self.time1, self.time2 = nn.Linear(256, width), nn.Linear(width, width)
        self.doubles = nn.ModuleList(_DoubleBlock(width, heads) for _ in range(double))
        self.singles = nn.ModuleList(_SingleBlock(width, heads) for _ in range(single))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.out = nn.Linear(width, 64)

    def forward(self, x: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        c = self.time2(functional.silu(self.time1(_sinusoids(steps, 256))))
        h, t = self.image_in(x), self.text_in(text)
        for block in self.doubles:
            h, t = block(h, t, c)
        h = torch.cat([t, h], dim=1)
        for block in self.singles:
            h = block(h, c)
        return self.out(self.norm(h[:, 512:])).square().mean()


def dit(depth: int = 28, width: int = 1152, heads: int = 16, *, encodes: bool = False) -> nn.Module:
    """Return DiT-XL/2; with `encodes`, behind the frozen encoder of the autoencoder."""
    return _DiT(depth, width, heads, encodes=encodes)


def unet(kind: str = "sd2") -> nn.Module:
    """Return the U-Net of Stable Diffusion 2 (`sd2`) or of SDXL (`sdxl`)."""
    return _UNet((1, 1, 1, 0), 1, 1024) if kind == "sd2" else _UNet((0, 2, 10), 10, 2048)


def flux(double: int = 19, single: int = 38, width: int = 3072, heads: int = 24) -> nn.Module:
    """Return the transformer of FLUX.1-dev, without rotary embeddings and norms of heads."""
    return _Flux(double, single, width, heads)

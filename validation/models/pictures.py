"""Networks that make or restore images, in plain PyTorch, for `reports_vision.yaml`.

StyleGAN2 (arXiv:1912.04958) as stylegan2-ada-pytorch trains it, without its augmentations and
regularization; SwinIR (arXiv:2108.10257); MAR (arXiv:2406.11838) on cached latents.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Modulated(nn.Module):
    """A convolution of scaled channels, noise and a slope (StyleGAN2's synthesis layer)."""

    def __init__(self, inputs: int, outputs: int, size: int = 3, up: int = 1) -> None:
        super().__init__()
        self.up, self.styled = up, nn.Linear(512, inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.strength = nn.Parameter(torch.empty([])) if size > 1 else None

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        styles = self.styled(w)
        scales = (self.weight.square().sum(dim=(2, 3)) @ styles.square().t() + 1e-8).rsqrt().t()
        x = x * styles[:, :, None, None]
        if self.up > 1:
            x = functional.conv_transpose2d(x, self.weight.transpose(0, 1), stride=2)
            x = functional.avg_pool2d(x, 2, 1)
        else:
            x = functional.conv2d(x, self.weight, padding=self.weight.shape[-1] // 2)
        if self.strength is None:
            return x + self.bias[:, None, None]
        x = x * scales[:, :, None, None]
        x = x + torch.randn_like(x[:, :1]) * self.strength
        return functional.leaky_relu(x + self.bias[:, None, None], 0.2) * math.sqrt(2)


class _Synthesis(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(widths[0], 4, 4))
        self.layers, self.colors = nn.ModuleList(), nn.ModuleList()
        for index, width in enumerate(widths):
            pair = nn.ModuleList()
            if index:
                pair.append(_Modulated(widths[index - 1], width, up=2))
            pair.append(_Modulated(width, width))
            self.layers.append(pair)
            self.colors.append(_Modulated(width, 3, 1))

    def forward(self, w: Tensor) -> Tensor:
        x = self.first.expand(w.shape[0], -1, -1, -1)
        image: Tensor | None = None
        for pair, color in zip(self.layers, self.colors, strict=True):
            for layer in pair:
                x = layer(x, w)
            y = color(x, w)
            if image is not None:
                y = y + functional.interpolate(image, scale_factor=2, mode="bilinear")
            image = y
        return image


class _Downward(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, inputs, 3, 1, 1), nn.Conv2d(inputs, outputs, 3, 2, 1)
        self.bypass = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bypass(functional.avg_pool2d(x, 2))
        x = functional.leaky_relu(self.one(x), 0.2) * math.sqrt(2)
        x = functional.avg_pool2d(functional.pad(x, (2, 1, 2, 1)), 4, 1)  # low pass
        x = functional.leaky_relu(self.two(x), 0.2) * math.sqrt(2)
        return (x + y) * math.sqrt(0.5)


class _Critic(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[-1], 1)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.blocks = nn.ModuleList(_Downward(*pair) for pair in pairs)
        self.last = nn.Conv2d(513, 512, 3, 1, 1)
        self.dense, self.out = nn.Linear(8192, 512), nn.Linear(512, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.first(x), 0.2)
        for block in self.blocks:
            x = block(x)
        spread = x.std(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
        x = torch.cat([x, spread.expand(-1, 1, 4, 4)], dim=1)
        x = functional.leaky_relu(self.last(x), 0.2).flatten(1)
        return self.out(functional.leaky_relu(self.dense(x), 0.2))


class _StyleGan(nn.Module):
    """A step of both networks: images for the critic's own step are made anew."""

    def __init__(self, pixels: int, base: int, layers: int) -> None:
        super().__init__()
        widths = [min(512, base >> level) for level in range(2, int(math.log2(pixels)) + 1)]
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(512, 512), nn.LeakyReLU(0.2)]
        self.mapping = nn.Sequential(*parts)
        self.synthesis, self.critic = _Synthesis(widths), _Critic(widths)

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        self.critic.requires_grad_(requires_grad=False)
        loss = functional.softplus(-self.critic(self.synthesis(self.mapping(z)))).mean()
        self.critic.requires_grad_(requires_grad=True)
        with torch.no_grad():
            made = self.synthesis(self.mapping(z))
        loss = loss + functional.softplus(self.critic(made)).mean()
        return loss + functional.softplus(-self.critic(real)).mean()


def stylegan2(pixels: int = 1024, base: int = 32768, layers: int = 2) -> nn.Module:
    """Return StyleGAN2's generator and critic for images of `pixels`."""
    return _StyleGan(pixels, base, layers)


class _Window(nn.Module):
    """A Swin layer of windows of 8, shifted or not."""

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift = heads, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.table = nn.Parameter(torch.empty(225, heads))
        self.register_buffer("at", torch.zeros(64, 64, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.unflatten(2, (-1, 8)).unflatten(1, (-1, 8)).transpose(2, 3)
        shape = y.shape
        y = y.flatten(3, 4).flatten(0, 2)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.at.flatten()].unflatten(0, (64, 64)).permute(2, 0, 1)
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        y = self.out(y).reshape(shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class _Group(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[_Window(width, 6, 4 * (i % 2)) for i in range(6)])
        self.last = nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.blocks(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _SwinIr(nn.Module):
    def __init__(self, scale: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 180, 3, 1, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(180), nn.LayerNorm(180)])
        self.groups = nn.ModuleList(_Group(180) for _ in range(6))
        self.after = nn.Conv2d(180, 180, 3, 1, 1)
        parts: list[nn.Module] = [nn.Conv2d(180, 64, 3, 1, 1), nn.LeakyReLU()]
        for _ in range(int(math.log2(scale))):
            parts += [nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2)]
        self.last = nn.Sequential(*parts, nn.Conv2d(64, 3, 3, 1, 1))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        x = self.first(x)
        y = self.norms[0](x.permute(0, 2, 3, 1))
        for group in self.groups:
            y = group(y)
        y = self.after(self.norms[1](y).permute(0, 3, 1, 2)) + x
        return (self.last(y) - wanted).abs().mean()


def swinir(scale: int = 2) -> nn.Module:
    """Return the classical SwinIR: six groups of six layers of width 180."""
    return _SwinIr(scale)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        with torch.autocast("cuda", enabled=False):
            scores = (q.float() @ k.float().transpose(-2, -1)) * q.shape[-1] ** -0.5
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        x = x + functional.dropout(self.out(y), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm2(x)))), 0.1)


class _Denoised(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.scales = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        shift, scale, gate = self.scales(functional.silu(about)).chunk(3, dim=-1)
        y = self.norm(x) * (1 + scale) + shift
        return x + gate * self.two(functional.silu(self.one(y)))


class _Mar(nn.Module):
    """Masked tokens of an image, each denoised by a small network at four noise levels."""

    def __init__(self, width: int, depth: int, heads: int, seen: int) -> None:
        super().__init__()
        self.seen, self.token = seen, nn.Linear(16, width)
        self.classes, self.mask = nn.Embedding(1001, width), nn.Parameter(torch.empty(width))
        self.places, self.norm = nn.Parameter(torch.empty(1, 320, width)), nn.LayerNorm(width)
        self.encoder = nn.ModuleList(_Layer(width, heads) for _ in range(depth))
        self.decoder = nn.ModuleList(_Layer(width, heads) for _ in range(depth))
        self.embed, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.noisy, self.time = nn.Linear(16, 1024), nn.Linear(256, 1024)
        self.about = nn.Linear(width, 1024)
        self.blocks = nn.ModuleList(_Denoised(1024) for _ in range(3))
        self.out = nn.Linear(1024, 32)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = torch.cat([self.classes(labels)[:, None].expand(-1, 64, -1), self.token(x)], dim=1)
        y = self.norm(y + self.places)[:, : 64 + self.seen]
        for layer in self.encoder:
            y = layer(y)
        missing = self.mask.expand(y.shape[0], 256 - self.seen, -1)
        y = torch.cat([self.embed(y), missing], dim=1) + self.places
        for layer in self.decoder:
            y = layer(y)
        y = self.last(y)[:, 64:].flatten(0, 1).repeat(4, 1)
        wanted = x.flatten(0, 1).repeat(4, 1)
        about = self.about(y) + self.time(torch.ones_like(y[:, :256]))
        z = self.noisy(wanted + torch.randn_like(wanted))
        for block in self.blocks:
            z = block(z, about)
        return (self.out(z)[:, :16] - wanted).square().mean()


def mar_large(seen: int = 34) -> nn.Module:
    """Return MAR-L, whose encoder sees `seen` of 256 tokens (13 % in the mean)."""
    return _Mar(1024, 16, 16, seen)

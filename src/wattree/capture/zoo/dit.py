"""DiT: a transformer over patches of latents, whose norms the step and the class modulate."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Pixels of an image for each position of the latents, and their channels.
_PIXELS: Final = 8
_CHANNELS: Final = 4
#: Sines and cosines that a step is given as.
_WAVES: Final = 256


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        chunks = self.modulation(functional.silu(condition)).chunk(6, 1)
        shift1, scale1, gate1, shift2, scale2, gate2 = chunks
        qkv = self.qkv(_modulated(self.norm1(x), shift1, scale1))
        q, k, v = qkv.reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = (
            functional.scaled_dot_product_attention(q, k, v)
            .transpose(1, 2)
            .reshape(batch, tokens, width)
        )
        x = x + gate1[:, None] * self.proj(y)
        y = self.fc1(_modulated(self.norm2(x), shift2, scale2))
        return x + gate2[:, None] * self.fc2(functional.gelu(y, approximate="tanh"))


class DiT(nn.Module):
    """Peebles and Xie, Scalable Diffusion Models with Transformers, ICCV 2023, arXiv:2212.09748.

    It predicts noise and its variance; positions are fixed sines, which are no parameters.
    """

    def __init__(
        self,
        *,
        width: int = 1152,
        layers: int = 28,
        heads: int = 16,
        patch: int = 2,
        image_size: int = 256,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patch, self.side = patch, image_size // _PIXELS // patch
        self.embed = nn.Conv2d(_CHANNELS, width, patch, patch)
        self.register_buffer("positions", torch.zeros(1, self.side**2, width))
        self.steps = nn.Sequential(nn.Linear(_WAVES, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(classes + 1, width)  # one more for guidance without a class
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, patch**2 * 2 * _CHANNELS)

    def forward(self, latents: Tensor, steps: Tensor, classes: Tensor) -> Tensor:
        x = self.embed(latents).flatten(2).transpose(1, 2) + self.positions
        rates = torch.exp(torch.linspace(0, -9.21, _WAVES // 2, device=steps.device))
        waves = steps[:, None].float() * rates
        condition = self.steps(torch.cat([waves.cos(), waves.sin()], 1)) + self.classes(classes)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(functional.silu(condition)).chunk(2, 1)
        x = self.head(_modulated(self.norm(x), shift, scale))
        x = x.reshape(-1, self.side, self.side, self.patch, self.patch, 2 * _CHANNELS)
        return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


build = DiT


def example_inputs(batch: int, image_size: int = 256) -> tuple[Tensor, ...]:
    """Return noisy latents of images of `image_size` pixels, steps and classes."""
    side = image_size // _PIXELS
    ids = torch.zeros(batch, dtype=torch.long)
    return torch.zeros(batch, _CHANNELS, side, side), ids, ids

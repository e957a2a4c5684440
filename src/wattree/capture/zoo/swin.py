"""Swin transformer [1]: attention inside windows that shift from layer to layer.

References:
    [1] Z. Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
        ICCV 2021, arXiv:2103.14030.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wattree.capture.zoo.layers import images


def _relative_index(window: int) -> Tensor:
    """Return for each pair of positions of a window its row in the bias table."""
    steps = torch.arange(window)
    rows, columns = steps.repeat_interleave(window), steps.repeat(window)
    down = rows[:, None] - rows[None, :] + window - 1
    across = columns[:, None] - columns[None, :] + window - 1
    return (down * (2 * window - 1) + across).flatten()


def _shift_mask(size: int, window: int, shift: int) -> Tensor:
    """Return the mask that separates patches joined by the shift: 0 or -100 per pair."""
    steps = torch.arange(size)
    band = (steps >= size - window).long() + (steps >= size - shift).long()
    region = (band[:, None] * 3 + band[None, :]).reshape(
        size // window, window, size // window, window
    )
    region = region.transpose(1, 2).reshape(-1, window * window)
    return (region[:, None, :] != region[:, :, None]).float() * -100.0


class _WindowAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, size: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.shift = shift if size > window else 0
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("relative_position_index", _relative_index(window))
        mask = _shift_mask(size, window, self.shift) if self.shift else None
        self.register_buffer("mask", mask, persistent=False)

    def _bias(self) -> Tensor:
        area = self.window**2
        bias = self.relative_position_bias_table[self.relative_position_index]
        return bias.view(area, area, -1).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        batch, size, _, width = x.shape
        count, area = size // self.window, self.window**2
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(batch, count, self.window, count, self.window, width)
        x = x.transpose(2, 3).reshape(batch * count**2, area, width)
        qkv = self.qkv(x).reshape(-1, area, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q = q * (width // self.heads) ** -0.5
        scores = q @ k.transpose(-2, -1) + self._bias()
        if self.mask is not None:
            scores = scores.view(batch, count**2, self.heads, area, area)
            scores = (scores + self.mask[:, None]).view(-1, self.heads, area, area)
        x = scores.softmax(-1) @ v
        x = self.proj(x.transpose(1, 2).reshape(-1, area, width))
        x = x.view(batch, count, count, self.window, self.window, width)
        x = x.transpose(2, 3).reshape(batch, size, size, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, size: int, window: int, shift: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = _WindowAttention(width, heads, size=size, window=window, shift=shift)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _PatchMerging(nn.Module):
    """Each 2×2 neighbouring patches become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, -1)))


class SwinTransformer(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`.

    Args:
        width: Features of a token in the first stage; each further one has twice as many.
        layers: Blocks of each stage.
        heads: Of attention in each stage.
        patch: Pixels of a patch's side.
        window: Patches of a window's side; it divides the sides of all stages.
        image_size: Pixels of an image's side.
        classes: Logits.
    """

    def __init__(
        self,
        *,
        width: int = 96,
        layers: tuple[int, ...] = (2, 2, 6, 2),
        heads: tuple[int, ...] = (3, 6, 12, 24),
        patch: int = 4,
        window: int = 7,
        image_size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.patch_norm = nn.LayerNorm(width)
        size = image_size // patch
        stages: list[nn.Module] = []
        for stage, (count, head_count) in enumerate(zip(layers, heads, strict=True)):
            parts: list[nn.Module] = [
                _Block(
                    width,
                    head_count,
                    size=size,
                    window=min(window, size),
                    shift=window // 2 if position % 2 else 0,
                )
                for position in range(count)
            ]
            if stage < len(layers) - 1:
                parts.append(_PatchMerging(width))
                width, size = 2 * width, size // 2
            stages.append(nn.Sequential(*parts))
        self.layers = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_norm(self.patch_embed(x).permute(0, 2, 3, 1))
        for stage in self.layers:
            x = stage(x)
        return self.head(self.norm(x).mean((1, 2)))


build = SwinTransformer
example_inputs = images

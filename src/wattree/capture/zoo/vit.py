"""Vision transformers: ViT [1] and DeiT [2].

References:
    [1] A. Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, arXiv:2010.11929,
        table 1; Ti and S as in [2].
    [2] H. Touvron et al., "Training data-efficient image transformers & distillation through
        attention", ICML 2021, arXiv:2012.12877, table 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.layers import images


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`, twice with a distillation token.

    Args:
        width: Features of a token.
        layers: Blocks.
        patch: Pixels of a patch's side.
        image_size: Pixels of an image's side: the position table has a row for each patch.
        distilled: A second token with a head of its own (DeiT's distillation).
        classes: Logits.
    """

    def __init__(
        self,
        *,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        patch: int = 16,
        image_size: int = 224,
        distilled: bool = False,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        extra = 2 if distilled else 1
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, extra, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + extra, width))
        self.blocks = nn.ModuleList(_Block(width, heads, 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.head_dist = nn.Linear(width, classes) if distilled else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.head_dist is None:
            return self.head(x[:, 0])
        return self.head(x[:, 0]), self.head_dist(x[:, 1])


build = VisionTransformer
example_inputs = images

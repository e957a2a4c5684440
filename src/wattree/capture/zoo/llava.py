"""LLaVA-1.5 [1]: features of an image stand before the tokens of a text.

The vision part is CLIP's ViT-L/14 for 336 pixels [2] without its last layer, whose output [1] does
not read, and without the class token's feature. Two linear layers lead to the language part, a
Llama 2 [3]. Logits and loss are those of all positions; labels of the image's are ignored.

References:
    [1] H. Liu et al., "Improved Baselines with Visual Instruction Tuning", CVPR 2024,
        arXiv:2310.03744.
    [2] A. Radford et al., "Learning Transferable Visual Models From Natural Language
        Supervision", ICML 2021, arXiv:2103.00020.
    [3] H. Touvron et al., "Llama 2", 2023, arXiv:2307.09288.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.layers import images


class _VisionLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, tokens, width))
        h = self.fc1(self.norm2(x))
        return x + self.fc2(h * torch.sigmoid(1.702 * h))


class _Vision(nn.Module):
    """Images `(B, 3, H, W)` to features of their patches `(B, P, width)`."""

    def __init__(self, *, width: int, layers: int, heads: int, patch: int, image_size: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, patch, patch, bias=False)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + 1, width))
        self.norm_pre = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_VisionLayer(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        x = self.norm_pre(x)
        for layer in self.layers:
            x = layer(x)
        return x[:, 1:]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        size = width // heads
        turns = 10000 ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), turns).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            linear(x).view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self._rotated(q), self._rotated(k)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, tokens, width))


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, positions: int) -> None:
        super().__init__()
        self.input_norm = nn.RMSNorm(width)
        self.attention = _Attention(width, heads, positions)
        self.post_norm = nn.RMSNorm(width)
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        h = self.post_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))


class Llava(nn.Module):
    """Images `(B, 3, H, W)`, ids `(B, S)` and labels `(B, P + S)` to the loss.

    Args:
        vision_width: Features of a patch.
        patch: Pixels of a patch's side.
        image_size: Pixels of an image's side.
        width: Features of a token.
        inner: Width of its feed-forward part.
        vocab: Tokens.
        text_length: Tokens after the image.
    """

    def __init__(
        self,
        *,
        vision_width: int = 1024,
        vision_layers: int = 23,
        vision_heads: int = 16,
        patch: int = 14,
        image_size: int = 336,
        width: int = 4096,
        layers: int = 32,
        heads: int = 32,
        inner: int = 11008,
        vocab: int = 32000,
        text_length: int = 1472,
    ) -> None:
        super().__init__()
        positions = (image_size // patch) ** 2 + text_length
        self.vision = _Vision(
            width=vision_width,
            layers=vision_layers,
            heads=vision_heads,
            patch=patch,
            image_size=image_size,
        )
        self.projector = nn.Sequential(
            nn.Linear(vision_width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(_Layer(width, heads, inner, positions) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        x = torch.cat([self.projector(self.vision(pixels)), self.embed_tokens(ids)], 1)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


build = Llava


def example_inputs(
    batch: int, *, patch: int = 14, image_size: int = 336, text_length: int = 1472
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, the ids of a text, and labels of all positions."""
    ids = torch.zeros(batch, text_length, dtype=torch.long)
    labels = torch.zeros(batch, (image_size // patch) ** 2 + text_length, dtype=torch.long)
    return (*images(batch, image_size=image_size), ids, labels)

"""Models of images and text in plain PyTorch, for `validation/reports_homes.yaml`.

`nano_vlm` has the sizes of github:huggingface/nanoVLM in 2025-05: SigLIP-B/16 at 224 pixels, 49
image tokens after pixel shuffle, SmolLM2-135M. `qwen_vl` is Qwen-VL (arXiv:2308.12966): the frozen
ViT-bigG at 448 pixels, whose 1024 patches a cross-attention compresses to 256 tokens, and Qwen-7B.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _VisionBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class _Vision(nn.Module):
    def __init__(
        self, size: int, patch: int, *, width: int, layers: int, heads: int, inner: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.blocks = nn.ModuleList(_VisionBlock(width, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def _rotated(x: Tensor) -> Tensor:
    length, width = x.shape[-2], x.shape[-1]
    rates = 1.0 / 10000 ** (torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.outer(torch.arange(length, device=x.device), rates).repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat([-b, a], -1) * angles.sin().to(x.dtype)


class _TextBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.c_attn = nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=bias)
        self.attn_proj = nn.Linear(width, width, bias=False)
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(width, inner, bias=False)
        self.mlp_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head]
        parts = self.c_attn(self.norm1(x)).split(sizes, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        q, k = _rotated(q), _rotated(k)
        if self.kv_heads < self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.mlp_proj(self.w1(y) * functional.silu(self.w2(y)))


class _Text(nn.Module):
    def __init__(self, vocab: int, width: int, blocks: list[nn.Module], *, tied: bool) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(vocab, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        x = torch.cat([image, self.embedding(tokens)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _NanoVLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = _Vision(224, 16, width=768, layers=12, heads=12, inner=3072)
        self.project = nn.Linear(4 * 768, 576, bias=False)
        blocks: list[nn.Module] = [_TextBlock(576, 9, 3, 1536, bias=False) for _ in range(30)]
        self.text = _Text(49152, 576, blocks, tied=True)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        x = self.vision(images).unflatten(1, (7, 2, 7, 2))
        x = x.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
        logits = self.text(self.project(x), tokens)[:, 49:]
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class _QwenVL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = _Vision(448, 14, width=1664, layers=48, heads=16, inner=8192)
        self.queries = nn.Parameter(torch.zeros(256, 4096))
        self.keys = nn.Linear(1664, 4096, bias=False)
        self.attention = nn.MultiheadAttention(4096, 32, batch_first=True)
        blocks: list[nn.Module] = [_TextBlock(4096, 32, 32, 11008, bias=True) for _ in range(32)]
        self.text = _Text(151936, 4096, blocks, tied=False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        patches = self.keys(self.vision(images))
        queries = self.queries.expand(images.shape[0], -1, -1)
        image = self.attention(queries, patches, patches, need_weights=False)[0]
        logits = self.text(image, tokens)[:, 256:]
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def nano_vlm() -> nn.Module:
    """Return the 222M nanoVLM, with its loss."""
    return _NanoVLM()


def qwen_vl() -> nn.Module:
    """Return Qwen-VL, with its loss."""
    return _QwenVL()

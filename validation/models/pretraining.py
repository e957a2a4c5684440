"""Self-supervised networks of published runs in plain PyTorch, for `validation/reports_own.yaml`.

Masked autoencoders of images (arXiv:2111.06377) and videos (arXiv:2203.12602), DINO and DINOv2 with
crops of two sizes and a teacher (arXiv:2104.14294, 2304.07193), and Barlow Twins
(arXiv:2103.03230). Which patches are seen is an input; the teacher's moving average is no part.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.resnet import ResNet


class _Block(nn.Module):
    """A layer of timm's ViT: attention with its scores written out, or in one kernel."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


def _layers(depth: int, width: int, heads: int, *, fused: bool = False) -> nn.ModuleList:
    return nn.ModuleList(_Block(width, heads, fused=fused) for _ in range(depth))


class _Masked(nn.Module):
    """An encoder of the patches seen and a decoder of all, with the error of those hidden."""

    def __init__(
        self, patches: nn.Module, count: int, sizes: tuple[int, ...], decoder: tuple[int, ...]
    ) -> None:
        super().__init__()
        (depth, width, heads), (depth_2, width_2, heads_2, outputs) = sizes, decoder
        self.patches, self.count = patches, count
        self.position = nn.Parameter(torch.zeros(1, count, width), requires_grad=False)
        self.encoder, self.norm = _layers(depth, width, heads), nn.LayerNorm(width)
        self.embed = nn.Linear(width, width_2)
        self.hidden = nn.Parameter(torch.zeros(1, 1, width_2))
        self.position_2 = nn.Parameter(torch.zeros(1, count, width_2), requires_grad=False)
        self.decoder, self.norm_2 = _layers(depth_2, width_2, heads_2), nn.LayerNorm(width_2)
        self.head = nn.Linear(width_2, outputs)

    def forward(self, x: Tensor, seen: Tensor, order: Tensor, targets: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        x = x.gather(1, seen[:, :, None].expand(-1, -1, x.shape[-1]))
        for layer in self.encoder:
            x = layer(x)
        x = self.embed(self.norm(x))
        hidden = self.hidden.expand(x.shape[0], self.count - x.shape[1], -1)
        x = torch.cat([x, hidden], dim=1)
        x = x.gather(1, order[:, :, None].expand(-1, -1, x.shape[-1])) + self.position_2
        for layer in self.decoder:
            x = layer(x)
        found = self.head(self.norm_2(x))[:, : targets.shape[1]]
        return (found - targets).square().mean()


def mae() -> nn.Module:
    """Return MAE's ViT-L/16: images, 49 patches of 196 seen, their order, and all as targets."""
    return _Masked(nn.Conv2d(3, 1024, 16, 16), 196, (24, 1024, 16), (8, 512, 16, 768))


def video_mae() -> nn.Module:
    """Return VideoMAE's ViT-B: 16 frames, 160 patches of 1,568 seen, the order, hidden targets."""
    patches = nn.Conv3d(3, 768, (2, 16, 16), (2, 16, 16))
    return _Masked(patches, 1568, (12, 768, 12), (4, 384, 6, 1536))


class _Student(nn.Module):
    """ViT with DINO's head, at any size of crops up to 224 pixels."""

    def __init__(self, sizes: tuple[int, int, int], prototypes: int, *, fused: bool) -> None:
        super().__init__()
        depth, width, heads = sizes
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 197, width))
        self.layers, self.norm = _layers(depth, width, heads, fused=fused), nn.LayerNorm(width)
        self.head = nn.Sequential(
            *(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU()),
            nn.Linear(2048, 256),
        )
        self.last = nn.Linear(256, prototypes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.position[:, : x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.last(functional.normalize(self.head(self.norm(x)[:, 0]), dim=-1))


class _Dino(nn.Module):
    def __init__(self, sizes: tuple[int, int, int], prototypes: int, *, fused: bool) -> None:
        super().__init__()
        self.student = _Student(sizes, prototypes, fused=fused)
        self.teacher = _Student(sizes, prototypes, fused=fused)

    def forward(self, large: Tensor, small: Tensor) -> Tensor:
        with torch.no_grad():
            targets = (self.teacher(large) / 0.04).softmax(dim=-1)
        first = (self.student(large) / 0.1).log_softmax(dim=-1)
        other = (self.student(small) / 0.1).log_softmax(dim=-1)
        crops = small.shape[0] // (large.shape[0] // 2)
        pairs = -(targets * first.flip(0)).sum(dim=-1).mean()
        for target in targets.chunk(2):
            for found in other.chunk(crops):
                pairs = pairs - (target * found).sum(dim=-1).mean()
        return pairs


def dino(
    depth: int = 12,
    width: int = 384,
    heads: int = 6,
    *,
    prototypes: int = 65536,
    fused: bool = False,
) -> nn.Module:
    """Return student and teacher: two crops of 224 pixels, and any number of smaller ones."""
    return _Dino((depth, width, heads), prototypes, fused=fused)


class _Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = ResNet(50, norm=nn.BatchNorm2d)
        self.backbone.fc = nn.Identity()
        self.projector = nn.Sequential(
            *(nn.Linear(2048, 8192, bias=False), nn.BatchNorm1d(8192), nn.ReLU(inplace=True)),
            *(nn.Linear(8192, 8192, bias=False), nn.BatchNorm1d(8192), nn.ReLU(inplace=True)),
            nn.Linear(8192, 8192, bias=False),
        )
        self.norm = nn.BatchNorm1d(8192, affine=False)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        first, second = (self.norm(self.projector(self.backbone(x))) for x in (one, two))
        correlations = first.T @ second
        diagonal = correlations.diagonal().sub(1).square().sum()
        return diagonal + 0.0051 * correlations.square().sum()


def barlow_twins() -> nn.Module:
    """Return ResNet-50 with its projector, for two views of each image."""
    return _Twins()

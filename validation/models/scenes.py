"""Networks of images, rays, points and robots in plain PyTorch, for `reports_science.yaml`.

DETR (arXiv:2005.12872) without its matching, NeRF (arXiv:2003.08934), DGCNN for segmentation
(arXiv:1801.07829) and Octo (arXiv:2405.12213).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Frozen(nn.Module):
    """Batch norm with fixed statistics and scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.variance + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.one, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), _Frozen(width)
        self.two = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False)
        self.norm2 = _Frozen(width)
        self.three, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), _Frozen(outputs)
        self.bypass: nn.Module | None = None
        if inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.bypass = nn.Sequential(convolution, _Frozen(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.one(x)))
        y = functional.relu(self.norm2(self.two(y)))
        y = self.norm3(self.three(y))
        return functional.relu(y + (x if self.bypass is None else self.bypass(x)))


class _Backbone(nn.Module):
    """ResNet-50 whose stem and first stage are not trained."""

    def __init__(self, *, dilated: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), _Frozen(64), nn.ReLU())
        self.stages, inputs = nn.ModuleList(), 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            last, blocks, width = dilated and stage == 3, [], 64 << stage
            for block in range(depth):
                stride = 2 if stage and not block and not last else 1
                blocks.append(_Bottleneck(inputs, width, stride, 2 if last and block else 1))
                inputs = 4 * width
            self.stages.append(nn.Sequential(*blocks))
        for part in (self.stem, self.stages[0]):
            part.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.stem(x), 3, 2, 1)
        for stage in self.stages:
            x = stage(x)
        return x


class _EncoderLayer(nn.Module):
    """A layer after which norms come, with positions added to queries and keys."""

    def __init__(self, *, crosses: bool) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(256, 8, 0.1)
        self.cross = nn.MultiheadAttention(256, 8, 0.1) if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(3 if crosses else 2))
        self.up, self.down, self.dropout = (
            nn.Linear(256, 2048),
            nn.Linear(2048, 256),
            nn.Dropout(0.1),
        )

    def forward(
        self, x: Tensor, at: Tensor, memory: Tensor | None = None, memory_at: Tensor | None = None
    ) -> Tensor:
        y = self.self_attention(x + at, x + at, x)[0]
        x = self.norms[0](x + self.dropout(y))
        if self.cross is not None and memory is not None and memory_at is not None:
            y = self.cross(x + at, memory + memory_at, memory)[0]
            x = self.norms[1](x + self.dropout(y))
        y = self.down(self.dropout(functional.relu(self.up(x))))
        return self.norms[-1](x + self.dropout(y))


class _Detr(nn.Module):
    def __init__(self, *, dilated: bool) -> None:
        super().__init__()
        self.backbone, self.project = _Backbone(dilated=dilated), nn.Conv2d(2048, 256, 1)
        self.encoder = nn.ModuleList(_EncoderLayer(crosses=False) for _ in range(6))
        self.decoder = nn.ModuleList(_EncoderLayer(crosses=True) for _ in range(6))
        self.queries, self.norm = nn.Embedding(100, 256), nn.LayerNorm(256)
        self.classes = nn.Linear(256, 92)
        self.box = nn.Sequential(
            nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )

    def forward(self, x: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        x = self.project(self.backbone(x)).flatten(2).permute(2, 0, 1)
        at = torch.zeros_like(x)
        for layer in self.encoder:
            x = layer(x, at)
        queries = self.queries.weight[:, None].expand(-1, x.shape[1], -1)
        y, kept = torch.zeros_like(queries), []
        for layer in self.decoder:
            y = layer(y, queries, x, at)
            kept.append(self.norm(y))
        found = torch.stack(kept).transpose(1, 2)
        logits, where = self.classes(found), self.box(found).sigmoid()
        wanted = labels.expand(6, -1, -1)
        loss = functional.cross_entropy(logits.flatten(0, 2), wanted.flatten())
        return loss + (where - boxes).abs().mean()


def detr(dilated: bool = False) -> nn.Module:  # noqa: FBT001, FBT002 - an argument of a job
    """Return DETR with ResNet-50, or DETR-DC5, with losses of all six decoder layers."""
    return _Detr(dilated=dilated)


class _Radiance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.ModuleList(
            nn.Linear(63 if not i else 256 + (63 if i == 5 else 0), 256) for i in range(8)
        )
        self.density, self.feature = nn.Linear(256, 1), nn.Linear(256, 256)
        self.view, self.colour = nn.Linear(256 + 27, 128), nn.Linear(128, 3)

    def forward(self, points: Tensor, views: Tensor) -> Tensor:
        x = points
        for index, layer in enumerate(self.points):
            x = torch.cat([points, x], dim=-1) if index == 5 else x
            x = functional.relu(layer(x))
        y = functional.relu(self.view(torch.cat([self.feature(x), views], dim=-1)))
        return torch.cat([self.colour(y), self.density(x)], dim=-1)


def _waves(x: Tensor, octaves: int) -> Tensor:
    parts = [x]
    for octave in range(octaves):
        parts += [torch.sin(x * 2.0**octave), torch.cos(x * 2.0**octave)]
    return torch.cat(parts, dim=-1)


class _Nerf(nn.Module):
    """A coarse network on even samples of each ray, and a fine one on these and likely ones."""

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.samples, self.more = coarse, fine
        self.coarse, self.fine = _Radiance(), _Radiance()

    def _seen(
        self, network: nn.Module, origin: Tensor, way: Tensor, far: Tensor
    ) -> tuple[Tensor, Tensor]:
        points = origin[:, None] + way[:, None] * far[..., None]
        views = functional.normalize(way, dim=-1)[:, None].expand(-1, far.shape[1], -1)
        raw = network(_waves(points.flatten(0, 1), 10), _waves(views.flatten(0, 1), 4))
        raw = raw.unflatten(0, far.shape)
        gaps = functional.pad(far[:, 1:] - far[:, :-1], (0, 1), value=1e10)
        alpha = 1 - torch.exp(-functional.relu(raw[..., 3]) * gaps * way.norm(dim=-1, keepdim=True))
        clear = functional.pad(1 - alpha + 1e-10, (1, 0), value=1.0).cumprod(dim=-1)[:, :-1]
        weights = alpha * clear
        return (weights[..., None] * raw[..., :3].sigmoid()).sum(dim=1), weights

    def forward(self, rays: Tensor, even: Tensor, chance: Tensor, target: Tensor) -> Tensor:
        origin, way = rays.chunk(2, dim=-1)
        coarse, weights = self._seen(self.coarse, origin, way, even)
        with torch.no_grad():
            share = functional.normalize(weights[:, 1:-1] + 1e-5, p=1.0, dim=-1).cumsum(dim=-1)
            below = torch.searchsorted(share, chance, right=True).clamp(max=self.samples - 3)
            middle = 0.5 * (even[:, 1:] + even[:, :-1])
            low, high = middle.gather(1, below), middle.gather(1, below + 1)
            likely = low + (high - low) * (chance - share.gather(1, below)).clamp(0, 1)
            far = torch.cat([even, likely], dim=-1).sort(dim=-1).values
        fine, _ = self._seen(self.fine, origin, way, far)
        return (coarse - target).square().mean() + (fine - target).square().mean()


def nerf(coarse: int = 64, fine: int = 128) -> nn.Module:
    """Return NeRF with samples of a ray for the first network, and more for the second."""
    return _Nerf(coarse, fine)


class _Edges(nn.Module):
    """Convolutions on a point and its 20 nearest neighbours' differences from it."""

    def __init__(self, inputs: int, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for layer in range(layers):
            parts.append(nn.Conv2d(64 if layer else 2 * inputs, 64, 1, bias=False))
            parts += [nn.BatchNorm2d(64), nn.LeakyReLU(0.2)]
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x.transpose(1, 2)
            squares = y.square().sum(dim=-1, keepdim=True)
            near = (2 * y @ x - squares - squares.transpose(1, 2)).topk(20, dim=-1).indices
        index = near.flatten(1)[:, None].expand(-1, x.shape[1], -1)
        around = x.gather(2, index).unflatten(2, near.shape[1:])
        self_ = x[..., None].expand_as(around)
        return self.parts(torch.cat([around - self_, self_], dim=1)).amax(dim=-1)


class _Dgcnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.ModuleList([_Edges(9, 2), _Edges(64, 2), _Edges(64, 1)])
        shapes = ((192, 1024), (1216, 512), (512, 256))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 1, bias=False), nn.BatchNorm1d(b), nn.LeakyReLU(0.2))
            for a, b in shapes
        )
        self.out = nn.Conv1d(256, 13, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        kept = []
        for edges in self.edges:
            x = edges(x)
            kept.append(x)
        x = torch.cat(kept, dim=1)
        whole = self.layers[0](x).amax(dim=-1, keepdim=True).expand(-1, -1, x.shape[2])
        x = self.layers[2](self.layers[1](torch.cat([whole, x], dim=1)))
        return functional.cross_entropy(self.out(functional.dropout(x, 0.5)), target)


def dgcnn() -> nn.Module:
    """Return DGCNN for scenes of S3DIS: 9 values a point, 13 classes."""
    return _Dgcnn()


class _Octo(nn.Module):
    """A transformer on a text and two times of two cameras; text features are inputs."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        widths = (6, 32, 96, 192, 384)
        self.stems = nn.ModuleList()
        for _ in range(2):
            parts: list[nn.Module] = []
            for a, b in itertools.pairwise(widths):
                parts += [nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(32, b), nn.ReLU()]
            self.stems.append(nn.Sequential(*parts, nn.Conv2d(384, width, 1)))
        self.text, self.readout = nn.Linear(768, width), nn.Parameter(torch.zeros(1, 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth)
        self.first, self.last = nn.Linear(width + 32 + 28, 256), nn.Linear(256, 28)

    def forward(self, text: Tensor, far: Tensor, near: Tensor, noised: Tensor) -> Tensor:
        parts = [self.text(text)]
        for stem, images in zip(self.stems, (far, near), strict=True):
            tokens = stem(images.flatten(0, 1)).flatten(2).transpose(1, 2)
            parts.append(tokens.unflatten(0, images.shape[:2]).flatten(1, 2))
        x = torch.cat([*parts, self.readout.expand(far.shape[0], -1, -1)], dim=1)
        x = self.layers(x)[:, -2:]
        y = self.last(functional.silu(self.first(torch.cat([x, noised], dim=-1))))
        return (y - noised[..., :28]).square().mean()


def octo() -> nn.Module:
    """Return Octo-Base without the frozen T5 that embeds its texts."""
    return _Octo()

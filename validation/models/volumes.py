"""Networks of volumes in plain PyTorch, for `validation/reports_science.yaml`.

U-Nets as nnU-Net, MLPerf and github:constantinpape/3d-unet-benchmarks have them, and CosmoFlow of
MLPerf HPC (arXiv:2110.11466).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORMS = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


class _Block(nn.Module):
    """Two convolutions of 3 with an activation each, with instance norms unless plain."""

    def __init__(
        self, dims: int, inputs: int, outputs: int, *, stride: int, slope: float, plain: bool
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width, step in ((inputs, stride), (outputs, 1)):
            parts.append(_CONVOLUTIONS[dims](width, outputs, 3, step, 1, bias=plain))
            if not plain:
                parts.append(_NORMS[dims](outputs, affine=True))
            parts.append(nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True))
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class _UNet(nn.Module):
    def __init__(
        self,
        dims: int,
        inputs: int,
        classes: int,
        widths: tuple[int, ...],
        *,
        slope: float,
        plain: bool,
        overlap: bool,
    ) -> None:
        super().__init__()
        self.overlap = overlap
        self.pool = {2: nn.MaxPool2d, 3: nn.MaxPool3d}[dims](2) if plain else None
        self.down, self.ups, self.merge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level, width in enumerate(widths):
            before = widths[level - 1] if level else inputs
            stride = 1 if plain or not level else 2
            self.down.append(_Block(dims, before, width, stride=stride, slope=slope, plain=plain))
        for below, width in zip(widths[:0:-1], widths[-2::-1], strict=True):
            self.ups.append(_TRANSPOSED[dims](below, width, 2, 2, bias=plain))
            self.merge.append(_Block(dims, 2 * width, width, stride=1, slope=slope, plain=plain))
        self.out = _CONVOLUTIONS[dims](widths[0], classes, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level and self.pool is not None else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.ups, self.merge, strict=True):
            x = merge(torch.cat([up(x), kept.pop()], dim=1))
        y = self.out(x)
        if not self.overlap:
            return functional.binary_cross_entropy_with_logits(y, target)
        places = tuple(range(2, y.dim()))
        one_hot = functional.one_hot(target, y.shape[1]).movedim(-1, 1).to(y.dtype)
        found = y.softmax(dim=1)
        both = (found * one_hot).sum(dim=places)
        dice = 2 * both / (found.sum(dim=places) + one_hot.sum(dim=places) + 1e-5)
        return functional.cross_entropy(y, target) - dice.mean()


def nnunet(dims: int = 3, inputs: int = 4, classes: int = 4, slope: float = 0.01) -> nn.Module:
    """Return nnU-Net for brain tumours, with its loss; `slope` 0 is that of MLPerf."""
    last = 320 if dims == 3 else 512
    widths = (32, 64, 128, 256, last, last)
    return _UNet(dims, inputs, classes, widths, slope=slope, plain=False, overlap=True)


def plain_unet() -> nn.Module:
    """Return the 3D U-Net without norms of github:constantinpape/3d-unet-benchmarks."""
    return _UNet(3, 1, 1, (32, 64, 128, 256, 512), slope=0.0, plain=True, overlap=False)


class _CosmoFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (4, 32, 64, 128, 256, 512)
        self.convolutions = nn.ModuleList(
            nn.Conv3d(before, after, 3, padding=1) for before, after in itertools.pairwise(widths)
        )
        self.dense = nn.ModuleList([nn.Linear(512 * 64, 128), nn.Linear(128, 64)])
        self.out, self.dropout = nn.Linear(64, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = functional.max_pool3d(functional.leaky_relu(convolution(x), 0.3), 2)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)
        for dense in self.dense:
            x = self.dropout(functional.leaky_relu(dense(x), 0.3))
        return functional.mse_loss(1.2 * torch.tanh(self.out(x)), target)


def cosmoflow() -> nn.Module:
    """Return CosmoFlow of MLPerf HPC: 4 redshifts of 128 x 128 x 128 to four parameters."""
    return _CosmoFlow()

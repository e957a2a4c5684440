"""Inception-v3 [1] with its auxiliary classifier.

References:
    [1] C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016,
        arXiv:1512.00567; channels as in the public weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.zoo.layers import conv_norm, images


def _conv(
    features_in: int,
    features: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    return conv_norm(features_in, features, kernel, stride=stride, padding=padding, epsilon=1e-3)


class _Branches(nn.Module):
    """Several branches of one input, concatenated; the last may begin with a pool."""

    def __init__(self, pool: nn.Module | None, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)
        self._names = tuple(branches)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.get_submodule(name)(x) for name in self._names]
        if self.pool is not None:
            outputs.append(self.pool(x))
        return torch.cat(outputs, 1)


class _Fork(nn.Module):
    """A stem, then a 1×3 and a 3×1 convolution of it side by side."""

    def __init__(self, stem: nn.Module, features: int) -> None:
        super().__init__()
        self.stem = stem
        self.a = _conv(features, 384, (1, 3), padding=(0, 1))
        self.b = _conv(features, 384, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return torch.cat([self.a(x), self.b(x)], 1)


def _average_pool() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1)


def _block_a(width: int, pooled: int) -> nn.Module:
    return _Branches(
        None,
        branch1x1=_conv(width, 64, 1),
        branch5x5=nn.Sequential(_conv(width, 48, 1), _conv(48, 64, 5, padding=2)),
        branch3x3dbl=nn.Sequential(
            _conv(width, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)
        ),
        branch_pool=nn.Sequential(_average_pool(), _conv(width, pooled, 1)),
    )


def _block_b(width: int) -> nn.Module:
    return _Branches(
        nn.MaxPool2d(3, 2),
        branch3x3=_conv(width, 384, 3, stride=2),
        branch3x3dbl=nn.Sequential(
            _conv(width, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)
        ),
    )


def _block_c(width: int, inner: int) -> nn.Module:
    def row(features_in: int, features: int) -> nn.Module:
        return _conv(features_in, features, (1, 7), padding=(0, 3))

    def line(features_in: int, features: int) -> nn.Module:
        return _conv(features_in, features, (7, 1), padding=(3, 0))

    return _Branches(
        None,
        branch1x1=_conv(width, 192, 1),
        branch7x7=nn.Sequential(_conv(width, inner, 1), row(inner, inner), line(inner, 192)),
        branch7x7dbl=nn.Sequential(
            _conv(width, inner, 1),
            line(inner, inner),
            row(inner, inner),
            line(inner, inner),
            row(inner, 192),
        ),
        branch_pool=nn.Sequential(_average_pool(), _conv(width, 192, 1)),
    )


def _block_d(width: int) -> nn.Module:
    return _Branches(
        nn.MaxPool2d(3, 2),
        branch3x3=nn.Sequential(_conv(width, 192, 1), _conv(192, 320, 3, stride=2)),
        branch7x7x3=nn.Sequential(
            _conv(width, 192, 1),
            _conv(192, 192, (1, 7), padding=(0, 3)),
            _conv(192, 192, (7, 1), padding=(3, 0)),
            _conv(192, 192, 3, stride=2),
        ),
    )


def _block_e(width: int) -> nn.Module:
    return _Branches(
        None,
        branch1x1=_conv(width, 320, 1),
        branch3x3=_Fork(_conv(width, 384, 1), 384),
        branch3x3dbl=_Fork(nn.Sequential(_conv(width, 448, 1), _conv(448, 384, 3, padding=1)), 384),
        branch_pool=nn.Sequential(_average_pool(), _conv(width, 192, 1)),
    )


class _Auxiliary(nn.Module):
    """Classifies from the middle of the network."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv0 = _conv(768, 128, 1)
        self.conv1 = _conv(128, 768, 5)
        self.fc = nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(functional.avg_pool2d(x, 5, 3)))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class InceptionV3(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, classes)`, twice with the auxiliary classifier."""

    def __init__(
        self, *, auxiliary: bool = True, classes: int = 1000, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 32, 3, stride=2),
            _conv(32, 32, 3),
            _conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            _conv(64, 80, 1),
            _conv(80, 192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.mixed_5 = nn.Sequential(_block_a(192, 32), _block_a(256, 64), _block_a(288, 64))
        self.mixed_6 = nn.Sequential(
            _block_b(288), *(_block_c(768, inner) for inner in (128, 160, 160, 192))
        )
        self.aux = _Auxiliary(classes) if auxiliary else None
        self.mixed_7 = nn.Sequential(_block_d(768), _block_e(1280), _block_e(2048))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.mixed_6(self.mixed_5(self.stem(x)))
        aside = None if self.aux is None else self.aux(x)
        x = self.fc(self.dropout(self.avgpool(self.mixed_7(x))).flatten(1))
        return x if aside is None else (x, aside)


build = InceptionV3


def example_inputs(batch: int, *, image_size: int = 299) -> tuple[Tensor]:
    """Return a batch of images."""
    return images(batch, image_size=image_size)

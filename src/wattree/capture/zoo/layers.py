"""Layers that several of the built-in models share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Makes an activation.
Activation = Callable[[], nn.Module]


def divisible(value: float) -> int:
    """Return the multiple of 8 nearest to `value`, at least 90 % of it.

    As the MobileNet papers round channel numbers.
    """
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def conv_norm(
    features_in: int,
    features: int,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | None = None,
    groups: int = 1,
    epsilon: float = 1e-5,
    activation: Activation | None = lambda: nn.ReLU(inplace=True),
) -> nn.Sequential:
    """Return a convolution without bias, batch norm, and an activation if there is one.

    Args:
        features_in: Channels in.
        features: Channels out.
        kernel: Its size.
        stride: Positions from one output to the next.
        padding: Zeros at each side; None: as many as keep the size at stride 1.
        groups: Of channels that do not mix.
        activation: Makes what follows batch norm.
    """
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    layers: list[nn.Module] = [
        nn.Conv2d(features_in, features, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(features, eps=epsilon),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from the means of all channels [1].

    References:
        [1] J. Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018, arXiv:1709.01507.
    """

    def __init__(
        self,
        features: int,
        squeezed: int,
        *,
        activation: Activation = lambda: nn.ReLU(inplace=True),
        gate: Activation = nn.Sigmoid,
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(features, squeezed, 1)
        self.activation = activation()
        self.fc2 = nn.Conv2d(squeezed, features, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.gate(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return scale * x


def images(batch: int, *, image_size: int = 224) -> tuple[Tensor]:
    """Return a batch of square color images. Shape `(batch, 3, image_size, image_size)`."""
    return (torch.randn(batch, 3, image_size, image_size),)

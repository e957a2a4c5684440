"""Residual networks for images of 32 x 32 in plain PyTorch, for `validation/reports_energy.yaml`.

He et al., arXiv:1512.03385, with what CIFAR needs: a first convolution of 3 x 3 without stride, and
no pooling behind it (github:kuangliu/pytorch-cifar, models/resnet.py).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class _Residual(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, size, step, padding=size // 2, bias=False)
            for a, b, size, step in shapes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in shapes)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for index, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True), start=1
        ):
            y = norm(convolution(y))
            if index < len(self.convolutions):
                y = functional.relu(y)
        return functional.relu(y + self.shortcut(x))


def resnet(depth: int = 18) -> nn.Module:
    """Return the network of 18 or 50 layers, for 10 classes."""
    counts, bottleneck = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}[depth]
    layers = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(_Residual(inputs, width, stride, bottleneck=bottleneck))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(inputs, 10))

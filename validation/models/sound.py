"""Networks of speech in plain PyTorch, for `reports_science.yaml` and `reports_vision.yaml`.

HiFi-GAN (arXiv:2010.05646), WaveGlow (arXiv:1811.00002), Jasper 10x5 dense residual
(arXiv:1904.03288) and QuartzNet (arXiv:1910.10261), with the sizes of
github:NVIDIA/DeepLearningExamples.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


def _conv(inputs: int, outputs: int, size: int, dilation: int = 1, **more: int) -> nn.Module:
    padding = dilation * (size - 1) // 2
    return weight_norm(nn.Conv1d(inputs, outputs, size, padding=padding, dilation=dilation, **more))


class _Dilated(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(_conv(width, width, size, dilation) for dilation in (1, 3, 5))
        self.second = nn.ModuleList(_conv(width, width, size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            y = first(functional.leaky_relu(x, 0.1))
            x = x + second(functional.leaky_relu(y, 0.1))
        return x


class _Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = _conv(80, 512, 7), _conv(32, 1, 7)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for level, factor in enumerate((8, 8, 2, 2)):
            width = 512 >> (level + 1)
            transposed = nn.ConvTranspose1d(
                2 * width, width, 2 * factor, factor, padding=factor // 2
            )
            self.ups.append(weight_norm(transposed))
            self.blocks.append(nn.ModuleList(_Dilated(width, size) for size in (3, 7, 11)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            y = blocks[0](x)
            for block in blocks[1:]:
                y = y + block(x)
            x = y / 3
        return torch.tanh(self.after(functional.leaky_relu(x)))


class _OfPeriod(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, 32, 128, 512, 1024, 1024)
        self.parts = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3 if b < 1024 or a < 1024 else 1, 1), (2, 0)))
            for a, b in itertools.pairwise(widths)
        )
        self.last = weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

    def forward(self, x: Tensor) -> list[Tensor]:
        missing = -x.shape[2] % self.period
        x = functional.pad(x, (0, missing), "reflect") if missing else x
        x = x.unflatten(2, (-1, self.period))
        return _features(self.parts, self.last, x)


class _OfScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 128, 15, 1, 1), (128, 128, 41, 2, 4), (128, 256, 41, 2, 16))
        sizes += ((256, 512, 41, 4, 16), (512, 1024, 41, 4, 16), (1024, 1024, 41, 1, 16))
        sizes += ((1024, 1024, 5, 1, 1),)
        self.parts = nn.ModuleList(
            _conv(a, b, size, stride=stride, groups=groups) for a, b, size, stride, groups in sizes
        )
        self.last = _conv(1024, 1, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        return _features(self.parts, self.last, x)


def _features(parts: nn.ModuleList, last: nn.Module, x: Tensor) -> list[Tensor]:
    kept = []
    for part in parts:
        x = functional.leaky_relu(part(x), 0.1)
        kept.append(x)
    return [*kept, last(x)]


def _called(part: nn.Module, x: Tensor, *, frozen: bool) -> list[Tensor]:
    weights = {name: each.detach() for name, each in part.named_parameters()} if frozen else {}
    found: list[Tensor] = functional_call(part, weights, (x,))
    return found


class _HiFiGan(nn.Module):
    """A step of the discriminators and one of the generator, whose losses are added.

    The generator's step has the discriminators frozen (`freeze` in the script's `train.py`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = _Generator()
        self.periods = nn.ModuleList(_OfPeriod(period) for period in (2, 3, 5, 7, 11))
        self.scales = nn.ModuleList(_OfScale() for _ in range(3))

    def _judged(self, x: Tensor, *, frozen: bool = False) -> list[list[Tensor]]:
        found = [_called(part, x, frozen=frozen) for part in self.periods]
        for level, part in enumerate(self.scales):
            x = functional.avg_pool1d(x, 4, 2, 2) if level else x
            found.append(_called(part, x, frozen=frozen))
        return found

    def forward(self, mel: Tensor, audio: Tensor) -> Tensor:
        made = self.generator(mel)
        loss = audio.new_zeros(())
        for real, fake in zip(self._judged(audio), self._judged(made.detach()), strict=True):
            loss = loss + (1 - real[-1]).square().mean() + fake[-1].square().mean()
        both = self._judged(audio, frozen=True), self._judged(made, frozen=True)
        for real, fake in zip(*both, strict=True):
            loss = loss + (1 - fake[-1]).square().mean()
            for a, b in zip(real[:-1], fake[:-1], strict=True):
                loss = loss + (a - b).abs().mean()
        return loss


def hifigan() -> nn.Module:
    """Return HiFi-GAN V1 with its discriminators."""
    return _HiFiGan()


class _Coupling(nn.Module):
    """WaveNet of 8 dilated layers and 512 channels, which scales and shifts half of the groups."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.start, self.end = weight_norm(nn.Conv1d(half, 512, 1)), nn.Conv1d(512, 2 * half, 1)
        self.inner = nn.ModuleList(_conv(512, 1024, 3, 1 << layer) for layer in range(8))
        self.conditions = nn.ModuleList(_conv(640, 1024, 1) for _ in range(8))
        self.skips = nn.ModuleList(_conv(512, 1024 if layer < 7 else 512, 1) for layer in range(8))

    def forward(self, x: Tensor, mel: Tensor) -> Tensor:
        x = self.start(x)
        total: Tensor | None = None
        for inner, condition, skip in zip(self.inner, self.conditions, self.skips, strict=True):
            tanh, gate = (inner(x) + condition(mel)).chunk(2, dim=1)
            y = skip(torch.tanh(tanh) * torch.sigmoid(gate))
            if y.shape[1] > 512:
                rest, y = y.chunk(2, dim=1)
                x = x + rest
            total = y if total is None else total + y
        return self.end(total)


class _WaveGlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(80, 80, 1024, stride=256)
        self.mixes, self.couplings = nn.ModuleList(), nn.ModuleList()
        groups = 8
        for flow in range(12):
            groups -= 2 if flow % 4 == 0 and flow else 0
            self.mixes.append(nn.Conv1d(groups, groups, 1, bias=False))
            self.couplings.append(_Coupling(groups // 2))

    def forward(self, mel: Tensor, audio: Tensor) -> Tensor:
        mel = self.up(mel)[:, :, : audio.shape[1]]
        mel = mel.unflatten(2, (-1, 8)).permute(0, 2, 1, 3).flatten(2).transpose(1, 2)
        x = audio.unflatten(1, (-1, 8)).transpose(1, 2)
        loss = audio.new_zeros(())
        for flow, (mix, coupling) in enumerate(zip(self.mixes, self.couplings, strict=True)):
            if flow % 4 == 0 and flow:
                loss, x = loss + x[:, :2].square().sum(), x[:, 2:]
            loss = loss - torch.logdet(mix.weight[:, :, 0].float())
            kept, moved = mix(x).chunk(2, dim=1)
            shift, scale = coupling(kept, mel).chunk(2, dim=1)
            x = torch.cat([kept, moved * scale.exp() + shift], dim=1)
            loss = loss - scale.sum()
        return loss + x.square().sum()


def waveglow() -> nn.Module:
    """Return WaveGlow: 12 flows of 8 layers."""
    return _WaveGlow()


class _Jasper(nn.Module):
    def __init__(self, classes: int = 29) -> None:
        super().__init__()
        shapes = ((256, 11, 0.2), (384, 13, 0.2), (512, 17, 0.2), (640, 21, 0.3), (768, 25, 0.3))
        self.first = self._unit(64, 256, 11, stride=2)
        self.blocks, self.bypasses, self.drops = nn.ModuleList(), nn.ModuleList(), []
        widths = [256]
        for width, size, drop in (shape for shape in shapes for _ in range(2)):
            units = [self._unit(widths[-1] if not i else width, width, size) for i in range(5)]
            self.blocks.append(nn.ModuleList(units))
            self.bypasses.append(nn.ModuleList(self._unit(before, width, 1) for before in widths))
            self.drops.append(drop)
            widths.append(width)
        self.wide = self._unit(768, 896, 29, dilation=2)
        self.last, self.out = self._unit(896, 1024, 1), nn.Conv1d(1024, classes, 1)

    @staticmethod
    def _unit(
        inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1
    ) -> nn.Module:
        padding = dilation * (size - 1) // 2
        convolution = nn.Conv1d(inputs, outputs, size, stride, padding, dilation, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm1d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        kept = [functional.dropout(functional.relu(self.first(x)), 0.2)]
        for block, bypasses, drop in zip(self.blocks, self.bypasses, self.drops, strict=True):
            x = kept[-1]
            for index, unit in enumerate(block):
                x = unit(x)
                if index < 4:
                    x = functional.dropout(functional.relu(x), drop)
            for bypass, before in zip(bypasses, kept, strict=True):
                x = x + bypass(before)
            kept.append(functional.dropout(functional.relu(x), drop))
        x = functional.dropout(functional.relu(self.wide(kept[-1])), 0.4)
        x = functional.dropout(functional.relu(self.last(x)), 0.4)
        return self.out(x).log_softmax(dim=1)


def jasper() -> nn.Module:
    """Return Jasper 10x5 dense residual, without its CTC loss."""
    return _Jasper()


class _QuartzNet(nn.Module):
    """Blocks of five separable convolutions with one bypass each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self._unit(64, 256, 33, stride=2)
        self.blocks, self.bypasses, before = nn.ModuleList(), nn.ModuleList(), 256
        for width, size in ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75)):
            for _ in range(3):
                units = [self._unit(before if not i else width, width, size) for i in range(5)]
                self.blocks.append(nn.ModuleList(units))
                bypass = nn.Conv1d(before, width, 1, bias=False)
                self.bypasses.append(nn.Sequential(bypass, nn.BatchNorm1d(width)))
                before = width
        self.wide = self._unit(512, 512, 87, dilation=2)
        last = nn.Conv1d(512, 1024, 1, bias=False)
        self.last, self.out = nn.Sequential(last, nn.BatchNorm1d(1024)), nn.Conv1d(1024, 29, 1)

    @staticmethod
    def _unit(
        inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1
    ) -> nn.Module:
        padding = dilation * (size - 1) // 2
        shape = (size, stride, padding, dilation)
        each = nn.Conv1d(inputs, inputs, *shape, groups=inputs, bias=False)
        return nn.Sequential(
            each, nn.Conv1d(inputs, outputs, 1, bias=False), nn.BatchNorm1d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        for block, bypass in zip(self.blocks, self.bypasses, strict=True):
            y = x
            for index, unit in enumerate(block):
                y = unit(y)
                y = functional.relu(y) if index < 4 else y
            x = functional.relu(y + bypass(x))
        x = functional.relu(self.last(functional.relu(self.wide(x))))
        return self.out(x).log_softmax(dim=1)


def quartznet() -> nn.Module:
    """Return QuartzNet 15x5, without its CTC loss."""
    return _QuartzNet()

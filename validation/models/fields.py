"""Networks of physical fields in plain PyTorch, for `validation/reports_science.yaml`.

Fourier neural operators (arXiv:2010.08895) and Pangu-Weather (arXiv:2211.02556).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

_LETTERS = "xyz"


class _Spectral(nn.Module):
    """Products of the lowest modes of each dim, by corners of the spectrum."""

    def __init__(self, width: int, modes: int, dims: int) -> None:
        super().__init__()
        self.modes, self.dims = modes, dims
        shape = (width, width, *(modes,) * dims)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.rand(*shape, dtype=torch.cfloat) / width**2)
            for _ in range(2 ** (dims - 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        places = tuple(range(-self.dims, 0))
        spectrum = torch.fft.rfftn(x, dim=places)
        made = torch.zeros_like(spectrum)
        axes = _LETTERS[: self.dims]
        corners = itertools.product((True, False), repeat=self.dims - 1)
        low, high = slice(None, self.modes), slice(-self.modes, None)
        for weight, corner in zip(self.weights, corners, strict=True):
            cut = (..., *(low if first else high for first in corner), low)
            product = torch.einsum(f"bi{axes},io{axes}->bo{axes}", spectrum[cut], weight)
            made[cut] = product
        return torch.fft.irfftn(made, s=x.shape[-self.dims :], dim=places)


class _Fno(nn.Module):
    """Four layers of Fourier products and 1 x 1 convolutions with batch norms."""

    def __init__(self, inputs: int, width: int, modes: int, dims: int) -> None:
        super().__init__()
        convolution = {2: nn.Conv1d, 3: nn.Conv1d}[dims]
        norm = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
        self.lift = nn.Linear(inputs, width)
        self.spectral = nn.ModuleList(_Spectral(width, modes, dims) for _ in range(4))
        self.local = nn.ModuleList(convolution(width, width, 1) for _ in range(4))
        self.norms = nn.ModuleList(norm(width) for _ in range(4))
        self.first, self.last = nn.Linear(width, 128), nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x).movedim(-1, 1)
        layers = zip(self.spectral, self.local, self.norms, strict=True)
        for index, (spectral, local, norm) in enumerate(layers):
            x = norm(spectral(x) + local(x.flatten(2)).view(x.shape))
            x = functional.relu(x) if index < 3 else x
        return self.last(functional.relu(self.first(x.movedim(1, -1))))


class _Stepped(nn.Module):
    """FNO-2D, which steps through time; its losses are added."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.network = steps, _Fno(12, 20, 8, 2)

    def forward(self, x: Tensor, grid: Tensor, target: Tensor) -> Tensor:
        loss = x.new_zeros(())
        for step in range(self.steps):
            y = self.network(torch.cat([x, grid], dim=-1))
            loss = loss + (y - target[..., step : step + 1]).flatten(1).norm(dim=1).sum()
            x = torch.cat([x[..., 1:], y], dim=-1)
        return loss


class _Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = _Fno(13, 20, 8, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.network(x)[..., 0] - target).flatten(1).norm(dim=1).sum()


def fno2d(steps: int = 40) -> nn.Module:
    """Return FNO-2D for Navier-Stokes: 10 known times, then one after another."""
    return _Stepped(steps)


def fno3d() -> nn.Module:
    """Return FNO-3D for Navier-Stokes: all times at once."""
    return _Whole()


class _EarthAttention(nn.Module):
    """Attention in windows of 2 x 6 x 12 with a bias of its own for each latitude and height."""

    def __init__(self, width: int, heads: int, types: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(3312, types, heads))
        self.register_buffer("index", torch.zeros(144 * 144, dtype=torch.long))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        scores = torch.einsum("bwtqhd,bwtkhd->bwthqk", q * q.shape[-1] ** -0.5, k)
        bias = self.table[self.index].unflatten(0, (144, 144)).permute(2, 3, 0, 1)
        scores = scores + bias
        if mask is not None:
            scores = scores + mask[:, :, None]
        mixed = torch.einsum("bwthqk,bwtkhd->bwtqhd", scores.softmax(dim=-1), v)
        return self.out(mixed.flatten(-2))


class _EarthBlock(nn.Module):
    def __init__(
        self, size: tuple[int, int, int], width: int, heads: int, *, shifted: bool
    ) -> None:
        super().__init__()
        z, h, w = size
        self.size, self.shifted = size, shifted
        types = (z // 2) * (h // 6)
        self.attention = _EarthAttention(width, heads, types)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        if shifted:
            self.register_buffer("mask", torch.zeros(w // 12, types, 144, 144))

    def forward(self, x: Tensor) -> Tensor:
        z, h, w = self.size
        y = x.unflatten(1, self.size)
        if self.shifted:
            y = y.roll((-1, -3, -6), (1, 2, 3))
        y = y.unflatten(3, (w // 12, 12)).unflatten(2, (h // 6, 6)).unflatten(1, (z // 2, 2))
        y = y.permute(0, 5, 1, 3, 2, 4, 6, 7).flatten(4, 6).flatten(2, 3)
        y = self.attention(y, self.mask if self.shifted else None)
        y = y.unflatten(2, (z // 2, h // 6)).unflatten(4, (2, 6, 12))
        y = y.permute(0, 2, 4, 3, 5, 1, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)
        if self.shifted:
            y = y.roll((1, 3, 6), (1, 2, 3))
        x = x + self.norm1(y.flatten(1, 3))
        return x + self.norm2(self.mlp(x))


class _Pangu(nn.Module):
    """Patches of 2 x 4 x 4; 2 + 6 blocks at each of two resolutions on the way down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.upper = nn.Conv3d(5, 192, (2, 4, 4), (2, 4, 4))
        self.surface = nn.Conv2d(7, 192, 4, 4)
        fine, coarse = (8, 186, 360), (8, 96, 180)
        sizes = ((fine, 192, 6, 2), (coarse, 384, 12, 6), (coarse, 384, 12, 6), (fine, 192, 6, 2))
        self.layers = nn.ModuleList(
            nn.ModuleList(_EarthBlock(size, width, heads, shifted=i % 2 == 1) for i in range(depth))
            for size, width, heads, depth in sizes
        )
        self.down, self.down_norm = nn.Linear(768, 384, bias=False), nn.LayerNorm(768)
        self.up, self.mix = nn.Linear(384, 768, bias=False), nn.Linear(192, 192, bias=False)
        self.up_norm = nn.LayerNorm(192)
        self.out_upper = nn.ConvTranspose3d(384, 5, (2, 4, 4), (2, 4, 4))
        self.out_surface = nn.ConvTranspose2d(384, 4, 4, 4)

    def forward(self, upper: Tensor, surface: Tensor) -> Tensor:
        x = self.upper(functional.pad(upper, (0, 0, 0, 3, 0, 1)))
        y = self.surface(functional.pad(surface, (0, 0, 0, 3)))
        x = torch.cat([y[:, :, None], x], dim=2).permute(0, 2, 3, 4, 1)  # 8 x 181 x 360
        skip = x = self._run(0, x, 186)
        x = functional.pad(x, (0, 0, 0, 0, 0, 1)).unflatten(3, (180, 2)).unflatten(2, (91, 2))
        x = self.down(self.down_norm(x.permute(0, 1, 2, 4, 3, 5, 6).flatten(4)))
        x = self._run(2, self._run(1, x, 96), 96)
        x = self.up(x).unflatten(-1, (2, 2, 192)).permute(0, 1, 2, 4, 3, 5, 6)
        x = self.mix(self.up_norm(x.flatten(4, 5).flatten(2, 3)[:, :, :181]))
        x = torch.cat([skip, self._run(3, x, 186)], dim=-1).permute(0, 4, 1, 2, 3)
        made = self.out_upper(x[:, :, 1:])[:, :, :13, :721]
        low = self.out_surface(x[:, :, 0])[:, :, :721]
        return (made - upper).abs().mean() + 0.25 * (low - surface[:, :4]).abs().mean()

    def _run(self, layer: int, x: Tensor, latitudes: int) -> Tensor:
        """Run blocks on latitudes that whole windows cover."""
        rows, columns = x.shape[2:4]
        x = functional.pad(x, (0, 0, 0, 0, 0, latitudes - rows)).flatten(1, 3)
        for block in self.layers[layer]:
            x = block(x)
        return x.unflatten(1, (8, latitudes, columns))[:, :, :rows]


def pangu() -> nn.Module:
    """Return Pangu-Weather at 0.25 degrees, with its mean absolute errors."""
    return _Pangu()

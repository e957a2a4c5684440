"""Time of convolutions: the fastest of the algorithms that cuDNN has. Pure functions over arrays.

A convolution of `N` samples, `C` to `K` channels in `g` groups, `P x Q` positions and `R x S` taps
is a product of `m = N P Q`, `n = K / g`, `k = R S C / g`. Its input gradient is one of as many
rows as the input has positions, its weight gradient one with `N P Q` to be summed over. Without
matrix units, 3 x 3 kernels of stride 1 run faster as Winograd products and large kernels as
products of Fourier transforms; few channels per group leave only direct kernels, bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.cost.fresh_memory import fresh_s

#: Above this many waves the last, partial one is averaged, as in `cost.matmul`.
_WAVES_AVERAGED = 8.0
#: Parts of a sum that is cut to fill the units are this many ramps long at least.
_SPLIT_RAMPS = 4.0
#: Channels that matrix units take at once: fewer are padded.
_MATRIX_CHANNELS = 8
#: Winograd's outputs per tile of F(4x4, 3x3), its transformed values, and channels below which
#: transforms do not pay (Lavin and Gray, "Fast algorithms for convolutional neural networks",
#: CVPR 2016, section 4): 36 products instead of 144.
_WINOGRAD_OUTPUTS, _WINOGRAD_VALUES, _WINOGRAD_TAPS = 16.0, 36.0, 9
#: F(2x2, 3x3) in one kernel: 16 products instead of 36, nothing through memory.
_FUSED_SAVING = 2.25
#: Fourier tiles of 32 x 32 with 17 x 32 complex values of 8 FLOP each and 32 - r + 1 outputs a
#: side (Vasilache et al., "Fast convolutional nets with fbfft", ICLR 2015; cuDNN's `FFT_TILING`).
_FFT_SIDE, _FFT_VALUES, _FFT_FLOP, _FFT_TAPS = 32.0, 544.0, 8.0, 25

#: How far apart rows lie that share a set of a cache, and from which distance on that tells (see
#: `_is_aliased`). [B]
_PAGE_BYTES, _LONG_ROW_BYTES = float(4 << 10), float(24 << 10)


class ConvolutionPass(StrEnum):
    """Which of the three matmuls of a convolution: forward, input or weight gradient."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Shape of a convolution; sizes are arrays of one length.

    Attributes:
        positions: Outputs per channel, all samples: `N P Q`.
        in_channels, out_channels: Of one group: `C / g` and `K / g`.
        groups: Groups of channels.
        taps: `R S`.
        stride_area: Input positions per output position.
        square: Two-dimensional with a square kernel, not dilated.
    """

    positions: Floats
    in_channels: Floats
    out_channels: Floats
    groups: Floats
    taps: int
    stride_area: float
    square: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Properties of a library's convolution kernels.

    Attributes:
        tiles: Rows, columns and relative rate of output tiles.
        ramp: Contraction length at which a tile reaches half its rate.
        row_ramp: Rows at which a matmul reaches half its rate, apart from the effect of tiles.
        aliased: Rate of products whose results' rows fall on the same sets of a cache, over that of
            others (`_is_aliased`).
        split_waves: A long sum is cut so that its parts fill the units this often.
        roofs: Exponent of the smooth maximum of the two roofs: products do not hide all traffic.
        matrix: Whether they use matrix units.
        profiled: Read off products that were timed on the device itself; all software's products
            then go by them, and no transforms are taken to save any.
    """

    tiles: tuple[tuple[int, int, float], ...]
    ramp: float
    split_waves: float
    roofs: float
    matrix: bool
    profiled: bool = False
    row_ramp: float = 0.0
    aliased: float = 1.0


#: With and without matrix units: `python -m benchmarks.operators --fit`, DeepBench (cuDNN 7.6) on
#: V100 and T4, and on these, P100, M40, Titan X and Xp.
MATRIX_KERNELS = Kernels(
    tiles=((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.69), (64, 64, 0.34)),
    ramp=20.0,
    split_waves=2.7,
    roofs=1.93,
    matrix=True,
)
#: Hopper's start a tile no faster for computing faster: products in bf16 on H100 and H200 (AI
#: Configurator tables, 2026; `python -m benchmarks.kernel_start`): least error in all four tables.
HOPPER_KERNELS = replace(MATRIX_KERNELS, ramp=180.0)
VECTOR_KERNELS = Kernels(
    tiles=((128, 128, 1.0), (128, 64, 0.857), (128, 32, 0.759), (64, 64, 0.469), (32, 32, 0.5)),
    ramp=3.8,
    split_waves=3.75,
    roofs=1.28,
    matrix=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionRates:
    """Rates that convolutions achieve on a device at a precision.

    Attributes:
        peak_flop_per_s: Dense peak at the precision. [FLOP/s]
        kernels: That reach it.
        compute_units: Units that tiles are spread over.
        memory_bytes_per_s: Bandwidth that streaming reaches. [B/s]
        element_bytes: Width of an operand. [B]
        matmul: Share of the peak that large implicit products reach.
        untuned: Rate of those of convolutions whose algorithms heuristics choose, over others'.
        winograd: Share that Winograd's products reach.
        input_gradient, weight_gradient: Rates of gradients over forward's.
        strided: Rate of input gradients with a stride over those without.
        unaligned: Rate of matrix units where channels are no multiple of 8.
        direct: Share of the bandwidth that direct kernels of few channels per group reach.
        direct_flop_per_s: What their arithmetic reaches, outside of matrix units. [FLOP/s]
        direct_weight_gradient: Rate of their weight gradients over forward's: each sums over all
            samples and positions for a handful of values.
        fresh_s_per_byte: Time to get new memory for results, see `fresh_s`. [s/B]
        vector: Those of products without matrix units that take the same operands, of which
            libraries choose the faster (of transforms they do not: SSD in TF32); None: none.
        matmuls: Those of matmuls by the same kernels, in another format; None: as these.
        on_gpu: They are kernels of cuDNN or MIOpen.
    """

    peak_flop_per_s: float
    kernels: Kernels
    compute_units: int
    memory_bytes_per_s: float | Floats
    element_bytes: float
    matmul: float
    winograd: float
    input_gradient: float
    weight_gradient: float
    strided: float
    unaligned: float
    direct: float
    direct_flop_per_s: float
    direct_weight_gradient: float
    fresh_s_per_byte: float = 0.0
    untuned: float = 1.0
    vector: ConvolutionRates | None = None
    matmuls: ConvolutionRates | None = None
    on_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """`groups` matmuls of an (m x k) by a (k x n) matrix, arrays of one length."""

    m: Floats
    n: Floats
    k: Floats
    groups: Floats


def convolution_matmul(shape: Convolution, which: ConvolutionPass) -> MatmulShape:
    """Return the matmul equivalent to a pass of a convolution.

    The FLOP are the same in all passes. An input gradient has `taps / stride_area` taps for each
    input position, at least one: where kernels are smaller than strides, positions are left out.
    """
    n, c, pos, taps = shape.out_channels, shape.in_channels, shape.positions, float(shape.taps)
    if which is ConvolutionPass.FORWARD:
        return MatmulShape(m=pos, n=n, k=c * taps, groups=shape.groups)
    if which is ConvolutionPass.WEIGHT_GRADIENT:
        return MatmulShape(m=n, n=c * taps, k=pos, groups=shape.groups)
    seen = min(shape.stride_area, taps)
    return MatmulShape(m=pos * seen, n=c, k=n * taps / seen, groups=shape.groups)


def convolution_time_s(
    shape: Convolution,
    which: ConvolutionPass,
    rates: ConvolutionRates,
    traffic_bytes: Floats,
    converted_bytes: Floats | float = 0.0,
) -> Floats:
    """Return the time of one pass of a convolution. [s]

    The least of implicit product, Winograd, Fourier transforms and, of grouped ones, a direct
    kernel. Products take the smooth maximum `(math**p + memory**p)**(1/p)` of their two roofs.

    Args:
        shape: Shape of the convolution.
        which: Forward or one of its gradients.
        rates: What the device reaches.
        traffic_bytes: Operands read and written once. [B]
        converted_bytes: Moved to bring operands into the layout that products need, and back. [B]
    """
    matmul = convolution_matmul(shape, which)
    relative = _relative(shape, which, rates)
    memory_s = traffic_bytes / rates.memory_bytes_per_s
    rate = rates.peak_flop_per_s * rates.matmul * rates.untuned * relative
    best = _roofs(_matmul_s(matmul, shape, rates, rate), memory_s, rates)
    if has_winograd(shape, rates):
        best = np.minimum(best, np.minimum(*winograd_s(shape, which, rates, memory_s)))
    elif _is_transformed(shape, rates) and shape.taps >= _FFT_TAPS:
        best = np.minimum(best, _fourier_s(shape, which, rates, memory_s))
    best = best + converted_bytes / rates.memory_bytes_per_s
    flop = 2.0 * matmul.m * matmul.n * matmul.k * matmul.groups
    if which is ConvolutionPass.WEIGHT_GRADIENT:
        relative = rates.direct_weight_gradient
    direct_s = _roofs(flop / rates.direct_flop_per_s, memory_s / rates.direct, rates) / relative
    best = np.asarray(np.where(shape.groups > 1, np.minimum(best, direct_s), best))
    if rates.vector is None:
        return best
    untransformed = replace(shape, square=False)
    return np.minimum(best, convolution_time_s(untransformed, which, rates.vector, traffic_bytes))


def implicit_matmul_time_s(
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    groups: Floats,
    rates: ConvolutionRates,
    row: Floats | None = None,
    is_stored: bool = False,
) -> Floats:
    """Return the time of a matmul by a library's kernels, as a convolution of one tap. [s]

    Libraries run both by the same loops over tiles, and cut sums that are long compared with the
    result, as those of gradients of small weights are. Fused training software pads and arranges
    its products so that `cost.matmul` holds.

    Args:
        m, n, k: Rows, columns, contraction.
        groups: Independent products.
        rates: What the device reaches.
        row: Elements of the result that lie in a row of memory; None: its columns.
        is_stored: The result is a gradient, stored until the update: see `fresh_s`.
    """
    shape = Convolution(
        positions=m,
        in_channels=k,
        out_channels=n,
        groups=groups,
        taps=1,
        stride_area=1.0,
        square=True,
    )
    traffic_bytes = groups * (m * k + k * n + m * n) * rates.element_bytes
    own = replace(rates, untuned=1.0)  # libraries of matmuls have heuristics of their own
    time_s = convolution_time_s(shape, ConvolutionPass.FORWARD, own, traffic_bytes)
    if rates.kernels.aliased < 1.0:
        aliased = _is_aliased((n if row is None else row) * rates.element_bytes)
        time_s = np.where(aliased, time_s / rates.kernels.aliased, time_s)
    result_bytes = m * n * groups * rates.element_bytes
    return time_s + fresh_s(result_bytes, rates.fresh_s_per_byte, is_stored=is_stored)


def _is_aliased(row_bytes: Floats) -> Flags:
    """Return whether result rows at this distance evict each other from a cache.

    Addresses that differ by a multiple of a page share a set of the first-level cache, and where
    rows are long, most of the second's: widths of powers of two, and of some times one. Of 64 x n
    products on an AMD EPYC, those of 8,192 and 12,288 columns of 4 bytes ran at 0.88 to 0.90 of the
    rate of 8,256 or 10,000, those of 4,096 at 0.97, of 2,048 at 1.
    """
    return np.asarray((row_bytes % _PAGE_BYTES == 0) & (row_bytes >= _LONG_ROW_BYTES))


def _relative(shape: Convolution, which: ConvolutionPass, rates: ConvolutionRates) -> float:
    """Return the rate of a pass relative to forward."""
    if which is ConvolutionPass.FORWARD:
        return 1.0
    if which is ConvolutionPass.WEIGHT_GRADIENT:
        return rates.weight_gradient
    return rates.input_gradient * (rates.strided if shape.stride_area > 1 else 1.0)


def _roofs(math_s: Floats, memory_s: Floats, rates: ConvolutionRates) -> Floats:
    power = rates.kernels.roofs
    return np.asarray((math_s**power + memory_s**power) ** (1.0 / power))


def _matmul_s(
    matmul: MatmulShape, shape: Convolution, rates: ConvolutionRates, rate: float
) -> Floats:
    """Return the time of matmuls on tiles: the fastest tile, split along k where that is faster."""
    m, n, k, groups = matmul.m, matmul.n, matmul.k, matmul.groups
    ramp, units = rates.kernels.ramp, rates.compute_units
    few_rows = 1.0 + rates.kernels.row_ramp / np.maximum(m, 1.0)
    tile_m, tile_n, relative = np.array(rates.kernels.tiles).T[:, :, None]  # of every tile at once
    area = np.ceil(m / tile_m) * np.ceil(n / tile_n) * groups
    most = np.maximum(np.floor(k / (_SPLIT_RAMPS * ramp)), 1.0)
    parts = np.clip(np.floor(rates.kernels.split_waves * units / area), 1.0, most)
    cut = np.stack((np.ones_like(parts), parts))
    waves = area * cut / units
    whole = np.where(waves <= _WAVES_AVERAGED, np.ceil(waves), waves + 0.5)
    done = np.maximum(whole, 1.0) * (2.0 * tile_m * tile_n * units)
    math_s = done * (k / cut + ramp) * few_rows / (rate * relative)
    joined = np.where(cut > 1, (cut + 1.0) * m * n * groups * 4.0, 0.0)
    each = math_s * _padding(shape, rates) + joined / rates.memory_bytes_per_s
    return np.asarray(each.min(axis=(0, 1)))


def _padding(shape: Convolution, rates: ConvolutionRates) -> Floats:
    """Return the slowdown of matrix units for channel counts that are no multiple of 8."""
    factor: Floats = np.ones_like(shape.positions)
    if rates.kernels.matrix:
        for channels in (shape.in_channels, shape.out_channels):
            whole = np.ceil(channels / _MATRIX_CHANNELS) * _MATRIX_CHANNELS
            slow = whole / channels / rates.unaligned
            factor = factor * np.where(whole > channels, slow, 1.0)
    return factor


def _is_transformed(shape: Convolution, rates: ConvolutionRates) -> bool:
    plain = rates.kernels.matrix or rates.kernels.profiled
    return not plain and shape.square and shape.stride_area == 1.0


def has_winograd(shape: Convolution, rates: ConvolutionRates) -> bool:
    """Return whether the library may run the convolution by Winograd's algorithm."""
    return _is_transformed(shape, rates) and shape.taps == _WINOGRAD_TAPS


def winograd_s(
    shape: Convolution, which: ConvolutionPass, rates: ConvolutionRates, memory_s: Floats
) -> tuple[Floats, Floats]:
    """Return the times of Winograd's algorithm for 3 x 3 kernels: fused, and through memory. [s]"""
    pos = shape.positions
    rate = rates.peak_flop_per_s * rates.winograd
    if which is ConvolutionPass.WEIGHT_GRADIENT:
        fused = np.full_like(pos, np.inf)
    else:
        matmul = convolution_matmul(shape, which)
        fused = _matmul_s(matmul, shape, rates, rate * _FUSED_SAVING)
        fused = _roofs(fused, memory_s, rates)
    tiles = pos / _WINOGRAD_OUTPUTS
    matmul = _of_tiles(shape, which, tiles, shape.groups * _WINOGRAD_VALUES)
    moved_s = 2.0 * winograd_bytes(shape, rates) / rates.memory_bytes_per_s
    return fused, _matmul_s(matmul, shape, rates, rate) + memory_s + moved_s


def winograd_bytes(shape: Convolution, rates: ConvolutionRates) -> Floats:
    """Return the size of the transformed values of both operands and the result. [B]"""
    c, n, tiles = shape.in_channels, shape.out_channels, shape.positions / _WINOGRAD_OUTPUTS
    values = shape.groups * _WINOGRAD_VALUES * (tiles * (c + n) + c * n)
    return np.asarray(values * rates.element_bytes)


def _of_tiles(
    shape: Convolution, which: ConvolutionPass, tiles: Floats, many: Floats
) -> MatmulShape:
    """Return the matmuls of transformed tiles, one for each value of a tile and group."""
    c, n = shape.in_channels, shape.out_channels
    m, n, k = {
        ConvolutionPass.FORWARD: (tiles, n, c),
        ConvolutionPass.INPUT_GRADIENT: (tiles, c, n),
        ConvolutionPass.WEIGHT_GRADIENT: (n, c, tiles),
    }[which]
    return MatmulShape(m=m, n=n, k=k, groups=many)


def _fourier_s(
    shape: Convolution, which: ConvolutionPass, rates: ConvolutionRates, memory_s: Floats
) -> Floats:
    """Return the time of the matmuls of Fourier-transformed tiles. [s]"""
    c, n, pos = shape.in_channels, shape.out_channels, shape.positions
    side = _FFT_SIDE - shape.taps**0.5 + 1.0
    tiles = np.ceil(pos / side**2)
    many = shape.groups * _FFT_VALUES
    matmul = _of_tiles(shape, which, tiles, many)
    rate = rates.peak_flop_per_s * rates.winograd * 2.0 / _FFT_FLOP
    values = 2.0 * rates.element_bytes
    moved = 2.0 * many * (tiles * (c + n) + c * n) * values / rates.memory_bytes_per_s
    return np.asarray(_matmul_s(matmul, shape, rates, rate) + memory_s + moved)

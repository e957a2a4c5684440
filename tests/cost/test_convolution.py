"""Convolutions: work is conserved, roofs hold, and the fastest algorithm is the one that counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wattree.cost import load_calibration
from wattree.cost.convolution import (
    Convolution,
    ConvolutionPass,
    ConvolutionRates,
    convolution_matmul,
    convolution_time_s,
    implicit_matmul_time_s,
)
from wattree.cost.convolution_rates import convolution_rates
from wattree.cost.convolution_workspace import workspace_bytes
from wattree.hardware import Precision, load_device

PASSES = tuple(ConvolutionPass)


@cache
def rates_of(
    device: str = "v100-sxm2-16gb", precision: Precision = Precision.FP32
) -> ConvolutionRates:
    """Return what a device of the catalog reaches under the shipped constants."""
    return convolution_rates(load_device(device), precision, load_calibration())


def shape_of(
    *,
    positions: float = 16 * 28 * 28,
    c: float = 128,
    k: float = 128,
    groups: float = 1,
    taps: int = 9,
    stride_area: float = 1.0,
    square: bool = True,
) -> Convolution:
    """Return a convolution of one size."""
    size = np.array([1.0])
    return Convolution(
        positions=positions * size,
        in_channels=c * size,
        out_channels=k * size,
        groups=groups * size,
        taps=taps,
        stride_area=stride_area,
        square=square,
    )


def moved_bytes(shape: Convolution, width: float) -> NDArray[np.float64]:
    """Return its operands, once each."""
    x = shape.positions * shape.stride_area * shape.in_channels * shape.groups
    y = shape.positions * shape.out_channels * shape.groups
    weight = shape.in_channels * shape.out_channels * shape.taps * shape.groups
    return (x + y + weight) * width


def time_s(shape: Convolution, which: ConvolutionPass, rates: ConvolutionRates) -> float:
    """Return the time of one pass."""
    return float(
        convolution_time_s(shape, which, rates, moved_bytes(shape, rates.element_bytes))[0]
    )


shapes = st.builds(
    shape_of,
    positions=st.integers(1, 10**7),
    c=st.integers(1, 2048),
    k=st.integers(1, 2048),
    groups=st.sampled_from([1, 2, 32]),
    taps=st.sampled_from([1, 9, 25, 49]),
    stride_area=st.sampled_from([1.0, 4.0]),
)
any_rates = st.builds(
    rates_of,
    st.sampled_from(["v100-sxm2-16gb", "t4", "a100-sxm-40gb", "rtx-3090"]),
    st.sampled_from([Precision.FP32, Precision.FP16]),
)


@given(shapes)
def test_every_pass_does_the_same_multiplications(shape: Convolution) -> None:
    """The three products contract the same five loops in another order."""
    flop = {
        which: (p.m * p.n * p.k * p.groups)[0]
        for which in PASSES
        for p in (convolution_matmul(shape, which),)
    }
    direct = shape.positions * shape.in_channels * shape.out_channels * shape.groups * shape.taps
    assert flop == pytest.approx(dict.fromkeys(PASSES, direct[0]))


@given(shapes, any_rates, st.sampled_from(PASSES))
def test_no_pass_is_faster_than_memory_or_the_least_arithmetic(
    shape: Convolution, rates: ConvolutionRates, which: ConvolutionPass
) -> None:
    """Winograd does a quarter of the multiplications, Fourier tiles a twelfth; bytes stay."""
    matmul = convolution_matmul(shape, which)
    flop = (2.0 * matmul.m * matmul.n * matmul.k * matmul.groups)[0]
    saving = 1.0 if rates.kernels.matrix else {9: 4.0, 25: 12.0, 49: 24.0}.get(shape.taps, 1.0)
    # Cards whose clocks lie above the datasheet's reach more than its peak.
    peak = max(rates.peak_flop_per_s * max(rates.matmul, 1.0), rates.direct_flop_per_s)
    roof_s = max(
        flop / saving / peak,
        moved_bytes(shape, rates.element_bytes)[0] / rates.memory_bytes_per_s,
    )
    assert time_s(shape, which, rates) >= roof_s * 0.999


@given(shapes, any_rates, st.sampled_from(PASSES), st.sampled_from([2, 3, 10]))
def test_more_samples_never_take_less_time(
    shape: Convolution, rates: ConvolutionRates, which: ConvolutionPass, factor: int
) -> None:
    """Up to a tile and a wave: whole waves may fit larger sizes better, by half at most."""
    more = replace(shape, positions=shape.positions * factor)
    assert time_s(more, which, rates) >= 0.7 * time_s(shape, which, rates)


@given(shapes, st.sampled_from(PASSES), st.floats(1.0, 8.0))
def test_a_faster_device_is_not_slower(
    shape: Convolution, which: ConvolutionPass, factor: float
) -> None:
    """Peak and bandwidth enter as rates."""
    rates = rates_of()
    fast = replace(
        rates,
        peak_flop_per_s=rates.peak_flop_per_s * factor,
        direct_flop_per_s=rates.direct_flop_per_s * factor,
        memory_bytes_per_s=rates.memory_bytes_per_s * factor,
    )
    assert time_s(shape, which, fast) <= time_s(shape, which, rates) * 1.000001


def test_winograd_lets_3x3_kernels_beat_the_fp32_peak() -> None:
    """As DeepBench measures on V100: 36 TFLOP/s of direct work on a peak of 15.7."""
    shape = shape_of(positions=16 * 20 * 84, c=256, k=256)
    rates = rates_of()
    flop = 2.0 * 16 * 20 * 84 * 256 * 256 * 9
    assert flop / time_s(shape, ConvolutionPass.FORWARD, rates) > 1.5 * rates.peak_flop_per_s


def test_winograd_needs_square_kernels_of_stride_1() -> None:
    """A stride, a dilation or another shape leaves the implicit product alone."""
    plain = shape_of(positions=16 * 56 * 56)
    rates = rates_of()
    fast = time_s(plain, ConvolutionPass.FORWARD, rates)
    assert time_s(replace(plain, square=False), ConvolutionPass.FORWARD, rates) > 1.5 * fast


def test_matrix_units_waste_what_channels_lack_to_8() -> None:
    """Three channels of an image take at least the time of eight."""
    rates = rates_of(precision=Precision.FP16)
    few, eight = (shape_of(positions=10**6, c=c, k=64, taps=49) for c in (3, 8))
    assert time_s(few, ConvolutionPass.FORWARD, rates) >= time_s(
        eight, ConvolutionPass.FORWARD, rates
    )


def test_depthwise_convolutions_are_bound_by_memory() -> None:
    """One channel per group leaves a direct kernel: some times its bytes, not its padded tiles."""
    rates = rates_of("a100-sxm-40gb", Precision.FP16)
    shape = shape_of(positions=256 * 56 * 56, c=1, k=1, groups=144)
    bytes_s = moved_bytes(shape, 2.0)[0] / rates.memory_bytes_per_s
    assert bytes_s < time_s(shape, ConvolutionPass.FORWARD, rates) < 6 * bytes_s


@pytest.mark.parametrize("device", ["rtx-4090", "a100-sxm-80gb"])
@pytest.mark.parametrize("which", PASSES)
def test_tf32_is_no_slower_than_fp32_where_matrix_units_are_no_use(
    which: ConvolutionPass, device: str
) -> None:
    """Its operands are those of fp32, whose kernels a library then takes."""
    grouped = shape_of(c=1, k=1, groups=64, taps=49)
    deep = shape_of(c=1, k=16, taps=27, square=False)
    for shape in (grouped, deep):
        tf32, fp32 = (
            time_s(shape, which, rates_of(device, precision))
            for precision in (Precision.TF32, Precision.FP32)
        )
        assert tf32 <= fp32


def test_a_layout_conversion_adds_its_bytes_to_products() -> None:
    """NCHW activations are turned round before and after kernels of matrix units."""
    rates, shape = rates_of(precision=Precision.FP16), shape_of()
    moved = moved_bytes(shape, 2.0)
    plain = convolution_time_s(shape, ConvolutionPass.FORWARD, rates, moved)
    turned = convolution_time_s(shape, ConvolutionPass.FORWARD, rates, moved, 2 * moved)
    assert turned - plain == pytest.approx(2 * moved / rates.memory_bytes_per_s)


def test_transforms_that_pass_through_memory_take_a_workspace() -> None:
    """Tiles of 4 x 4 outputs are 6 x 6 values of every channel: 9/4 of operand and result.

    UPerNet's last 3 x 3 layer on two maps of 128 x 256 took 1.5 GiB so (mmsegmentation, V100).
    """
    shape, moved = shape_of(positions=2 * 128 * 256, c=2048, k=512), np.array([1e9])
    values = 2.25 * 2 * 128 * 256 * (2048 + 512) + 36 * 2048 * 512

    for which in PASSES:
        assert workspace_bytes(shape, which, rates_of(), moved) == pytest.approx(4.0 * values)
        for other in (
            replace(shape, taps=1),
            replace(shape, square=False),  # dilated, or in three dims
            replace(shape, stride_area=4.0),
            replace(shape, in_channels=shape.in_channels / 1024),  # transforms do not pay
        ):
            assert workspace_bytes(other, which, rates_of(), moved) == 0.0
        in_16_bits = rates_of(precision=Precision.FP16)
        assert workspace_bytes(shape, which, in_16_bits, moved) == 0.0


def test_algorithms_by_heuristics_are_slower_and_matmuls_are_not() -> None:
    """`cudnn.benchmark = False` is of cuDNN, which multiplies no matrices."""
    device, calibration = load_device("v100-sxm2-16gb"), load_calibration()
    left, tried = convolution_rates(device, Precision.FP32, calibration, tuned=False), rates_of()
    of = {"which": ConvolutionPass.FORWARD, "traffic_bytes": moved_bytes(shape_of(), 4.0)}
    sizes = {each: np.array([2048.0]) for each in "mnk"}

    assert convolution_time_s(shape_of(), rates=left, **of) > convolution_time_s(
        shape_of(), rates=tried, **of
    )
    assert implicit_matmul_time_s(**sizes, groups=1.0, rates=left) == implicit_matmul_time_s(
        **sizes, groups=1.0, rates=tried
    )


@pytest.mark.parametrize(
    ("device", "precision", "matrix"),
    [
        ("v100-sxm2-16gb", Precision.FP32, False),
        ("v100-sxm2-16gb", Precision.TF32, False),  # falls back to fp32
        ("v100-sxm2-16gb", Precision.FP16, True),
        ("a100-sxm-40gb", Precision.TF32, True),
        ("a100-sxm-40gb", Precision.FP32, False),
        ("p100-sxm2-16gb", Precision.FP16, False),
        ("rtx-2080-ti", Precision.FP16, True),
        ("gtx-1660", Precision.FP16, False),
    ],
)
def test_matrix_units_are_used_where_a_device_has_them(
    device: str, precision: Precision, *, matrix: bool
) -> None:
    """Volta has none for TF32, Pascal and the GTX cards of Turing none at all."""
    assert rates_of(device, precision).kernels.matrix is matrix


#: V100, cuDNN 7.6, 16 samples (DeepBench, results/train at da81ba7): positions, channels, taps,
#: and the times of the three passes. [us]
MEASURED = [
    (Precision.FP32, (28, 128, 128, 9), (158, 154, 153)),
    (Precision.FP32, (56, 64, 256, 1), (161, 154, 245)),
    (Precision.FP16, (28, 128, 128, 9), (63, 67, 75)),
    (Precision.FP16, (14, 256, 1024, 1), (36, 43, 42)),
    (Precision.FP16, (112, 64, 128, 9), (355, 374, 423)),
]


@pytest.mark.parametrize(("precision", "sizes", "us"), MEASURED)
def test_layers_of_real_networks_take_what_was_measured(
    precision: Precision, sizes: tuple[int, int, int, int], us: tuple[int, int, int]
) -> None:
    """Within 45 %: the spread of single shapes; medians over shapes are 10 to 20 %."""
    side, c, k, taps = sizes
    shape = shape_of(positions=16 * side**2, c=c, k=k, taps=taps)
    launch_us = 20 if precision is Precision.FP32 else 8
    found = [
        time_s(shape, which, rates_of(precision=precision)) * 1e6 + launch_us for which in PASSES
    ]
    assert found == pytest.approx(us, rel=0.45)

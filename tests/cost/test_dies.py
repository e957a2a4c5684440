"""Constants that products of one die share, and what their boards make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cost import Calibration, load_calibration
from wattree.cost.calibration import board_j_per_flop, device_names
from wattree.cost.precisions import CORES_ITEM, product_item
from wattree.cost.products import PRODUCT_ITEMS, with_levels
from wattree.hardware import Precision, load_device
from wattree.hardware.names import device_names as catalog_devices

SHIPPED = load_calibration()


def named(calibration: Calibration, device: str, item: str) -> str:
    """Return the constant that a device's is taken from."""
    names = device_names(load_device(device), item)
    return next(name for name in names if name in calibration.constants)


@pytest.mark.parametrize(
    ("device", "die"),
    [
        ("a100-sxm-40gb", "ga100"),
        ("a30", "ga100"),
        ("h100-nvl-94gb", "gh100"),
        ("h800-sxm-80gb", "gh100"),
        ("gh200-96gb", "gh100"),
        ("gb300", "gb110"),
        ("l40", "ad102"),
        ("a40", "ga102"),
        ("titan-rtx", "tu102"),
        ("v100-sxm2-32gb", "gv100"),
    ],
)
def test_a_product_that_nobody_measured_finds_its_die(device: str, die: str) -> None:
    """A mean over all devices knows less of it than a product with the same chip."""
    assert named(SHIPPED, device, "matmul.bf16") == f"die.{die}.matmul.bf16"


@pytest.mark.parametrize("item", ["matmul", "training"])
def test_products_of_a_width_that_nobody_measured_take_the_next_width(item: str) -> None:
    """What TPUs reach with 16 bits says more of 8 than what power-limited GPUs reach with those."""
    of_all = [
        device
        for device in map(load_device, catalog_devices())
        if device.kind != "gpu" and Precision.FP8 in device.peak_flop_per_s
    ]
    measured = [
        each
        for each in of_all
        if SHIPPED.own(each, "matmul.bf16", 0.0) and not SHIPPED.own(each, "matmul.fp8", 0.0)
    ]

    assert {each.vendor for each in measured} >= {"google", "aws"}
    assert [SHIPPED.device(each, f"{item}.fp8") for each in measured] == [
        SHIPPED.device(each, f"{item}.bf16") for each in measured
    ]


def test_a_rate_of_another_width_is_less_sure() -> None:
    """The interval is as wide as where other devices stand in besides."""
    narrow, wide = (
        SHIPPED.found_for_device(load_device("tpu-v7x"), f"matmul.{width}")
        for width in ("fp8", "bf16")
    )

    assert narrow is not None
    assert wide is not None
    assert narrow.constant.spread > 1.5 * wide.constant.spread


def test_memory_alone_changes_no_rate_of_products() -> None:
    """An A100 of 40 GB has the die and the board power of one of 80 GB."""
    small, large = (load_device(f"a100-sxm-{size}gb") for size in (40, 80))

    assert SHIPPED.device(small, "matmul.bf16") == pytest.approx(
        SHIPPED.device(large, "matmul.bf16")
    )


@pytest.mark.parametrize("device", ["h100-pcie-80gb", "h100-nvl-94gb", "h100-sxm-96gb-500w"])
def test_a_board_with_less_power_reaches_less_of_its_peak(device: str) -> None:
    """Its clock gives way sooner: 0.46 to 0.51 W a TFLOP/s against 0.71."""
    own = SHIPPED.device(load_device(device), "matmul.bf16")

    assert own < SHIPPED.constants["die.gh100.matmul.bf16"].value


def test_power_that_a_board_does_not_lack_takes_little() -> None:
    """A100 loses a seventh of its rate with three fifths of its power; H100 far more."""
    a100, h100 = (load_device(f"{name}-sxm-80gb") for name in ("a100", "h800"))
    kept = {
        name: constant
        for name, constant in SHIPPED.constants.items()
        if not name.startswith("device.a100-sxm-80gb.matmul.")
    }
    left = replace(SHIPPED, constants=kept)
    losses = [
        left.device(replace(device, tdp_w=0.625 * device.tdp_w), "matmul.bf16")
        / left.device(device, "matmul.bf16")
        for device in (a100, h100)
    ]

    exponents = (SHIPPED.general(f"power_exponent.{level}") for level in ("pooled", "die"))
    assert losses == pytest.approx([0.625**each for each in exponents], rel=0.01)


def test_best_products_pull_a_board_towards_them() -> None:
    """H100 PCIe: 0.47 by its die and power, 0.61 by its best matmul."""
    device = load_device("h100-pcie-80gb")
    kept = {
        name: constant
        for name, constant in SHIPPED.constants.items()
        if not name.startswith(f"device.{device.name}.")
    }
    by_die = replace(SHIPPED, constants=kept).device(device, "matmul.bf16")

    assert by_die < SHIPPED.device(device, "matmul.bf16") < 0.656


@given(power=st.floats(0.3, 4.0))
def test_shares_stay_shares_whatever_a_board_draws(power: float) -> None:
    """Where power is no limit, units and kernels are."""
    device = load_device("h800-sxm-80gb")
    share = SHIPPED.device(replace(device, tdp_w=power * device.tdp_w), "matmul.bf16")

    assert 0.0 < share <= SHIPPED.general("matmul_most")


def test_a_device_without_16_bit_units_is_not_scaled() -> None:
    """It has no board power for each FLOP of a peak that it lacks."""
    device = load_device("gtx-1080-ti")

    assert board_j_per_flop(device) is None
    assert SHIPPED.device(device, "matmul.bf16") == SHIPPED.constants["pooled.matmul.bf16"].value


def test_levels_follow_from_the_devices_below() -> None:
    """What ships is what `with_levels` makes of it: no second hand-written figure of a die."""
    again = with_levels(SHIPPED)

    for name, constant in SHIPPED.constants.items():
        if name.endswith(PRODUCT_ITEMS):
            assert again.constants[name].value == pytest.approx(constant.value, rel=1e-4), name


def test_without_its_own_a_die_leaves_its_devices_to_the_rest() -> None:
    """As for a product that came out after the tables."""
    kept = {
        name: constant
        for name, constant in SHIPPED.constants.items()
        if not name.startswith("device.arc-pro-b60.matmul.")
    }
    left = with_levels(replace(SHIPPED, constants=kept))

    assert named(left, "arc-pro-b60", "matmul.bf16") == "pooled.matmul.bf16"


@pytest.mark.parametrize("device", ["tpu-v4", "gaudi3", "epyc-7742"])
def test_what_is_no_gpu_has_the_measured_mean_of_all(device: str) -> None:
    """What kernels of GPUs compute says nothing of other units."""
    assert named(SHIPPED, device, "library_bandwidth") == "pooled.library_bandwidth"


@given(faster=st.floats(1.0, 20.0))
def test_kernels_reach_no_more_than_memory_and_no_more_than_arithmetic(faster: float) -> None:
    """Ever faster memory ends at what the vector units compute on."""
    device = load_device("h200-sxm-141gb")
    nominal = faster * device.memory_bandwidth_bytes_per_s
    reached = nominal * SHIPPED.device(
        replace(device, memory_bandwidth_bytes_per_s=nominal), "library_bandwidth"
    )
    by_arithmetic = device.vector_flop_per_s * SHIPPED.general("stream_bytes_per_flop")

    assert reached < min(SHIPPED.constants["pooled.dram_share"].value * nominal, by_arithmetic)


def test_convolutions_of_one_die_go_with_the_power_of_the_board() -> None:
    """A10 and RTX A6000 are one chip: 1.20 and 1.94 W a TFLOP/s."""
    shares = [
        SHIPPED.device(load_device(name), "convolution.bf16") for name in ("a10", "rtx-a6000")
    ]

    assert shares[1] / shares[0] == pytest.approx((1.938 / 1.2) ** 0.3, rel=0.01)


@pytest.mark.parametrize("name", ["mi100", "mi250x-gcd", "mi300x", "mi355x"])
def test_matrix_units_of_32_bits_convolve_as_they_multiply(name: str) -> None:
    """AMD's peak is theirs; NVIDIA's is that of other units, which Winograd's method spares."""
    device = load_device(name)
    products, convolutions = (
        SHIPPED.device(device, f"{each}.fp32") for each in ("matmul", "convolution")
    )

    assert products < convolutions < 1.2 * products


@pytest.mark.parametrize(
    ("name", "level"), [("t4", "device"), ("h100-sxm-80gb", "die"), ("mi300x", "architecture")]
)
def test_products_of_32_bits_are_measured_where_tables_have_them(name: str, level: str) -> None:
    """The pooled figure is 0.6; T4 reaches 0.4."""
    assert named(SHIPPED, name, "matmul.cores").startswith(f"{level}.")


def test_cores_of_a_die_do_not_lose_what_its_matrix_units_do() -> None:
    """Best products in fp32: 66.2 TFLOP/s on B200 and 52.1 on H100, 24.8 of 35.6 on RTX 3090."""
    best = {"b200-sxm-180gb": 66.2e12, "h100-sxm-80gb": 52.1e12, "rtx-3090": 24.8e12}
    for name, most in best.items():
        device = load_device(name)
        share = SHIPPED.device(device, product_item(device, Precision.FP32))
        rate = share * device.peak_flop_per_s[Precision.FP32]

        assert 0.85 * most < rate < most, name
        assert product_item(device, Precision.BF16) == "matmul.bf16"


@pytest.mark.parametrize(
    "name", ["l40s", "l20", "rtx-4090", "rtx-3080-ti", "rtx-a6000", "rtx-5090"]
)
def test_boards_of_a_die_have_the_cores_that_their_power_allows(name: str) -> None:
    """L40S reaches 0.48 of peak, RTX 4090 0.62 with more power; A6000 0.58 and 3080 Ti 0.67."""
    own = f"device.{name}.{CORES_ITEM}"
    rest = {each: constant for each, constant in SHIPPED.constants.items() if each != own}
    others = replace(SHIPPED, constants=rest)

    found = others.device(load_device(name), CORES_ITEM)
    assert found == pytest.approx(SHIPPED.constants[own].value, rel=0.08)


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "p100-pcie-16gb", "m40-12gb"])
def test_tf32_where_there_is_none_is_fp32(name: str) -> None:
    """And so is bf16 on M40, by `cublasGemmEx`; P100 and V100 have units for 16 bits."""
    device = load_device(name)
    items = [product_item(device, each) for each in (Precision.TF32, Precision.BF16)]

    assert items == ["matmul.cores", "matmul.cores" if name == "m40-12gb" else "matmul.bf16"]

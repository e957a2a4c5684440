"""Power of one device: bounds, monotony, and what the formula says in its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.node_power import average_power_w
from wattree.cost import load_calibration
from wattree.cost.device_power import device_power, math_constant
from wattree.energy import ClockCurve, DevicePower, dynamic_energy_j
from wattree.errors import HardwareError
from wattree.hardware import Precision, load_device

PEAK, BANDWIDTH, TDP, IDLE = 1e15, 3e12, 700.0, 70.0
CURVE = ClockCurve(
    floor_voltage=0.85, voltage_slope=0.7, lowest=0.12, memory_clock=0.64, leakage_w=50.0
)
DEVICE = DevicePower(
    rated_w=TDP,
    idle_w=IDLE,
    limit_w=TDP,
    held_share=0.98,
    active_share=0.25,
    math_share=1.5,
    memory_share=0.3,
    vector_share=0.2,
    spin_share=0.127,
    peak_flop_per_s=PEAK,
    memory_bytes_per_s=BANDWIDTH,
    curve=CURVE,
)
work = st.floats(0.0, 1e18)
limits = st.floats(90.0, TDP)


def energy_j(
    flop: float = 0.0,
    traffic_bytes: float = 0.0,
    busy_s: float = 1.0,
    *,
    communicates: bool = False,
    copies: bool = False,
    limit_w: float = TDP,
) -> float:
    """Return the energy above rest of one task."""
    return float(
        dynamic_energy_j(
            replace(DEVICE, limit_w=limit_w),
            flop=np.array([flop]),
            traffic_bytes=np.array([traffic_bytes]),
            busy_s=np.array([busy_s]),
            communicates=np.array([communicates]),
            copies=np.array([copies]),
        )[0]
    )


def capped_s(
    limit_w: float,
    *,
    flop: float = 5e14,
    traffic_bytes: float = 1e11,
    time_s: float = 1.0,
    device: DevicePower = DEVICE,
) -> float:
    """Return the time under a limit of an operator that takes a second without one."""
    cap = replace(device, limit_w=limit_w).cap
    if cap is None:
        return time_s
    memory_s = np.array([traffic_bytes / BANDWIDTH])
    at = np.array([time_s]), np.array([flop]), np.array([traffic_bytes])
    return float(cap.time_s(*at, memory_s)[0])


@given(
    flop=work,
    traffic=work,
    busy_s=st.floats(0.0, 1e3),
    limit_w=limits,
    communicates=st.booleans(),
)
def test_a_device_draws_no_more_than_its_limit(
    flop: float, traffic: float, busy_s: float, limit_w: float, *, communicates: bool
) -> None:
    """Energy above rest is between nothing and what its board holds, for as long as it ran."""
    found = energy_j(flop, traffic, busy_s, communicates=communicates, limit_w=limit_w)

    assert 0.0 <= found <= (limit_w - IDLE + 1e-9) * busy_s * (1 + 1e-12)


@given(flop=work, more=work, traffic=work)
def test_more_work_in_the_same_time_takes_no_less_energy(
    flop: float, more: float, traffic: float
) -> None:
    """Dynamic energy follows work."""
    assert energy_j(flop + more, traffic) >= energy_j(flop, traffic)
    assert energy_j(flop, traffic + more) >= energy_j(flop, traffic)


@given(flop=work, traffic=work, limit_w=limits, lower=st.floats(0.2, 1.0))
def test_a_lower_limit_never_raises_power(
    flop: float, traffic: float, limit_w: float, lower: float
) -> None:
    """The same work in the same time."""
    low_w = max(limit_w * lower, 90.0)

    assert energy_j(flop, traffic, limit_w=low_w) <= energy_j(flop, traffic, limit_w=limit_w)


def test_the_parts_add_up_below_the_limit() -> None:
    """By hand: a quarter for running kernels, math and bytes by their rates."""
    found = energy_j(flop=0.2 * PEAK, traffic_bytes=0.5 * BANDWIDTH)

    assert found == pytest.approx((TDP - IDLE) * (0.25 + 1.5 * 0.2 + (0.3 + 0.2) * 0.5))


@pytest.mark.parametrize("name", ["h200-sxm-141gb", "b200-sxm-180gb", "gb200"])
def test_products_above_half_of_peak_are_at_the_limit(name: str) -> None:
    """Measured: 96 to 99 % of it (AI Configurator tables, 2026)."""
    device = load_device(name)
    power = device_power(device, Precision.BF16, load_calibration())
    second, none = np.ones(1), np.zeros(1)

    board_w = power.board_w(0.55 * power.peak_flop_per_s * second, none, second)

    assert 0.96 * device.tdp_w < float(board_w[0]) < 0.995 * device.tdp_w


@pytest.mark.parametrize(
    ("name", "flop_per_s", "board_w"),
    [("h100-sxm-80gb", 51.5e12, 615.0), ("rtx-4090", 53.8e12, 380.0)],
)
def test_products_of_cores_stay_below_the_limit(
    name: str, flop_per_s: float, board_w: float
) -> None:
    """Measured: fp32 without matrix units, gpu-fryer and gpu-burn, of 700 and 450 W."""
    power = device_power(load_device(name), Precision.FP32, load_calibration())
    second, none = np.ones(1), np.zeros(1)

    found_w = power.board_w(flop_per_s * second, none, second)

    assert float(found_w[0]) == pytest.approx(board_w, rel=0.03)


@pytest.mark.parametrize(
    ("name", "precision", "units"),
    [
        ("rtx-3080", Precision.TF32, True),  # at the rate of its cores
        ("mi250x-gcd", Precision.FP32, True),
        ("a100-sxm-40gb", Precision.FP32, False),
        ("gtx-1080-ti", Precision.FP16, False),  # without units: products in fp32
        ("v100-pcie-16gb", Precision.TF32, False),  # has none of it
    ],
)
def test_products_of_32_bits_draw_by_what_multiplies(
    name: str, precision: Precision, *, units: bool
) -> None:
    """Matrix units draw more at their peak than cores at theirs."""
    expected = "power_math.tf32" if units else "power_math.fp32"

    assert math_constant(load_device(name), precision) == expected


@pytest.mark.parametrize("name", ["a10", "l4", "p4", "t4"])
def test_boards_that_hold_a_large_die_are_at_their_limit_in_training(name: str) -> None:
    """Measured: T4 and L4 draw their rated power with any network that keeps them busy."""
    device = load_device(name)
    power = device_power(device, Precision.FP32, load_calibration())
    second = np.ones(1)

    board_w = power.board_w(
        0.4 * power.peak_flop_per_s * second, 0.2 * power.memory_bytes_per_s * second, second
    )

    assert float(board_w[0]) > 0.95 * device.tdp_w


def test_waiting_in_a_collective_costs_something_however_few_bytes_it_moves() -> None:
    """150 W against 70 W at rest on H100: kernels spin."""
    assert energy_j(communicates=True) + IDLE == pytest.approx(150.0, abs=1.0)


def test_a_copy_engine_draws_what_its_bytes_take_however_long_it_runs() -> None:
    """No core runs for it."""
    one, two = (energy_j(traffic_bytes=1e9, busy_s=s, copies=True) for s in (1.0, 2.0))

    assert one == two == pytest.approx((TDP - IDLE) * 0.3 * 1e9 / BANDWIDTH)


def test_the_rated_limit_slows_nothing() -> None:
    """Nor does the lack of one: there is no cap to ask."""
    assert DEVICE.cap is None
    assert (
        device_power(load_device("a40"), Precision.BF16, load_calibration(), limit_w=900.0).cap
        is None
    )


@given(limit_w=limits, lower=st.floats(0.2, 1.0), share=st.floats(0.0, 1.0))
def test_a_lower_limit_never_saves_time(limit_w: float, lower: float, share: float) -> None:
    """Clocks give way to it."""
    low_w = max(limit_w * lower, 90.0)
    work = {"flop": share * 7e14, "traffic_bytes": (1 - share) * 2.9e12}

    assert capped_s(low_w, **work) >= capped_s(limit_w, **work) * (1 - 1e-9) >= 1 - 1e-9


def test_a_limit_above_what_work_asks_for_changes_nothing() -> None:
    """Memory-bound work at 550 W draws less."""
    assert capped_s(550.0, flop=0.0, traffic_bytes=2.9e12) == 1.0


def test_memory_bound_work_keeps_its_time_until_the_clock_is_very_low() -> None:
    """Products slow at 400 W; streaming alone asks for 410 W and keeps its time at 340 W."""
    matmul_s = capped_s(400.0)
    streaming = {"flop": 0.0, "traffic_bytes": 2.9e12}

    assert matmul_s > 1.2
    assert capped_s(340.0, device=DEVICE.steady, **streaming) == pytest.approx(1.0)
    assert capped_s(120.0, device=DEVICE.steady, **streaming) > 1.05
    # What cores do with the bytes in training follows their clock, and asks for 530 W in all.
    assert capped_s(450.0, **streaming) == pytest.approx(1.0)
    assert capped_s(340.0, **streaming) > 1.05


def test_steady_products_draw_nothing_for_what_training_does_with_bytes() -> None:
    """Nor do copy engines."""
    second = np.ones(1)
    work = {"flop": 1e14 * second, "traffic_bytes": 1e12 * second, "busy_s": second}
    more_w = DEVICE.board_w(**work) - DEVICE.steady.board_w(**work)

    assert float(more_w[0]) == pytest.approx((TDP - IDLE) * 0.2 * 1e12 / BANDWIDTH)
    assert replace(DEVICE, vector_share=0.0) == DEVICE.steady


@given(
    math=st.floats(0.0, 0.2),
    memory=st.floats(0.0, 0.5),
    waits=st.floats(0.0, 0.9),
)
def test_the_average_of_a_step_is_that_of_its_tasks_below_the_limit(
    math: float, memory: float, waits: float
) -> None:
    """Energy of a task that computes and of one that communicates, over the time of both."""
    flop, traffic = math * PEAK, memory * BANDWIDTH
    tasks_j = dynamic_energy_j(
        DEVICE,
        flop=np.array([flop, 0.0]),
        traffic_bytes=np.array([traffic, 0.0]),
        busy_s=np.array([1.0 - waits, waits]),
        communicates=np.array([False, True]),
        copies=np.zeros(2, dtype=bool),
    )
    found = average_power_w(
        DEVICE,
        flop=flop,
        traffic_bytes=traffic,
        computing_s=1.0 - waits,
        communicating_s=waits,
    )
    whole_w = IDLE + float(tasks_j.sum())

    # A task at its limit draws less than what it asks for spread over the step.
    held = (1.0 - waits) * DEVICE.most_dynamic_w <= float(tasks_j[0]) * (1 + 1e-9)
    assert found >= whole_w * (1 - 1e-9) if held else found == pytest.approx(whole_w)
    assert found <= 0.98 * TDP * (1 + 1e-12)


def test_a_limit_saves_energy_down_to_the_lowest_voltage_and_then_costs_some() -> None:
    """Power over clock falls with the square of the voltage, which has a floor."""
    tops = [TDP, 600.0, 500.0, 400.0, 300.0, 200.0]
    joules = [
        (IDLE + energy_j(flop=5e14, traffic_bytes=1e11, busy_s=time_s, limit_w=limit_w) / time_s)
        * time_s
        for limit_w in tops
        for time_s in [capped_s(limit_w)]
    ]

    least = int(np.argmin(joules))
    assert 0 < least < len(tops) - 1
    assert joules == sorted(joules[: least + 1], reverse=True) + sorted(joules[least + 1 :])


def test_below_the_lowest_clock_time_grows_until_the_limit_is_kept() -> None:
    """An operator that is at its lowest clock rests for part of the time: no work is for free."""
    lowest_w = (IDLE + 0.01 * (TDP - IDLE)) / 0.98
    tops = np.linspace(150.0, lowest_w + 1e-6, 60)
    times = [capped_s(float(limit_w)) for limit_w in tops]
    powers = [
        IDLE + energy_j(flop=5e14, traffic_bytes=1e11, busy_s=time_s, limit_w=limit_w) / time_s
        for limit_w, time_s in zip(tops, times, strict=True)
    ]

    assert all(power_w <= limit_w for power_w, limit_w in zip(powers, tops, strict=True))
    assert (np.diff(times) > 0).all()
    # What a limit leaves above rest grows with it, and the rate of work with that.
    assert times[-1] > 1.1 * times[-2]


@pytest.mark.parametrize("limit_w", [IDLE + 1.0, 77.0])
def test_a_limit_that_leaves_nothing_for_work_is_refused_with_the_lowest_that_can_be_kept(
    limit_w: float,
) -> None:
    """(70 + 6.3) / 0.98 = 77.9 W."""
    with pytest.raises(HardwareError, match="cannot keep while it works; use 78 W or more"):
        replace(DEVICE, limit_w=limit_w)

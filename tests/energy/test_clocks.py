"""Clocks under limits: bounds, the limit itself, and what runs under an anchor's limit take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.energy.test_power import CURVE
from wattree.cost import load_calibration
from wattree.cost.device_power import device_mixture
from wattree.energy import ClockCurve, Demand, clock_under_limit, power_at_clock_w, under_limit
from wattree.energy.clocks import time_at_clock
from wattree.errors import HardwareError
from wattree.hardware import load_device

watts = st.floats(0.0, 600.0)
shares = st.floats(0.0, 1.0)
MIXTURES = {
    name: device_mixture(load_device(name), load_calibration())
    for name in ("v100-pcie-16gb", "a40", "h100-sxm-80gb")
}


def demand(clocked_w: float, memory_w: float, math: float) -> Demand:
    """Return one operator's."""
    return Demand(
        clocked_w=np.array([clocked_w]),
        memory_w=np.array([memory_w]),
        math_share=np.array([math]),
        memory_share=np.array([np.sqrt(1 - math**2)]),
    )


@given(clocked=watts, memory=watts, math=shares, limit_w=st.floats(60.0, 1300.0))
def test_the_clock_fits_the_limit_and_a_higher_one_would_not(
    clocked: float, memory: float, math: float, limit_w: float
) -> None:
    """It is the highest, and 1 exactly where work fits as it is."""
    asked = demand(clocked, memory, math)
    clock = clock_under_limit(asked, limit_w, CURVE)
    found_w = float(power_at_clock_w(asked, clock, CURVE)[0])

    assert CURVE.lowest <= clock[0] <= 1.0
    if CURVE.leakage_w + clocked + memory <= limit_w:
        assert clock[0] == 1.0
    elif clock[0] > CURVE.lowest:
        assert found_w == pytest.approx(limit_w, rel=1e-6)


@given(math=shares, clock=st.floats(0.12, 1.0), lower=st.floats(0.5, 1.0))
def test_time_never_falls_with_the_clock(math: float, clock: float, lower: float) -> None:
    """Between that of memory and that of arithmetic."""
    asked = demand(100.0, 100.0, math)
    low = max(clock * lower, CURVE.lowest)
    slow, fast = (float(time_at_clock(asked, np.array([at]), CURVE)[0]) for at in (low, clock))

    assert slow >= fast * (1 - 1e-12)
    assert 1 - 1e-9 <= fast <= 1 / clock + 1e-9


def test_one_array_and_its_parts_agree() -> None:
    """Each operator has its own clock."""
    many = Demand(
        clocked_w=np.array([50.0, 400.0, 500.0]),
        memory_w=np.array([100.0, 10.0, 200.0]),
        math_share=np.array([0.0, 1.0, 0.6]),
        memory_share=np.array([1.0, 0.0, 0.8]),
    )
    together = clock_under_limit(many, 300.0, CURVE)
    alone = [
        clock_under_limit(demand(c, m, a), 300.0, CURVE)[0]
        for c, m, a in zip(many.clocked_w, many.memory_w, many.math_share, strict=True)
    ]

    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    assert together[0] == 1.0
    assert together[1] < 1.0


def test_a_curve_without_a_floor_is_refused() -> None:
    """A voltage of nothing computes nothing."""
    with pytest.raises(HardwareError, match="floor voltage and lowest clock above 0"):
        ClockCurve(
            floor_voltage=0.0, voltage_slope=1.0, lowest=0.1, memory_clock=0.5, leakage_w=10.0
        )


@pytest.mark.parametrize("name", MIXTURES)
@given(part=st.floats(0.1, 1.0), share=st.floats(0.35, 1.0), lower=st.floats(0.5, 1.0))
def test_runs_under_lower_limits_draw_less_and_take_longer(
    name: str, part: float, share: float, lower: float
) -> None:
    """And no more than the limit, where a board can keep it."""
    mixture, rated_w = MIXTURES[name], load_device(name).tdp_w
    power_w = np.array([part * rated_w])
    limits_w = np.array([share, max(share * lower, 0.35)]) * rated_w
    found = [
        under_limit(
            mixture,
            power_w=power_w,
            anchor_limit_w=np.array([rated_w]),
            limit_w=np.array([limit_w]),
        )
        for limit_w in limits_w
    ]
    first, second = found

    assert second.power_w[0] <= first.power_w[0] * (1 + 1e-9) <= power_w[0] * (1 + 1e-6)
    assert second.stretch[0] >= first.stretch[0] * (1 - 1e-9) >= 1 - 1e-6
    assert second.busy_share[0] >= first.busy_share[0] * (1 - 1e-9)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.95])
def test_the_anchors_own_limit_gives_the_anchor_back(name: str, part: float) -> None:
    """Power and time."""
    mixture, rated_w = MIXTURES[name], load_device(name).tdp_w
    at = np.array([rated_w])
    found = under_limit(mixture, power_w=part * at, anchor_limit_w=at, limit_w=at)

    assert found.power_w[0] == pytest.approx(part * rated_w, rel=1e-6)
    assert found.stretch[0] == pytest.approx(1.0, rel=1e-9)

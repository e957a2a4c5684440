"""Power of one device: bounds, and what the formula says in its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.energy import cap_slowdown, dynamic_energy_j, rated_dynamic_w

PEAK, BANDWIDTH, TDP, IDLE = 1e15, 3e12, 700.0, 70.0
work = st.floats(0.0, 1e18)


def energy_j(
    flop: float = 0.0,
    traffic_bytes: float = 0.0,
    busy_s: float = 1.0,
    *,
    communicates: bool = False,
    tdp_w: float = TDP,
) -> float:
    """Return the energy above rest of one task."""
    return float(
        dynamic_energy_j(
            flop=np.array([flop]),
            traffic_bytes=np.array([traffic_bytes]),
            busy_s=np.array([busy_s]),
            communicates=np.array([communicates]),
            peak_flop_per_s=PEAK,
            memory_bytes_per_s=BANDWIDTH,
            tdp_w=tdp_w,
            idle_w=IDLE,
        )[0]
    )


@given(flop=work, traffic=work, busy_s=st.floats(0.0, 1e3), communicates=st.booleans())
def test_a_device_draws_no_more_than_it_is_rated_for(
    flop: float, traffic: float, busy_s: float, *, communicates: bool
) -> None:
    """Energy above rest is between nothing and the whole range for as long as it ran."""
    found = energy_j(flop, traffic, busy_s, communicates=communicates)

    assert 0.0 <= found <= rated_dynamic_w(TDP, IDLE) * busy_s * (1 + 1e-12)


@given(flop=work, more=work, traffic=work)
def test_more_work_in_the_same_time_takes_no_less_energy(
    flop: float, more: float, traffic: float
) -> None:
    """Dynamic energy follows work."""
    assert energy_j(flop + more, traffic) >= energy_j(flop, traffic)


def test_matrix_work_at_seventy_percent_of_peak_draws_rated_power() -> None:
    """Measured: above half of peak, products draw 96-98 % of the limit."""
    assert energy_j(flop=0.70 * PEAK) == pytest.approx(TDP - IDLE)
    assert energy_j(flop=0.35 * PEAK) == pytest.approx((TDP - IDLE) / 2)


def test_waiting_in_a_collective_costs_something_however_few_bytes_it_moves() -> None:
    """150 W against 70 W at rest on H100: kernels spin."""
    assert energy_j(communicates=True) + IDLE == pytest.approx(150.0, abs=1.0)


def test_energy_of_an_idle_device_is_static() -> None:
    """No work, nothing above rest."""
    assert energy_j() == 0.0


def test_a_cap_at_or_above_rated_power_changes_nothing() -> None:
    """Nor does the lack of one."""
    assert [cap_slowdown(cap, TDP) for cap in (None, TDP, 2 * TDP)] == [1.0, 1.0, 1.0]


@given(cap=st.floats(50.0, 699.0), lower=st.floats(0.1, 1.0))
def test_a_lower_cap_slows_more_and_never_saves_time(cap: float, lower: float) -> None:
    """Clocks give way to the cap."""
    assert cap_slowdown(cap * lower, TDP) >= cap_slowdown(cap, TDP) > 1.0


@given(cap=st.floats(100.0, 700.0))
def test_a_cap_saves_energy_on_matrix_work(cap: float) -> None:
    """Power falls faster than time grows (Zeus, NSDI 2023: exponent below one)."""
    assert cap * cap_slowdown(cap, TDP) <= TDP * (1 + 1e-12)

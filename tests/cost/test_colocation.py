"""Processes on a shared device: the closed queue against tables, limits and a play of events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.colocation_predicted import together_s
from tests.cost.shared_device import SharedDevice, mean_step_s
from wattree.cost.colocation import (
    alternating,
    barrier_s,
    expected_maximum,
    station_rate,
)

_BUSY = st.floats(0.02, 0.98)
_PROCESSES = st.integers(1, 12)


def _gain(busy: float, processes: int, share: float = 1.0) -> float:
    """Return steps (or samples of a shared batch) per second over those of one process."""
    found = alternating(1 - busy, busy * share, processes=processes)
    return float((1.0 if share < 1 else processes) / (1 - busy + found.residence_s))


@pytest.mark.parametrize(
    ("busy", "expected"), [(0.43, (1, 1.69, 2.07, 2.25)), (0.8, (1, 1.22, 1.25, 1.25))]
)
def test_one_server_is_mean_value_analysis(busy: float, expected: tuple[float, ...]) -> None:
    """R_q = D (1 + Q_(q-1)), worked out by hand for two utilizations."""
    found = [_gain(busy, processes) for processes in (1, 2, 3, 4)]
    assert found == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [(0.0, (1, 1.18, 1.28, 1.35)), (0.3, (1, 1.06, 1.05, 1.0)), (0.6, (1, 0.96, 0.87, 0.76))],
)
def test_a_shared_batch_gains_by_what_of_the_demand_shrinks_with_it(
    fixed: float, expected: tuple[float, ...]
) -> None:
    """D_q = D (h + (1 - h) / q) at a utilization of 0.43, worked out by hand."""
    shares = [fixed + (1 - fixed) / processes for processes in (1, 2, 3, 4)]
    found = [_gain(0.43, q, share) for q, share in zip((1, 2, 3, 4), shares, strict=True)]
    assert found == pytest.approx(expected, abs=0.006)


@given(
    busy=_BUSY,
    processes=_PROCESSES,
    capacity=st.floats(1.0, 6.0),
    contention=st.floats(0.0, 0.5),
)
def test_throughput_keeps_within_the_bounds_of_a_closed_queue(
    busy: float, processes: int, capacity: float, contention: float
) -> None:
    """No more than q alone, no more than the station's best, and no less than all in turn."""
    found = alternating(
        1 - busy, busy, processes=processes, capacity=capacity, contention=contention
    )
    rates = [float(station_rate(float(k), capacity, contention)) for k in range(1, processes + 1)]
    cycle = 1 - busy + float(found.residence_s)
    most = min(processes, max(rates) / busy)
    least = processes / (1 - busy + busy * processes / min(1.0, *rates))
    assert least * (1 - 1e-9) <= processes / cycle <= most * (1 + 1e-9)


@given(busy=_BUSY, capacity=st.floats(1.0, 6.0), contention=st.floats(0.0, 0.5))
def test_one_process_is_alone(busy: float, capacity: float, contention: float) -> None:
    """A single process is as it was, whatever the device."""
    found = alternating(1 - busy, busy, processes=1, capacity=capacity, contention=contention)
    assert float(found.residence_s) == pytest.approx(busy, rel=1e-12)


@given(demand=st.floats(1e-6, 10.0), processes=_PROCESSES, capacity=st.floats(1.0, 20.0))
def test_without_think_time_all_are_always_there(
    demand: float, processes: int, capacity: float
) -> None:
    """Alternating with no host is a demand that all bring at once."""
    found = alternating(0.0, demand, processes=processes, capacity=capacity)
    at_once = together_s(demand, processes=processes, capacity=capacity)
    assert float(found.residence_s) == pytest.approx(float(at_once), rel=1e-12)


def test_arrays_are_rows_of_their_own() -> None:
    """Screening asks for thousands at a time."""
    think, demand, room = np.array([0.5, 0.0, 2.0]), np.array([0.5, 1.0, 0.0]), [1.0, 1.5, 3.0]
    found = alternating(think, demand, processes=3, capacity=np.array(room), contention=0.1)
    alone = [
        float(alternating(z, d, processes=3, capacity=c, contention=0.1).residence_s)
        for z, d, c in zip(think, demand, room, strict=True)
    ]
    assert found.residence_s.tolist() == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 0.0), (2, 0.56419), (3, 0.84628), (5, 1.16296)]
)
def test_the_largest_of_normal_values(count: int, expected: float) -> None:
    """Expected normal order statistics, as tabled (Harter, Biometrika 48, 1961)."""
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    busy=st.floats(0.1, 0.95),
    processes=st.integers(2, 5),
    capacity=st.sampled_from([1.0, 1.5, 2.5]),
)
def test_the_queue_agrees_with_an_event_by_event_play(
    busy: float, processes: int, capacity: float
) -> None:
    """Many alternations with exponential times and a barrier at the end of each step."""
    many = 150
    own = SharedDevice(processes, many, 1 - busy, busy, capacity)
    executed = mean_step_s(own, steps=12) / many
    found = alternating(1 - busy, busy, processes=processes, capacity=capacity)
    variance = many * found.variance_s2(1 - busy, 1)
    waited = float(barrier_s(variance, processes=processes)) / many
    assert 1 - busy + float(found.residence_s) + waited == pytest.approx(executed, rel=0.08)


@given(
    busy=_BUSY,
    processes=st.integers(1, 6),
    capacity=st.floats(1.0, 6.0),
    contention=st.floats(0.0, 0.5),
)
def test_what_happens_once_a_step_agrees_with_an_event_by_event_play(
    busy: float, processes: int, capacity: float, contention: float
) -> None:
    """Nothing is random there: all think side by side, then all are at the device."""
    own = SharedDevice(
        processes, 0, 0.0, 0.0, capacity, contention, 1 - busy, busy, is_random=False
    )
    found = together_s(busy, processes=processes, capacity=capacity, contention=contention)
    assert mean_step_s(own, steps=1) == pytest.approx(1 - busy + float(found), rel=1e-9)

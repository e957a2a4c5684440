"""What processes on one device gain, predicted from one measured step of a process alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.colocation_predicted import MeasuredStep, predicted_gain
from tests.cost.shared_device import SharedDevice, mean_step_s
from wattree.cost import load_calibration

PER_PROCESS: dict[str, Any] = {"rule": "fixed-per-process"}
SHARED: dict[str, Any] = {"rule": "fixed-global"}
TIMES = st.floats(0.0, 1.0)


@given(waiting=TIMES, host=TIMES, gaps=TIMES, device=st.floats(0.01, 1.0), cores=st.integers(1, 8))
def test_one_process_is_as_measured(
    waiting: float, host: float, gaps: float, device: float, cores: int
) -> None:
    """Under both rules, on a CPU and on an accelerator."""
    alone = MeasuredStep(
        device_s=device, waiting_s=waiting, host_s=host, gaps_s=gaps, alternations=10
    )
    for rule in ("fixed-global", "fixed-per-process"):
        for given_cores in (None, cores):
            assert predicted_gain(alone, 1, rule=rule, cores=given_cores) == pytest.approx(1.0)


def test_averaging_that_is_waited_for_costs_its_time() -> None:
    """Of AccDP's 1.62 x on 16 devices a twentieth of a step is enough to be the reason."""
    alone = MeasuredStep(device_s=0.43, gaps_s=0.57, alternations=10**9)
    found = [predicted_gain(alone, 2, **PER_PROCESS, reduction_s=s) for s in (0.0, 0.05)]

    assert found == pytest.approx([1.69, 1.62], abs=0.006)


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [(0.0, (1, 1.18, 1.28, 1.35)), (0.3, (1, 1.06, 1.05, 1.0)), (0.6, (1, 0.96, 0.87, 0.76))],
)
def test_a_shared_batch_gains_by_what_of_the_demand_shrinks(
    fixed: float, expected: tuple[float, ...]
) -> None:
    """And loses where little does."""
    alone = MeasuredStep(device_s=0.43, gaps_s=0.57, alternations=10**9, fixed_share=fixed)
    found = [predicted_gain(alone, q, **SHARED) for q in (1, 2, 3, 4)]

    assert found == pytest.approx(expected, abs=0.006)


@given(
    waiting=TIMES,
    device=st.floats(0.01, 1.0),
    processes=st.integers(1, 6),
    cores=st.integers(1, 4),
    contention=st.floats(0.0, 0.4),
)
def test_a_cpu_job_is_what_an_event_by_event_play_makes_of_it(
    waiting: float, device: float, processes: int, cores: int, contention: float
) -> None:
    """Waiting passes side by side, computing meets on so many cores."""
    alone = MeasuredStep(device_s=device, waiting_s=waiting)
    gain = predicted_gain(alone, processes, cores=cores, contention=contention, **PER_PROCESS)
    queue = SharedDevice(
        processes, 0, 0.0, 0.0, float(cores), contention, waiting, device, is_random=False
    )

    assert processes * alone.step_s / gain == pytest.approx(mean_step_s(queue, steps=1))


def test_waiting_for_data_that_shrinks_with_the_batch_is_gained() -> None:
    """Two processes wait for half as many samples each, at the same time."""
    alone = MeasuredStep(waiting_s=0.8, device_s=0.2)

    assert predicted_gain(alone, 2, cores=2, contention=0.0, **SHARED) == pytest.approx(2.0)


def test_a_process_that_uses_all_cores_leaves_none() -> None:
    """Two take as long for two steps as one after the other, or longer."""
    alone = MeasuredStep(device_s=1.0, cores_used=2.0)

    free = predicted_gain(alone, 2, cores=2, contention=0.0, **PER_PROCESS)
    assert free == pytest.approx(1.0)
    assert predicted_gain(alone, 2, cores=2, contention=0.1, **PER_PROCESS) < 0.95


def test_loaders_bound_all_processes_together() -> None:
    """As many workers in all make as many samples, whoever takes them."""
    alone = MeasuredStep(device_s=0.1, workers=2, loader_s=1.0)

    assert alone.step_s == pytest.approx(0.5)
    assert predicted_gain(alone, 2, **PER_PROCESS) == pytest.approx(1.0)


def test_contention_is_the_shipped_constant_unless_it_was_measured() -> None:
    """That of CPUs where the device is one."""
    alone = MeasuredStep(device_s=1.0)
    shipped = load_calibration().general("colocation_contention_cpu")

    assert predicted_gain(alone, 2, cores=2, **PER_PROCESS) == pytest.approx(2 / (1.0 + shipped))
    assert predicted_gain(alone, 2, **PER_PROCESS) == pytest.approx(1.0)

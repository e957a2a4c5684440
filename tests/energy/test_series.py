"""Forecasts of power series of known law, and series that are refused."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest

pytest.importorskip("statsmodels")

from wattree.energy.series import Policy, evenly_spaced, forecast_series
from wattree.errors import MissingExtraError, RunError
from wattree.trace.run import PowerSeries


def series_of(watts: np.ndarray, step_s: float = 1.0) -> PowerSeries:
    """Return a series of even readings."""
    at_s = np.arange(1, len(watts) + 1) * step_s
    return PowerSeries(domain="total", at_s=tuple(at_s.tolist()), watts=tuple(watts.tolist()))


def autoregressive(count: int = 241, *, noise: float = 1.0) -> np.ndarray:
    """Return an AR(2) process around 500 W."""
    random = np.random.default_rng(5)
    watts = np.full(count, 500.0)
    for t in range(2, count):
        swing = 1.2 * (watts[t - 1] - 500) - 0.6 * (watts[t - 2] - 500)
        watts[t] = 500 + swing + noise * random.standard_normal()
    return watts


def test_a_process_of_order_two_is_found_to_be_one() -> None:
    """AIC rarely takes less, and seldom much more."""
    found = forecast_series(series_of(autoregressive()), "ar")

    assert found.order in {"AR(2)", "AR(3)", "AR(4)"}
    assert abs(found.error) < 0.005
    assert found.horizon == 120


def test_one_step_ahead_beats_smoothing_on_such_a_process() -> None:
    """A forecast that sees the truth after each reading follows the swings."""
    series = series_of(autoregressive(81))
    policy = Policy(seen=0.5, refit_every=1)
    true_w = np.array(series.watts[-len(forecast_series(series, "ses").watts) :])

    def misfit(method: str) -> float:
        watts = np.array(forecast_series(series, method, policy=policy).watts)
        return float(np.sqrt(np.mean((watts - true_w) ** 2)))

    assert misfit("ar") < 0.9 * misfit("ses")


def test_smoothing_forecasts_a_level() -> None:
    """All of its horizon is one value, between what it saw."""
    watts = 300 + np.random.default_rng(0).normal(0, 3, 60)
    found = forecast_series(series_of(watts), "ses")

    assert np.ptp(found.watts) == pytest.approx(0, abs=1e-9)
    assert found.watts[0] == pytest.approx(300, abs=5)


def test_a_drift_needs_a_difference() -> None:
    """ARIMA with d = 1 goes on with it where its order has a way to; AR alone returns."""
    walk = 500 + np.cumsum(np.random.default_rng(2).normal(0, 4, 80))
    found = forecast_series(series_of(walk), "arima")

    assert found.order.startswith("ARIMA(")
    assert abs(found.error) < 0.15


def test_a_constant_power_is_forecast_exactly() -> None:
    """Whatever the method: nothing to fit."""
    for method in ("ar", "ses", "arima"):
        assert forecast_series(series_of(np.full(50, 250.0)), method).error == pytest.approx(0)


def test_uneven_readings_keep_their_energy() -> None:
    """Each reading is the average since the one before."""
    random = np.random.default_rng(4)
    at_s = np.cumsum(random.uniform(0.5, 1.5, 60))
    watts = random.uniform(100, 200, 60)
    series = PowerSeries(domain="total", at_s=tuple(at_s.tolist()), watts=tuple(watts.tolist()))
    step_s, even = evenly_spaced(series, "run")

    assert even.sum() * step_s == pytest.approx(float((watts[1:] * np.diff(at_s)).sum()))


def test_a_series_with_a_gap_or_too_short_is_refused() -> None:
    """With the run and the place."""
    at_s = (*(float(t) for t in range(1, 40)), 100.0)
    gapped = PowerSeries(domain="total", at_s=at_s, watts=(1.0,) * 40)
    with pytest.raises(RunError, match=r"run-3: power \(total\)\.at_s\[39\]: found a gap of 61 s"):
        forecast_series(gapped, "ar", where="run-3")
    with pytest.raises(RunError, match="found 12 readings, expected more than 20"):
        forecast_series(series_of(np.full(12, 1.0)), "ar")


@pytest.mark.parametrize("wrong", [{"seen": 0.0}, {"seen": 1.0}, {"refit_every": 0}])
def test_an_impossible_policy_is_refused(wrong: dict[str, float]) -> None:
    """Before anything is fitted."""
    with pytest.raises(RunError, match="series"):
        Policy(**wrong)  # type: ignore[arg-type]


def test_the_policy_is_told() -> None:
    """A forecast that sees the truth must not be read as one that does not."""
    assert "no refit" in Policy().words()
    assert "5 reading(s) forecast at a time" in Policy(refit_every=5).words()


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.ar_model", None)

    with pytest.raises(MissingExtraError, match=r"\.\[fit\]"):
        forecast_series(series_of(autoregressive(60)), "ar")


@pytest.mark.parametrize("method", ["ar", "ses", "arima"])
@pytest.mark.parametrize("first_w", [0.0, 100.0])
def test_a_part_without_power_is_no_measure_of_a_forecast(method: str, first_w: float) -> None:
    """Errors are shares of what was drawn."""
    watts = np.concatenate([np.full(30, first_w), np.zeros(30)])

    with pytest.raises(RunError, match="found 0 W all through the part to forecast"):
        forecast_series(series_of(watts), method)


def test_a_series_that_has_no_fit_is_refused_with_the_reason() -> None:
    """Libraries raise what they like; a comparison goes on with the other models."""
    takes_turns = np.tile([0.0, 500.0], 20)

    with pytest.raises(RunError, match="run: arima: cannot be fitted to the power seen"):
        forecast_series(series_of(takes_turns), "arima")
    assert np.isfinite(forecast_series(series_of(takes_turns), "ses").error)


@pytest.mark.parametrize("method", ["ar", "ses", "arima"])
@pytest.mark.parametrize("seed", range(4))
def test_any_series_is_forecast_or_refused(method: str, seed: int) -> None:
    """Walks, steps, spikes, growth without end: nothing else comes out."""
    random = np.random.default_rng(seed)
    walk = np.maximum(200 + np.cumsum(random.normal(0, 20, 60)), 0)
    step = np.where(np.arange(60) < random.integers(5, 55), 100.0, 300.0)
    spike = np.where(np.arange(60) == random.integers(60), 1e9, 1.0)
    for watts in (walk, step, spike, np.exp(np.linspace(0, 30, 60))):
        with contextlib.suppress(RunError):
            assert np.isfinite(forecast_series(series_of(watts), method).error)

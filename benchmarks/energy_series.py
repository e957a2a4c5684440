"""Forecasts of power from a run's own beginning: recorded runs, and series of known answer.

Recorded runs lie in `validation/runs`, written by `wattree measure` on a machine without a meter:
their power is the labeled estimate from processor time. Series of known answer are made here from
a seed; each is a process whose best forecast is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.frame import Measure, Options, Section
from wattree.energy.series import FORECASTERS, Policy, SeriesForecast, forecast_series
from wattree.errors import MissingExtraError, RunError
from wattree.trace.run import PowerSeries, Run
from wattree.trace.run_file import read_runs

Floats = NDArray[np.float64]

_RUNS = Path(__file__).parents[1] / "validation" / "runs"
_READINGS, _STEP_S, _SEED = 160, 0.1, 11
_NOISE_W = 10.0
#: Half of a series seen, the rest at once; and eight readings at a time.
POLICIES = (Policy(seen=0.5), Policy(seen=0.5, refit_every=8))


def _level(noise: Floats) -> Floats:
    """Constant power with noise: nothing beats the mean."""
    return 500.0 + noise


def _autoregression(noise: Floats) -> Floats:
    """`P_t - 500 = 1.2 (P_{t-1} - 500) - 0.5 (P_{t-2} - 500) + ε`."""
    off = np.zeros(len(noise))
    for at in range(2, len(noise)):
        off[at] = 1.2 * off[at - 1] - 0.5 * off[at - 2] + noise[at]
    return 500.0 + off


def _walk(noise: Floats) -> Floats:
    """A random walk: nothing beats the last reading."""
    return 2000.0 + np.cumsum(noise)


def _phases(noise: Floats) -> Floats:
    """Compute and communication in turn, eight readings each: 600 and 300 W."""
    high = (np.arange(len(noise)) // 8) % 2 == 0
    return np.where(high, 600.0, 300.0) + noise


#: Title → what makes the series of white noise. [W]
KNOWN: Mapping[str, Callable[[Floats], Floats]] = {
    "level": _level,
    "AR(2)": _autoregression,
    "random walk": _walk,
    "two phases in turn": _phases,
}


def recorded_runs() -> list[Run]:
    """Return the recorded runs, by file name."""
    return list(read_runs(sorted(_RUNS.glob("*.json"))))


def known_series(title: str) -> PowerSeries:
    """Return a series of known answer, the same at every call."""
    noise = np.random.default_rng(_SEED).normal(0.0, _NOISE_W, _READINGS + 1)
    watts = KNOWN[title](noise)
    at_s = np.arange(_READINGS + 1) * _STEP_S
    return PowerSeries(domain="total", at_s=tuple(at_s.tolist()), watts=tuple(watts.tolist()))


def section(options: Options) -> Section | None:
    """Return errors of energy of the part of each series that was not seen."""
    del options  # nothing of the shared tables
    measures, notes = [], []
    try:
        for policy in POLICIES:
            words = "at once" if policy.refit_every is None else "8 at a time"
            runs = {run.name: _total(run) for run in recorded_runs()}
            known = {title: known_series(title) for title in KNOWN}
            for what, group in (("recorded", runs), ("known answer", known)):
                made = {name: forecasts(each, name, policy) for name, each in group.items()}
                for method in FORECASTERS:
                    errors = [each[method].error for each in made.values()]
                    title = f"{what}, {words}: {method.upper()}"
                    measures.append(Measure.of(title, np.array(errors), None))
                notes += [_line(name, words, each, group[name]) for name, each in made.items()]
    except MissingExtraError:
        return None
    return Section(
        title="Forecasts of power series: energy of the half that was not seen",
        measures=tuple(measures),
        notes=(
            *(each.words() for each in POLICIES),
            f"series of known answer are driven by noise of {_NOISE_W:.0f} W; recorded ones are "
            "estimates from processor time",
            *notes,
        ),
    )


def _total(run: Run) -> PowerSeries:
    found = next((each for each in run.power if each.domain == "total"), None)
    if found is None and len(run.power) != 1:
        raise RunError(run.name, ["power: found no series of the total, expected one"])
    return found or run.power[0]


def forecasts(series: PowerSeries, name: str, policy: Policy) -> dict[str, SeriesForecast]:
    """Return method → forecast of the part of a series that was not seen."""
    return {
        method: forecast_series(series, method, policy=policy, where=name) for method in FORECASTERS
    }


def _line(name: str, words: str, found: Mapping[str, SeriesForecast], series: PowerSeries) -> str:
    """Return orders, errors of energy, and the spread of single readings, for people."""
    any_ = next(iter(found.values()))
    later = np.array(series.watts[-any_.horizon :])
    parts = [
        f"{each.order} {each.error:+.2%} (readings {_spread_w(each, later):.3g} W)"
        for each in found.values()
    ]
    return f"{name}, {any_.horizon} readings of {any_.step_s:.2g} s {words}: {', '.join(parts)}"


def _spread_w(found: SeriesForecast, later: Floats) -> float:
    """Return the root mean square error of single readings. [W]"""
    return float(np.sqrt(np.mean((np.array(found.watts) - later) ** 2)))

"""Forecasts of a run's power from its first part: AR, simple smoothing, ARIMA.

They see the first part of the run that they are scored on, and say nothing of any other run. The
only file that knows statsmodels.

References:
    [1] G. E. P. Box, G. M. Jenkins, "Time Series Analysis: Forecasting and Control", 1970.
    [2] H. Akaike, "A new look at the statistical model identification", IEEE Transactions on
        Automatic Control 19(6), 1974, doi:10.1109/TAC.1974.1100705.
    [3] E. J. Hannan, J. Rissanen, "Recursive estimation of mixed autoregressive-moving average
        order", Biometrika 69(1), 1982, doi:10.1093/biomet/69.1.81.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from wattree.arrays import Floats
from wattree.energy.observed import gap_in
from wattree.errors import MissingExtraError, RunError
from wattree.trace.run import PowerSeries

#: Orders that are tried: p of AR; p, d, q of ARIMA.
_MOST_LAGS = 16
_ARIMA_ORDERS = tuple(
    order for order in product(range(3), range(2), range(2)) if order[0] or order[2]
)
#: Readings that a fit needs, and most that it is given: longer series are averaged first.
_LEAST, _MOST = 20, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a series is forecast.

    Attributes:
        seen: Share of the run's readings that the first fit sees.
        refit_every: None: one forecast from there to the end. Else so many readings are forecast,
            then they are seen too, and parameters are fitted anew; orders stay those of the start.
    """

    seen: float = 0.5
    refit_every: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seen < 1:
            raise RunError("series", [f"seen: found {self.seen}, expected a share inside 0 to 1"])
        if self.refit_every is not None and self.refit_every < 1:
            raise RunError("series", [f"refit: found {self.refit_every}, expected 1 or more"])

    def words(self) -> str:
        """Return the policy as text."""
        first = f"first {self.seen:.0%} of a run's readings seen"
        if self.refit_every is None:
            return f"{first}, the rest forecast at once, no refit"
        return f"{first}, {self.refit_every} reading(s) forecast at a time, then seen and refitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesForecast:
    """A forecast of the second part of a run.

    Attributes:
        method: `ar`, `ses` or `arima`.
        order: As chosen by AIC, for people.
        step_s: Of the readings. [s]
        horizon: Readings forecast.
        watts: `(horizon,)`. [W]
        energy_j, true_j: Of that part: forecast, and as it was. [J]
    """

    method: str
    order: str
    policy: Policy
    step_s: float
    horizon: int
    watts: tuple[float, ...]
    energy_j: float
    true_j: float

    @property
    def error(self) -> float:
        """Relative error of the forecast energy."""
        return self.energy_j / self.true_j - 1.0


#: Fits a series and forecasts so many readings: history, horizon, order or None to choose.
_Forecaster = Callable[[Floats, int, Any], tuple[Floats, Any]]


def evenly_spaced(series: PowerSeries, where: str) -> tuple[float, Floats]:
    """Return the period and average power per period: energy is conserved, gaps rejected. [s, W]

    Raises:
        RunError: Gaps, or fewer than 20 readings.
    """
    if gap := gap_in(series):
        raise RunError(where, [f"power ({series.domain}).{gap}"])
    if len(series.at_s) < _LEAST + 1:
        raise RunError(
            where,
            [
                f"power ({series.domain}): found {len(series.at_s)} readings, expected more than "
                f"{_LEAST}: sample more often or longer"
            ],
        )
    at_s, watts = np.array(series.at_s), np.array(series.watts)
    energy = np.concatenate([[0.0], np.cumsum(watts[1:] * np.diff(at_s))])
    count = min(len(at_s) - 1, _MOST)
    grid = np.linspace(at_s[0], at_s[-1], count + 1)
    step_s = float(grid[1] - grid[0])
    return step_s, np.diff(np.interp(grid, at_s, energy)) / step_s


def forecast_series(
    series: PowerSeries, method: str, *, policy: Policy | None = None, where: str = "run"
) -> SeriesForecast:
    """Return the forecast of a run's later power from its first part.

    Args:
        method: A key of `FORECASTERS`.
        policy: How; half of the run seen and no refit if None.
        where: Name of the run, for messages.

    Raises:
        RunError: The series has gaps, is too short, has no fit, or nothing to forecast.
        MissingExtraError: statsmodels is not installed.
    """
    policy = policy or Policy()
    step_s, watts = evenly_spaced(series, where)
    first = max(_LEAST // 2, round(policy.seen * len(watts)))
    first = min(first, len(watts) - 1)
    block = policy.refit_every or len(watts) - first
    forecaster, order_words = FORECASTERS[method], ""
    _library(_MODULES[method])  # which, when first imported, sets filters of its own for warnings
    found: list[float] = []
    order: Any = None
    with warnings.catch_warnings():
        # Optimizers of statsmodels complain of series that hardly vary; the forecast is flat.
        warnings.simplefilter("ignore")
        for start in range(first, len(watts), block):
            ahead = min(block, len(watts) - start)
            values, order = _forecast(forecaster, watts[:start], ahead, order, f"{where}: {method}")
            order_words = order_words or _order_words(method, order)
            found += values.tolist()
    later = watts[first:]
    if not later.any():
        what = "found 0 W all through the part to forecast, expected some power"
        raise RunError(where, [f"power ({series.domain}): {what}"])
    return SeriesForecast(
        method=method,
        order=order_words,
        policy=policy,
        step_s=step_s,
        horizon=len(later),
        watts=tuple(found),
        energy_j=float(np.sum(found) * step_s),
        true_j=float(later.sum() * step_s),
    )


def _forecast(
    forecaster: _Forecaster, watts: Floats, ahead: int, order: Any, where: str
) -> tuple[Floats, Any]:
    """Return a forecast and its order.

    Raises:
        RunError: The series has no fit of this kind, as where it takes turns without any noise.
    """
    try:
        values, order = forecaster(watts, ahead, order)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        why = " ".join(str(error).split()).partition(". ")[0]
        raise RunError(where, [f"cannot be fitted to the power seen ({why})"]) from error
    if not np.isfinite(values).all():
        raise RunError(where, ["cannot be fitted to the power seen (its forecast is no number)"])
    return values, order


def _order_words(method: str, order: Any) -> str:
    if method == "ar":
        return f"AR({order})"
    return "SES" if method == "ses" else f"ARIMA{tuple(order)}"


def _library(name: str) -> Any:
    """Return a module of statsmodels."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            needed_for="forecasting power series", package="statsmodels", extra="fit"
        ) from error


def _is_flat(watts: Floats) -> bool:
    return float(np.ptp(watts)) <= 1e-9 * float(np.abs(watts).max() or 1.0)


def _ar(watts: Floats, ahead: int, order: int | None) -> tuple[Floats, int]:
    """`P_t = c + Σ φ_i P_{t-i} + ε`, p by AIC."""
    if _is_flat(watts):
        return np.full(ahead, watts[-1]), order or 0
    module = _library(_MODULES["ar"])
    if order is None:
        most = min(_MOST_LAGS, len(watts) // 3)
        chosen = module.ar_select_order(watts, maxlag=most, ic="aic", trend="c").ar_lags
        order = max(chosen) if chosen else 0
    fitted = module.AutoReg(watts, lags=order, trend="c").fit()
    return np.asarray(fitted.forecast(ahead)), order


def _ses(watts: Floats, ahead: int, order: object) -> tuple[Floats, object]:
    """`P̂_{t+1} = a P_t + (1 - a) P̂_t`: a flat forecast."""
    if _is_flat(watts):
        return np.full(ahead, watts[-1]), order
    module = _library(_MODULES["ses"])
    fitted = module.SimpleExpSmoothing(watts, initialization_method="estimated").fit()
    return np.asarray(fitted.forecast(ahead)), order


def _arima(
    watts: Floats, ahead: int, order: tuple[int, int, int] | None
) -> tuple[Floats, tuple[int, int, int]]:
    """AR of the d-times differenced series with moving-average terms; p, d, q by AIC."""
    if _is_flat(watts):
        return np.full(ahead, watts[-1]), order or (0, 0, 0)
    module = _library(_MODULES["arima"])
    scale = float(np.abs(watts).max())  # the optimizer wants values around one

    def fitted(of: tuple[int, int, int], method: str) -> Any:
        trend = "c" if of[1] == 0 else "n"
        # Covariances of the parameters would take as long again, and no one reads them.
        return module.ARIMA(watts / scale, order=of, trend=trend).fit(
            method=method, cov_type="none"
        )

    if order is None:
        order = min((_criterion(fitted, each), each) for each in _ARIMA_ORDERS)[1]
    return np.asarray(fitted(order, "innovations_mle").forecast(ahead)) * scale, order


def _criterion(fitted: Callable[[tuple[int, int, int], str], Any], order: Any) -> float:
    """Return Akaike's criterion of an order, at the estimates of Hannan and Rissanen [3].

    They take a regression or two; the likelihood's maximum, only sought for the chosen order,
    takes hundreds of passes over the series.
    """
    try:
        criterion = float(fitted(order, "hannan_rissanen").aic)
    except (ValueError, np.linalg.LinAlgError):
        return np.inf  # this order has no stationary solution on this series
    return criterion if np.isfinite(criterion) else np.inf


_MODULES = {
    "ar": "statsmodels.tsa.ar_model",
    "ses": "statsmodels.tsa.holtwinters",
    "arima": "statsmodels.tsa.arima.model",
}
#: Name → what fits and forecasts.
FORECASTERS: Mapping[str, _Forecaster] = MappingProxyType({"ar": _ar, "ses": _ses, "arima": _arima})

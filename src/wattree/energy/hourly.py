"""Energy with hourly carbon and price: the cost of a run by its start time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySeries:
    """Grid intensity, price or both of consecutive hours.

    Attributes:
        hours: Name of each hour, `(H,)`.
        carbon_gco2e_per_j: `(H,)`; None where the series has no intensities. [gCO2e/J]
        price_usd_per_j: `(H,)`; None where the series has no prices. [USD/J]
    """

    name: str
    hours: tuple[str, ...]
    carbon_gco2e_per_j: tuple[float, ...] | None = None
    price_usd_per_j: tuple[float, ...] | None = None

    @property
    def mean_carbon_gco2e_per_j(self) -> float | None:
        """Average intensity; None if there is none. [gCO2e/J]"""
        return _mean(self.carbon_gco2e_per_j)

    @property
    def mean_price_usd_per_j(self) -> float | None:
        """Average price; None if there is none. [USD/J]"""
        return _mean(self.price_usd_per_j)


def _mean(values: tuple[float, ...] | None) -> float | None:
    return None if values is None else float(np.mean(values))


def starts_within(series: HourlySeries, run_s: float) -> int:
    """Return the number of hours at which a run can start so that it ends within the series."""
    return max(int(np.floor(len(series.hours) - run_s / HOUR_S + 1e-9)) + 1, 0)


def windows(hourly: tuple[float, ...], run_s: float, power_w: float) -> Floats:
    """Return the cost of a run of constant power, by its first hour.

    `C(h) = P * sum over hours of c * (time of the run in them)`; the last hour may be a part.

    Args:
        hourly: Grams or dollars per joule in each hour, `(H,)`.
        run_s: Length of the run, above 0 and no longer than the series. [s]
        power_w: With PUE. [W]

    Returns:
        `(H - run_s in hours + 1,)`, rounded down: one for each start that ends within the series.
    """
    rates = np.asarray(hourly, dtype=np.float64)
    whole = int(np.floor(run_s / HOUR_S + 1e-9))
    part = max(run_s / HOUR_S - whole, 0.0)
    starts = max(int(np.floor(len(rates) - run_s / HOUR_S + 1e-9)) + 1, 0)
    before = np.concatenate(([0.0], np.cumsum(rates)))
    first = np.arange(starts)
    sums = before[first + whole] - before[first]
    if part > 0.0 and starts:
        sums = sums + part * rates[np.minimum(first + whole, len(rates) - 1)]
    return np.asarray(sums * HOUR_S * power_w)

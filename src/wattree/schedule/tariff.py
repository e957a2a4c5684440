"""Hourly cost of energy: carbon and price over a series that repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.energy.hourly import HOUR_S


@dataclass(frozen=True, slots=True)
class Tariff:
    """Price or emission of a joule in each hour from the start of a queue.

    Attributes:
        hourly: Of each hour; after the last the first follows again. `(H,)`
    """

    hourly: tuple[float, ...] = (0.0,)

    def mean(self, start_s: Floats, length_s: float) -> Floats:
        """Return the average over intervals of equal length that begin at `start_s`."""
        if len(self.hourly) == 1 or length_s <= 0.0:
            return np.full(np.shape(start_s), self.hourly[0])
        return np.asarray((self._until(start_s + length_s) - self._until(start_s)) / length_s)

    def _until(self, time_s: Floats) -> Floats:
        """Return the integral from 0 to each time."""
        sums = np.concatenate(([0.0], np.cumsum(self.hourly))) * HOUR_S
        period_s = len(self.hourly) * HOUR_S
        rounds, rest_s = np.divmod(time_s, period_s)
        hours = np.arange(len(sums)) * HOUR_S
        return np.asarray(rounds * sums[-1] + np.interp(rest_s, hours, sums))

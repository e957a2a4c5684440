"""Cost of a whole run, and its cost at other start times. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

#: Objective → the figure of a run that it is.
RUN_FIGURES: Final = {
    "time": "time_s",
    "energy": "energy_j",
    "cost": "cost_usd",
    "carbon": "carbon_gco2e",
}
#: A run of which less is steps never ends: failures come before checkpoints or restarts do, and its
#: figures are only bounds.
LEAST_GOODPUT: Final = 1e-3
#: No model of the errors says more.
SUREST = 0.99


def probability_within(middle: float, interval: tuple[float, float], limit: float) -> float | None:
    """Return the probability that a predicted figure is within a limit; None if it is exact.

    The figure is as likely exceeded as not, and normal in its logarithm on either side.

    Args:
        interval: Its ends are exceeded, and missed, with 10 % probability each.
    """
    low, high = interval
    if not 0.0 < low < middle < high:
        return None
    end = high if limit > middle else low
    above = math.log(limit / middle) / abs(math.log(end / middle))
    found = NormalDist().cdf(above * NormalDist().inv_cdf(0.9))
    return min(max(found, 1 - SUREST), SUREST)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A step with its share of what interrupts a run: checkpoints, failures and restarts.

    Attributes:
        time_s, energy_j, cost_usd, carbon_gco2e, embodied_gco2e: As of `RunBill`.
        goodput: Time of the step over `time_s`.
        failures: Expected in that time.
        checkpoint_bytes: What a checkpoint has. [B]
        checkpoint_every_s: Time of the steps between two; None: there are none. [s]
        checkpoint_s: Time that steps wait for one. [s]
        bounds: Over `time_s`, the ends of its 80 % interval by what is assumed of interruptions
            and, above, by what published trainings took longer.
        assumed: What of it the job does not state, in words.
    """

    time_s: float
    energy_j: float
    cost_usd: float | None
    carbon_gco2e: float | None
    embodied_gco2e: float | None
    goodput: float = 1.0
    failures: float = 0.0
    checkpoint_bytes: float = 0.0
    checkpoint_every_s: float | None = None
    checkpoint_s: float = 0.0
    bounds: tuple[float, float] = (1.0, 1.0)
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBill:
    """A run to a number of tokens or samples, with the simulated step time.

    Attributes:
        tokens, samples: Input of the run, in whole steps; tokens is None if samples have none.
        steps: Number of steps.
        time_s: Time with checkpoints, failures and restarts, without evaluations. [s]
        energy_j: Energy, with PUE. [J]
        cost_usd: Cost; None if no price is known.
        carbon_gco2e: Carbon of the energy and the hardware; None if no grid intensity is known.
        embodied_gco2e: Carbon of the hardware, by time; None if the job does not state it.
        energy_delay_product_js: Energy times time. [J s]
        interval: Time, energy, cost and carbon → its 80 % interval, where that of a step is known.
        goodput: Time of the steps alone over `time_s`.
        failures: That are expected.
        step: One of its steps with its share of them.
    """

    tokens: float | None
    samples: float
    steps: int
    time_s: float
    energy_j: float
    cost_usd: float | None
    carbon_gco2e: float | None
    embodied_gco2e: float | None
    energy_delay_product_js: float
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    goodput: float = 1.0
    failures: float = 0.0
    step: RunStep | None = None

    @property
    def never_ends(self) -> bool:
        """Whether failures come so often that it makes no progress to speak of."""
        return self.goodput < LEAST_GOODPUT

    def probability_within(self, figure: str, limit: float) -> float | None:
        """Return the probability that a figure with an interval is within a limit, else None."""
        if self.never_ends:
            return 1 - SUREST
        span = self.interval.get(figure, (0.0, 0.0))
        return probability_within(getattr(self, figure), span, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedStart:
    """A run that starts with an hour of the series.

    Attributes:
        start_hour: Hours after the first hour of the series.
        hour: Its name in the series.
        carbon_gco2e: Carbon of the run's energy and, as of the run, of the hardware; None if the
            series has no intensities.
        energy_cost_usd: Price of the run's energy; None if the series has no prices.
    """

    start_hour: int
    hour: str
    carbon_gco2e: float | None
    energy_cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShift:
    """Effect of starting a run at another hour.

    Attributes:
        series: Source of the hours.
        hours: Number of hours in the series.
        run_s: Length of the run. [s]
        energy_j: Energy of the run at steady power, with PUE. [J]
        now: A start at the first hour.
        least_carbon, most_carbon: The best and the worst start for carbon, the first of equals;
            None if the series has no intensities.
        least_cost, most_cost: The same for the price of energy; None if the series has no prices.
        embodied_gco2e: Part of carbon that the hardware is; None if the job does not state it.
    """

    series: str
    hours: int
    run_s: float
    energy_j: float
    now: ShiftedStart
    least_carbon: ShiftedStart | None = None
    most_carbon: ShiftedStart | None = None
    least_cost: ShiftedStart | None = None
    most_cost: ShiftedStart | None = None
    embodied_gco2e: float | None = None

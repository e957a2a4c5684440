"""Cost of a whole run, and its cost at other start times. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBill:
    """A run to a number of tokens or samples, with the simulated step time.

    Attributes:
        tokens, samples: Input of the run, in whole steps; tokens is None if samples have none.
        steps: Number of steps.
        time_s: Time without interruptions, checkpoints and evaluations. [s]
        energy_j: Energy, with PUE. [J]
        cost_usd: Cost; None if no price is known.
        carbon_gco2e: Carbon of the energy and the hardware; None if no grid intensity is known.
        embodied_gco2e: Carbon of the hardware, by time; None if the job does not state it.
        energy_delay_product_js: Energy times time. [J s]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedStart:
    """A run that starts with an hour of the series.

    Attributes:
        start_hour: Hours after the first hour of the series.
        hour: Its name in the series.
        carbon_gco2e: Carbon of the run's energy.
        energy_cost_usd: Price of the run's energy; None if the series has no prices.
    """

    start_hour: int
    hour: str
    carbon_gco2e: float
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
        least_carbon, most_carbon: The best and the worst start for carbon, the first of equals.
        least_cost, most_cost: The same for the price of energy; None if the series has no prices.
    """

    series: str
    hours: int
    run_s: float
    energy_j: float
    now: ShiftedStart
    least_carbon: ShiftedStart
    most_carbon: ShiftedStart
    least_cost: ShiftedStart | None = None
    most_cost: ShiftedStart | None = None

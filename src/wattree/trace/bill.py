"""Cost of a whole run, and its cost at other start times. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBill:
    """A run to a number of tokens or samples, at the pace of the step that was simulated.

    Attributes:
        tokens, samples: What it takes in, whole steps; tokens None where samples have none.
        steps: How many.
        time_s: Without interruptions, checkpoints and evaluations. [s]
        energy_j: PUE included. [J]
        cost_usd: None where no price is known.
        carbon_gco2e: Of the energy; None where no grid intensity is known.
        embodied_gco2e: Of the hardware, by time; None where the job does not say.
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
        start_hour: From the first hour of the series, 0.
        hour: What the series calls it.
        carbon_gco2e: Of the run's energy.
        energy_cost_usd: None where the series has no prices.
    """

    start_hour: int
    hour: str
    carbon_gco2e: float
    energy_cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShift:
    """What it would change to start a run at another hour.

    Attributes:
        series: Where the hours are from.
        hours: Of the series.
        run_s: Length of the run. [s]
        energy_j: Of the run at steady power, PUE included. [J]
        now: It starts with the first hour.
        least_carbon, most_carbon: The best and the worst start for carbon, the first of equals.
        least_cost, most_cost: For the price of energy; None where the series has no prices.
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

"""Objectives by which strategies are ranked."""

from __future__ import annotations

from wattree.trace import Result

OBJECTIVES = ("time", "energy", "cost", "carbon")


def objective_of(result: Result, name: str) -> float:
    """Return the objective to minimize: s, J, USD or gCO2e per step."""
    values = {
        "time": result.step_time_s,
        "energy": result.energy_j.total,
        "cost": result.cost_usd,
        "carbon": result.carbon_gco2e,
    }
    value = values[name]
    assert value is not None  # `plan` refuses objectives that the job has no figures for
    return value


def to_digits(value: float) -> float:
    """Return a value of an objective to six digits: smaller differences are ties in a ranking."""
    return float(f"{value:.6g}")

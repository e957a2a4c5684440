"""Objectives by which strategies are ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from wattree.accounts.bill import energy_usd_per_j
from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.job import Job
from wattree.predict import Setting
from wattree.trace import Result
from wattree.trace.bill import RUN_FIGURES
from wattree.units import format_quantity, format_time

OBJECTIVES = ("time", "energy", "cost", "carbon")
#: Objective → what is said of more than is allowed, what spends it, and how amounts are written;
#: in the order in which limits are checked.
LIMITS: Final[Mapping[str, tuple[str, str, Callable[[float], str]]]] = {
    "time": ("past the deadline", "take", format_time),
    "cost": ("over the budget", "cost", lambda usd: _in_digits(usd, "USD")),
    "energy": (
        "over the energy limit",
        "use",
        lambda j: f"{format_quantity(j, 'J')} = {format_quantity(j / 3600, 'Wh')}",
    ),
    "carbon": (
        "over the carbon limit",
        "emit",
        lambda g: _in_digits(g / 1e6, "tCO2e") if g >= 1e6 else format_quantity(g, "gCO2e"),
    ),
}
#: Limit of a run, by its argument of `plan` → what it limits.
RUN_LIMITS: Final = {
    "deadline_s": "time",
    "budget_usd": "cost",
    "energy_limit_j": "energy",
    "carbon_limit_gco2e": "carbon",
}


def run_limits(**given: float | None) -> dict[str, float]:
    """Return objective → the most of it that a run may have, of those with a limit.

    Args:
        given: By the names of `RUN_LIMITS`; None for no limit.
    """
    return {RUN_LIMITS[name]: most for name, most in given.items() if most is not None}


def _in_digits(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def pair(names: object) -> tuple[str, str]:
    """Return two different objectives.

    Raises:
        ValueError: They are none.
    """
    found = tuple(names) if isinstance(names, list | tuple) else ()
    if len(found) != 2 or found[0] == found[1] or not all(name in OBJECTIVES for name in found):
        raise ValueError(f"found {names!r}, expected two different ones of {', '.join(OBJECTIVES)}")
    return found


def known_objective(result: Result, name: str) -> float | None:
    """Return an objective of a step; None where there is no price or intensity. [SI]"""
    values = {
        "time": result.step_time_s,
        "energy": result.energy_j.total,
        "cost": result.cost_usd,
        "carbon": result.carbon_gco2e,
    }
    return values[name]


def run_objective(result: Result, name: str) -> float | None:
    """Return an objective of a step with its share of what interrupts a run, if it is known."""
    value: float | None = getattr(result.in_run, RUN_FIGURES[name])
    return value


def objective_of(result: Result, name: str) -> float:
    """Return the objective to minimize: s, J, USD or gCO2e per step."""
    value = known_objective(result, name)
    assert value is not None  # `plan` refuses objectives that the job has no figures for
    return value


def share_behind(result: Result, best: Result, name: str) -> float:
    """Return how far a result is behind the best by an objective, as a share of the best's."""
    least = objective_of(best, name)
    return objective_of(result, name) / least - 1.0 if least > 0.0 else 0.0


def to_digits(value: float) -> float:
    """Return a value of an objective to six digits: smaller differences are ties in a ranking."""
    return float(f"{value:.6g}")


def is_known(cluster: Cluster, name: str) -> bool:
    """Return whether a job on a cluster, under its terms, has a figure for an objective."""
    if name == "carbon":
        return cluster.site.carbon_gco2e_per_j is not None
    rents = (pool.node.price_usd_per_s for pool in cluster.pools)
    return name != "cost" or None not in rents or energy_usd_per_j(cluster) is not None


def check_objectives(setting: Setting, names: Sequence[str]) -> None:
    """Refuse objectives that the job has no figures for.

    Raises:
        JobError: There is no such objective, or a price or a carbon intensity is missing.
    """
    problems = []
    for name in names:
        if name not in OBJECTIVES:
            problems.append(f"objective: found '{name}', expected one of {', '.join(OBJECTIVES)}")
        else:
            lacks = _unknown(setting.job.cluster, name)
            problems += [
                f"objective '{name}': {each} or choose another objective" for each in lacks
            ]
    if problems:
        raise JobError(setting.job.source, problems)


def check_limits(job: Job, names: Iterable[str]) -> None:
    """Refuse limits on objectives that the job has no figures for.

    Raises:
        JobError: A price or a carbon intensity is missing.
    """
    problems = [
        f"limit on {name}: {each} or leave the limit out"
        for name in names
        for each in _unknown(job.cluster, name)
    ]
    if problems:
        raise JobError(job.source, problems)


def _unknown(cluster: Cluster, name: str) -> list[str]:
    """Return what is missing for a figure for an objective; empty if there is one."""
    if is_known(cluster, name):
        return []
    if name == "carbon":
        where = f"site {cluster.site.name} has no carbon intensity"
        return [f"{where}; give it one (carbon: '400 gCO2e/kWh')"]
    return [
        f"node {pool.node.name} has no price; give the node one (price: '98 USD/h')"
        for pool in cluster.pools
        if pool.node.price_usd_per_s is None
    ]

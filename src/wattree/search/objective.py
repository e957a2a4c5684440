"""Objectives by which strategies are ranked."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.accounts.bill import energy_usd_per_j
from wattree.errors import JobError
from wattree.predict import Setting
from wattree.trace import Result

OBJECTIVES = ("time", "energy", "cost", "carbon")


def pair(names: object) -> tuple[str, str]:
    """Return two different objectives.

    Raises:
        ValueError: They are none.
    """
    found = tuple(names) if isinstance(names, list | tuple) else ()
    if len(found) != 2 or found[0] == found[1] or not all(name in OBJECTIVES for name in found):
        raise ValueError(f"found {names!r}, expected two different ones of {', '.join(OBJECTIVES)}")
    return found


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


def check_objectives(setting: Setting, names: Sequence[str]) -> None:
    """Refuse objectives that the job has no figures for.

    Raises:
        JobError: There is no such objective, or a price or a carbon intensity is missing.
    """
    cluster, problems = setting.job.cluster, []
    for name in names:
        if name not in OBJECTIVES:
            problems.append(f"objective: found '{name}', expected one of {', '.join(OBJECTIVES)}")
        elif name == "cost":
            problems += [
                f"objective 'cost': node {pool.node.name} has no price; give the node one "
                "(price: '98 USD/h') or choose another objective"
                for pool in cluster.pools
                if pool.node.price_usd_per_s is None and energy_usd_per_j(cluster) is None
            ]
        elif name == "carbon" and cluster.site.carbon_gco2e_per_j is None:
            problems.append(
                f"objective 'carbon': site {cluster.site.name} has no carbon intensity; give it "
                "one (carbon: '400 gCO2e/kWh') or choose another objective"
            )
    if problems:
        raise JobError(setting.job.source, problems)

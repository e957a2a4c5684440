"""Limits that plans keep: of a whole run its time, money, energy and carbon, and of devices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.search.jobs import FEWEST, job
from wattree.errors import InfeasibleError, JobError
from wattree.search import plan
from wattree.search.objective import RUN_LIMITS
from wattree.search.plan_result import RankedStrategy


def test_a_deadline_is_that_of_all_steps() -> None:
    """`training.steps` steps must be done in time."""
    given = job(model="gpt2", training={"steps": 1000})
    best = plan(given, top=1, limits=FEWEST).best
    assert best is not None
    deadline_s = 1000 * best.result.in_run.time_s * 1.02

    found = plan(given, deadline_s=deadline_s, top=20, limits=FEWEST)

    assert all(1000 * entry.result.in_run.time_s <= deadline_s for entry in found.ranked)
    assert found.rejected["past the deadline"] > 0
    hopeless = job(model="gpt2", training={"steps": 1000, "failures": 1000, "restart": "30 d"})
    with pytest.raises(InfeasibleError, match="no run ends: failures come before restarts"):
        plan(hopeless, deadline_s=1e6, limits=FEWEST)


#: The smallest part of the space with strategies on fewer devices.
_LEAST = replace(FEWEST, micro_batches=(4,), shardings=("zero1",))


@cache
def _fastest() -> RankedStrategy:
    """Return the fastest strategy of a thousand steps on two nodes."""
    best = plan(job(nodes=2, batch=32, training={"steps": 1000}), top=1, limits=_LEAST).best
    assert best is not None
    return best


def _of_run(name: str, entry: RankedStrategy) -> float:
    """Return the figure of a thousand steps that an argument of `plan` limits."""
    step = entry.result.in_run
    found = {
        "budget_usd": step.cost_usd,
        "energy_limit_j": step.energy_j,
        "carbon_limit_gco2e": step.carbon_gco2e,
    }[name]
    assert found is not None
    return 1000 * found


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("budget_usd", "whose .* steps? costs? .* USD, over the budget of 1e-06 USD"),
        ("energy_limit_j", "whose .* steps? uses? .*J = .*Wh, over the energy limit of"),
        ("carbon_limit_gco2e", "whose .* steps? emits? .*CO2e, over the carbon limit of"),
    ],
)
def test_limits_of_the_run_are_those_of_all_steps(name: str, nearest: str) -> None:
    """A lean strategy on fewer devices is found where the fastest is over the limit."""
    given = job(nodes=2, batch=32, training={"steps": 1000})
    fastest = _fastest()
    leanest = plan(given, objective=RUN_LIMITS[name], top=1, limits=_LEAST).best
    assert leanest is not None
    assert fastest.options.ranks > leanest.options.ranks
    limit = 1.0001 * _of_run(name, leanest)

    found = plan(given, top=20, limits=_LEAST, **{name: limit})

    assert found.best is not None
    assert limit < _of_run(name, fastest)
    assert all(_of_run(name, entry) <= limit for entry in found.ranked)
    for steps, fewer in ((1000, True), (1, False)):
        shorter = replace(given, training=replace(given.training, steps=steps))
        with pytest.raises(InfeasibleError, match=nearest) as error:
            plan(shorter, limits=_LEAST, **{name: 1e-6})
        assert ("fewer training.steps" in str(error.value)) == fewer


def test_limits_need_figures_and_positive_numbers() -> None:
    """As objectives do."""
    given = job(cluster={"node": "dgx-a100", "site": "sweden"})
    dark = replace(given.cluster, site=replace(given.cluster.site, carbon_gco2e_per_j=None))

    with pytest.raises(
        JobError, match=r"limit on carbon: site \S+ has no carbon intensity; .* out"
    ):
        plan(replace(given, cluster=dark), carbon_limit_gco2e=1.0)
    with pytest.raises(JobError, match=r"energy_limit_j: .*expected a number of joules above 0"):
        plan(given, energy_limit_j=-1.0)


@pytest.mark.parametrize(("nodes", "batch", "fastest"), [(3, 8, 8), (1, 12, 6), (2, 16, 16)])
def test_a_limit_that_limits_nothing_changes_no_answer(
    nodes: int, batch: int, fastest: int
) -> None:
    """Where the batch does not split over all devices, or has little work, fewer are faster."""
    given = job(nodes=nodes, batch=batch)
    free = plan(given, limits=FEWEST)
    limited = plan(given, limits=FEWEST, max_devices=8 * nodes)
    smaller = plan(given, limits=FEWEST, max_devices=max(8 * nodes - 1, 1)).best
    assert free.best is not None
    assert smaller is not None

    assert (limited.best, limited.candidates) == (free.best, free.candidates)
    assert free.best.result.step_time_s <= smaller.result.step_time_s
    assert free.best.options.ranks == fastest
    assert ("It uses" in " ".join(free.explanation)) == (fastest < 8 * nodes)

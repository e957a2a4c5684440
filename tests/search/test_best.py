"""The best strategy of many clusters: what is shared between them changes nothing."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from wattree.cost import load_calibration
from wattree.hardware import Cluster
from wattree.job import job_from_mapping
from wattree.predict import Setting, predicted, setting_of
from wattree.search import Constraints, Known, Limits, best_strategy
from wattree.search.objective import objective_of
from wattree.search.screen import screen
from wattree.search.space import enumerate_space
from wattree.trace import Result

LIMITS = Limits(axes={"pp": (1,), "cp": (1,)}, micro_batches=(2,), schedules=("1f1b",))


def setting(memory_bytes: float, price_usd_per_h: float | None, pue: float = 1.2) -> Setting:
    """Return a small job on eight devices of some memory and price."""
    job = job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 2048, "global_batch": 16},
            "cluster": {"node": "dgx-a100", "site": "sweden"},
        }
    )
    node = job.cluster.node
    price = None if price_usd_per_h is None else price_usd_per_h / 3600
    device = replace(node.device, memory_bytes=memory_bytes)
    cluster = Cluster(
        node=replace(node, device=device, price_usd_per_s=price),
        nodes=1,
        fabric=job.cluster.fabric,
        site=replace(job.cluster.site, pue=pue, energy_price_usd_per_j=3e-8),
    )
    return setting_of(replace(job, cluster=cluster), load_calibration(None))


def test_estimates_of_clusters_that_share_them_are_those_made_anew() -> None:
    """Memory and prices change what fits and what it costs; pue changes energy, too."""
    known = Known()
    for case in ((80e9, 30.0), (20e9, 30.0), (80e9, None), (80e9, 5.0, 1.5), (20e9, 30.0)):
        here = setting(*case)
        shared = known.estimates(here, (8,), LIMITS)
        anew = screen(here, enumerate_space(here, ranks=(8,), limits=LIMITS))
        for field in fields(anew):
            if field.name != "space":
                np.testing.assert_array_equal(
                    getattr(shared, field.name), getattr(anew, field.name), field.name
                )
    assert len(known.screened) == 2  # of two kinds of site


@pytest.fixture(scope="module")
def executed() -> tuple[Result, ...]:
    """Return the result of every strategy of the space, simulated."""
    here = setting(80e9, 30.0)
    space = enumerate_space(here, ranks=(8,), limits=LIMITS)
    return tuple(predicted(here, options).result for options in space)


@pytest.mark.parametrize("objective", ["time", "energy", "cost"])
def test_the_best_is_within_two_per_cent_of_the_best_of_all(
    objective: str, executed: tuple[Result, ...]
) -> None:
    """The closed form chooses what is simulated; simulating everything is the reference."""
    found = best_strategy(
        setting(80e9, 30.0),
        objective=objective,
        constraints=Constraints(),
        ranks=(8,),
        limits=LIMITS,
        simulate=2,
    )
    best = min(objective_of(result, objective) for result in executed if result.memory.fits)
    assert best <= found.value(objective) <= 1.02 * best


@pytest.mark.parametrize(
    ("constraints", "told"),
    [
        (Constraints(), "out of memory: the leanest strategy"),
        (Constraints(any_memory=True, power_cap_w=10.0), "both before PUE 1.2 (12 W with it)"),
        (Constraints(any_memory=True, most={"time": 1e-6}), "past the deadline: a step takes"),
        (
            Constraints(any_memory=True, most={"time": 1.0 / 1024}, steps=1024.0),
            "past the deadline: the run takes",
        ),
        (Constraints(any_memory=True, most={"cost": 1e-9}), "over the budget: a step costs"),
        (Constraints(any_memory=True, most={"energy": 1.0}), "over the energy limit: a step uses"),
        (Constraints(any_memory=True, most={"carbon": 1e-9}), "over the carbon limit: a step emit"),
    ],
)
def test_where_nothing_is_left_the_binding_constraint_is_told(
    constraints: Constraints, told: str
) -> None:
    """With what comes nearest."""
    found = best_strategy(
        setting(1e9, 30.0),
        objective="time",
        constraints=constraints,
        ranks=(8,),
        limits=LIMITS,
        simulate=1,
    )
    assert found.ranked is None
    assert found.reason is not None
    assert told in found.reason
    assert all(value > constraints.most[name] for name, value in found.least.items())
    assert list(found.least) == list(constraints.most)


def test_memory_that_does_not_count_lets_everything_fit() -> None:
    """What a sweep with capacity ignored asks for."""
    found = best_strategy(
        setting(1e9, 30.0),
        objective="time",
        constraints=Constraints(any_memory=True),
        ranks=(8,),
        limits=LIMITS,
        simulate=1,
    )
    assert (found.reason, found.feasible) == (None, found.candidates)


def test_the_best_has_the_figures_of_simulate() -> None:
    """A design study of one cluster shows the energy that `simulate` shows of its strategy."""
    here = setting(80e9, 30.0)
    asked = {"objective": "energy", "constraints": Constraints(), "limits": LIMITS}
    best = best_strategy(here, ranks=(8,), simulate=2, **asked).ranked
    assert best is not None
    alone = predicted(here, best.options).result

    assert best.result.energy_j.total == alone.energy_j.total
    assert best.result.peak_power_w == alone.peak_power_w


def test_estimates_have_the_units_of_results() -> None:
    """Grams, as what is simulated next to them; a cost without any price is unknown, not zero."""
    here = setting(80e9, None)

    def value(simulate: int) -> float:
        return best_strategy(
            here,
            objective="carbon",
            constraints=Constraints(),
            ranks=(8,),
            limits=LIMITS,
            simulate=simulate,
        ).value("carbon")

    assert value(0) == pytest.approx(value(1), rel=0.1)
    site = replace(here.job.cluster.site, energy_price_usd_per_j=None)
    cluster = replace(here.job.cluster, site=site)
    unpriced = best_strategy(
        replace(here, job=replace(here.job, cluster=cluster)),
        objective="time",
        constraints=Constraints(),
        ranks=(8,),
        limits=LIMITS,
        simulate=0,
    )
    assert unpriced.value("cost") == math.inf

"""Plans of models with tables: spread over replicas, with copies of the dense parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattree import plan, simulate
from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.predict import setting_of
from wattree.search import Constraints, Plan, best_strategy
from wattree.search.limits import Limits
from wattree.search.plan import meets_by_estimate

#: A small part of the space; named axes would rule spread tables out.
LARGE = Limits(
    micro_batches=(256, 1024, 8192),
    shardings=("none", "zero1"),
    recomputations=("none",),
    schedules=("1f1b",),
    refined=False,
)


def job(model: str, **strategy: object) -> Job:
    """Return a job on eight devices."""
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": 65536},
            "precision": "bf16",
            "cluster": {"node": "dgx-a100"},
            "strategy": strategy or "auto",
        }
    )


@pytest.fixture(scope="module")
def found() -> Plan:
    """Return the plan of a model whose tables no device holds."""
    return plan(job("dlrm-dcnv2"), top=3)


def test_tables_that_no_device_holds_are_spread(found: Plan) -> None:
    """No plain strategy fits; the plan is what `simulate` says of its options."""
    assert found.best is not None
    assert found.best.options.parallelism.tables != "data-parallel"
    again = simulate(job("dlrm-dcnv2", dp=8, micro_batch=8192, tables="column-wise"))
    ranked = next(e for e in found.ranked if e.options.parallelism.tables == "column-wise")
    assert ranked.result.step_time_s == pytest.approx(again.result.step_time_s)
    assert found.feasible == sum(
        entry.options.parallelism.tables != "data-parallel" for entry in found.ranked
    )


def test_spread_tables_win_where_they_are_faster() -> None:
    """They move looked-up vectors instead of the gradients of whole tables."""
    found = plan(job("dlrm-small"), top=20, limits=LARGE)
    best = {
        spread: min(
            entry.result.step_time_s
            for entry in found.ranked
            if (entry.options.parallelism.tables != "data-parallel") is spread
        )
        for spread in (True, False)
    }

    assert best[True] < 0.5 * best[False]


def test_models_without_tables_and_named_axes_have_none() -> None:
    """Nothing changes for them."""
    for found in (
        plan(job("resnet-50"), limits=LARGE, top=3),
        plan(job("dlrm-small"), limits=replace(LARGE, axes={"tp": (1,)}), top=3),
    ):
        tables = {entry.options.parallelism.tables for entry in found.ranked}
        assert tables == {"data-parallel"}


@pytest.mark.parametrize("simulate", [0, 2])
def test_studies_of_clusters_try_what_plan_tries(found: Plan, simulate: int) -> None:
    """No closed form knows spread tables: they are simulated where all else is estimated, too."""
    studied = best_strategy(
        setting_of(job("dlrm-dcnv2"), load_calibration(None)),
        objective="time",
        constraints=Constraints(),
        ranks=(8,),
        limits=Limits(),
        simulate=simulate,
    )

    assert studied.ranked is not None
    assert found.best is not None
    assert studied.ranked.options == found.best.options


def test_no_number_of_nodes_is_ruled_out_whose_tables_fit_spread() -> None:
    """What is estimated only, to see whether it is worth a plan, spreads them as well."""
    for most_s, meets in ((1.0, True), (1e-9, False)):
        most = {"time": most_s}
        assert meets_by_estimate(job("dlrm-dcnv2"), most=most, limits=LARGE) is meets

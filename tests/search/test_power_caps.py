"""Plans under a power cap."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.search.jobs import FEWEST, generates, job, setting
from wattree.cli.main import run
from wattree.errors import InfeasibleError
from wattree.predict import predicted, setting_of
from wattree.predict.sweep import usual_limits_w
from wattree.search import Limits, cluster_counts, plan
from wattree.search.objective import objective_of
from wattree.search.plan_result import RankedStrategy
from wattree.search.space import enumerate_space

#: A space that can be simulated whole, under every limit.
SMALL = Limits(
    shardings=("zero1",),
    recomputations=("none",),
    schedules=("1f1b",),
    axes={"cp": (1,), "tp": (1,)},
    micro_batches=(1, 2),
    virtual_stages=(1,),
    refined=False,
)


@pytest.mark.parametrize(
    ("name", "caps_w"),
    [("training", (2400.0, 3200.0)), ("generation", (1500.0, 1900.0))],
)
def test_a_looser_power_cap_is_no_slower(name: str, caps_w: tuple[float, ...]) -> None:
    """Strategies above the cap must not crowd out those below it; near ties may change places."""
    given = job(model="gpt2")
    if name == "generation":
        given = generates()
    best = [plan(given, power_cap_w=cap_w, top=1, limits=FEWEST).best for cap_w in caps_w]
    times_s = [entry.result.step_time_s for entry in best if entry is not None]

    assert len(times_s) == len(caps_w)
    assert all(looser <= 1.005 * tighter for tighter, looser in pairwise(times_s))


def test_an_impossible_power_cap_says_what_the_least_hungry_draws() -> None:
    """The nearest miss of the constraint that binds."""
    with pytest.raises(
        InfeasibleError, match=r"draws [\d,.]+ W on average, above the cap of 100 W"
    ):
        plan(job(model="gpt2"), power_cap_w=100.0, limits=FEWEST)


def test_a_power_cap_is_kept_at_every_moment() -> None:
    """The cap is compared with the peak of the power curve, not with its mean."""
    free = plan(job(model="gpt2"), top=3, limits=FEWEST)
    assert free.best is not None
    cap_w = 0.9 * free.best.result.peak_power_w

    capped = plan(job(model="gpt2"), power_cap_w=cap_w, top=3, limits=FEWEST)

    assert all(entry.result.peak_power_w <= cap_w for entry in capped.ranked)
    assert capped.best is not None
    assert capped.best.result.step_time_s > free.best.result.step_time_s


@pytest.mark.parametrize(
    ("changes", "limits", "shares"),
    [
        pytest.param({}, SMALL, (0.85, 0.6), marks=pytest.mark.soak),
        ({"model": "llama-3.2-1b"}, replace(SMALL, shardings=("zero2",)), (0.85, 0.6)),
        (
            {"node": "dgx-h100"},
            replace(SMALL, axes={"cp": (1,), "tp": (1, 2)}, micro_batches=(1,)),
            (0.6,),
        ),
    ],
)
def test_device_limits_that_keep_within_a_cap_are_found(
    changes: dict[str, Any], limits: Limits, shares: tuple[float, ...]
) -> None:
    """As good as every strategy on every number of devices under tenths of the rated power.

    Where it is a limit that keeps the cap, a slightly higher one does not.
    """
    given = job(**changes)
    own = setting(**changes)
    counts = cluster_counts(given.cluster)
    space = list(enumerate_space(own, ranks=counts, limits=limits))
    rated_w = given.cluster.node.device.tdp_w
    limits_w = [rated_w, *(round(each, 3) for each in usual_limits_w(given.cluster)[2::2])]
    by_limit = {
        limit_w: setting_of(given.capped(limit_w), own.calibration, model=own.model)
        for limit_w in limits_w
    }
    every = [predicted(each, options).result for each in by_limit.values() for options in space]
    fits = [result for result in every if result.memory.fits]
    fastest = min(fits, key=lambda result: result.step_time_s)
    for share in shares:
        cap_w = share * fastest.peak_power_w
        within = [result.step_time_s for result in fits if result.peak_power_w <= cap_w]

        found = plan(given, power_cap_w=cap_w, limits=limits)
        best = found.best

        assert best is not None
        assert 0 < found.feasible <= found.candidates - sum(found.rejected.values())
        assert best.power_limit_w is not None
        assert best.result.step_time_s <= min(within) * (1 + 1e-9)
        above = given.capped(best.power_limit_w + 0.01 * rated_w)
        higher = predicted(setting_of(above, own.calibration, model=own.model), best.options)
        assert best.result.peak_power_w <= cap_w < higher.result.peak_power_w


@pytest.mark.usefixtures("small_space")
def test_a_job_with_its_device_limit_is_written(tmp_path: Path) -> None:
    """It is predicted as it was planned, within the cap."""
    path, best = tmp_path / "job.yaml", tmp_path / "best.yaml"
    path.write_text(
        json.dumps(
            {
                "model": "gpt2",
                "data": {"sequence_length": 512, "global_batch": 16},
                "cluster": {"node": "dgx-a100"},
            }
        )
    )
    answer = tmp_path / "plan.json"

    words = ["--power-cap", "2.6 kW", "--out", str(best), "--json", str(answer)]
    code = run(["plan", str(path), *words])

    found = json.loads(answer.read_text())
    step = wattree.simulate(wattree.load_job(best)).result
    limit = f"{found['best']['power_limit_w']:g} W"
    assert code == 0
    assert f"power_limit: {limit}" in best.read_text()
    assert found["best"]["label"].endswith(f"devices at {limit}")
    assert any(f"A power limit of {limit} on each device" in line for line in found["explanation"])
    assert step.step_time_s == pytest.approx(found["best"]["step_time_s"])
    assert step.peak_power_w <= 2600.0


def test_a_cap_leaves_more_nodes_no_slower() -> None:
    """Of four nodes three may be what the cap allows, although three do not divide four."""
    three = plan(job(nodes=3, batch=48), top=1, limits=SMALL).best
    assert three is not None
    cap_w = 1.01 * three.result.peak_power_w

    four = plan(job(nodes=4, batch=48), power_cap_w=cap_w, top=1, limits=SMALL).best

    assert four is not None
    assert four.result.step_time_s <= three.result.step_time_s
    assert four.options.ranks == 24


@cache
def _best(objective: str) -> RankedStrategy:
    best = plan(job(), objective=objective, limits=SMALL).best
    assert best is not None
    return best


@pytest.mark.parametrize(
    ("name", "argument", "objectives"),
    [
        ("energy", "energy_limit_j", ("time", "cost")),
        ("carbon", "carbon_limit_gco2e", ("energy", "carbon")),
    ],
)
def test_what_a_run_may_take_is_kept_by_device_limits_whatever_the_objective(
    name: str, argument: str, objectives: tuple[str, ...]
) -> None:
    """Of the least that a plan finds, hardly more is allowed."""
    least = _best(name)
    assert least.power_limit_w is not None
    alone = wattree.simulate(least.job(job())).result
    assert objective_of(alone, name) == objective_of(least.result, name)
    most = 1.005 * objective_of(least.result, name) * max(job().training.steps, 1)

    for objective in objectives:
        found = plan(job(), objective=objective, limits=SMALL, **{argument: most})

        assert found.best is not None
        assert found.best.power_limit_w is not None
        assert 0 < found.feasible <= found.candidates - sum(found.rejected.values())


def test_a_cap_finds_no_energy_below_that_of_a_plan_without_one() -> None:
    """A constraint leaves fewer strategies."""
    free, cap_w = _best("energy"), 0.9 * _best("time").result.peak_power_w

    capped = plan(job(), objective="energy", power_cap_w=cap_w, limits=SMALL).best

    assert capped is not None
    assert free.result.energy_j.total <= capped.result.energy_j.total * (1 + 1e-9)

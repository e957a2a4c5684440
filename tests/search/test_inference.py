"""Plans of forward passes and of generation: the best of all that is legal, and nothing idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wattree
from tests.search.jobs import SMALL, generates
from wattree.closed_form.bounds import TIME_BOUNDS, time_bound
from wattree.cost import load_calibration
from wattree.errors import InfeasibleError
from wattree.job import Job, job_from_mapping
from wattree.predict import Setting, predicted
from wattree.predict.generation import workload_setting
from wattree.report.plan_text import ranking_rows
from wattree.search import Plan, plan
from wattree.search.screen import screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

EXPERTS = {**SMALL, "experts": 4, "top_k": 2}


def whole(of: Job) -> Setting:
    """Return the setting of all that a job does."""
    return workload_setting(of, load_calibration())


def by_hand(setting: Setting, ranks: int) -> Iterator[StrategyOptions]:
    """Yield every strategy that generates on so many devices, by the rules of engines."""
    for tp in (1, 2, 4):
        for pp in (1, 2, 4):
            for ep in (1, 2, 4):
                dp, rest = divmod(ranks, tp * pp * ep)
                if rest or dp == 0 or (ep > 1 and not setting.has_experts):
                    continue
                share, rest = divmod(setting.job.data.global_batch, dp * ep)
                for size in range(1, share + 1):
                    options = StrategyOptions(
                        tp=tp, pp=pp, ep=ep, dp=dp, micro_batch=size,
                        expert_over_tensor=not (setting.has_experts and tp > 1),
                    )  # fmt: skip
                    if not rest and share % size == 0:
                        yield options


@pytest.mark.parametrize(
    ("model", "objective"), [(SMALL, "energy"), (EXPERTS, "time")], ids=["dense", "experts"]
)
def test_the_plan_of_generation_is_the_best_of_every_strategy(model: Any, objective: str) -> None:
    """They are few, so all are simulated: screening must not lose the best one."""
    given = generates(model, batch=4, length=2)
    setting = whole(given)
    found = plan(given, objective=objective)
    assert found.best is not None

    def value(result: wattree.Result) -> float:
        return result.step_time_s if objective == "time" else result.energy_j.total

    counts = (4,) if objective == "time" else (1, 2, 4)
    every = [options for ranks in counts for options in by_hand(setting, ranks)]
    if limit_w := found.best.power_limit_w:  # lower than the devices' own takes less energy
        setting = whole(replace(given, cluster=given.cluster.limited(limit_w)))
    least = min(value(predicted(setting, options).result) for options in every)

    assert value(found.best.result) == pytest.approx(least, rel=1e-6)
    assert found.best.options.memory.sharding == "none"


def test_spaces_of_generation_list_what_engines_have() -> None:
    """Each legal split once, with every size of a micro-batch, and none that needs positions."""
    for model in (SMALL, EXPERTS):
        setting = whole(generates(model))
        listed = list(enumerate_space(setting))

        assert len(listed) == len(set(listed))
        assert set(listed) == set(by_hand(setting, 4))


def test_screening_has_the_figures_of_a_single_estimate() -> None:
    """Arrays of strategies and one of them take the same closed form, pipelines included."""
    given = generates(batch=4)
    setting = whole(given)
    space = enumerate_space(setting)
    screened = screen(setting, space)

    for index, options in enumerate(space):
        found = wattree.estimate(replace(given, strategy=options))
        assert screened.step_time_s[index] == pytest.approx(found.step_time_s), options
        assert screened.energy_j[index] == pytest.approx(found.energy_j.total), options
        assert screened.memory_bytes[index] == pytest.approx(found.memory.peak_bytes), options


def test_screening_is_near_the_simulation_of_every_strategy() -> None:
    """Search stops where estimates say that nothing better follows."""
    setting = whole(generates(EXPERTS, batch=4, length=2))
    space = enumerate_space(setting)
    screened = screen(setting, space)
    found = [predicted(setting, options, detail=False).result for options in space]

    bounds = np.array([time_bound(options, setting) for options in space])
    piped = np.array([options.pp > 1 for options in space])
    behind = screened.step_time_s / [result.step_time_s for result in found] - 1.0
    peaks = np.array([result.memory.peak_bytes for result in found])
    assert (behind < bounds).all()
    assert np.abs(behind[~piped]).max() < 0.05
    assert behind[piped].max() > TIME_BOUNDS["others"] / 3  # a pipeline's bound is its own
    assert np.abs(screened.memory_bytes / peaks - 1.0).max() < 0.05


@pytest.fixture(scope="module")
def planned() -> Plan:
    """Return the plan of a small model."""
    return plan(generates())


def test_what_a_plan_says_is_what_simulate_says(planned: Plan) -> None:
    """One prediction, whoever asks: also of the cache, and of the time to tokens."""
    best = planned.best
    assert best is not None

    found = wattree.simulate(replace(generates(), strategy=best.options)).result

    assert found.step_time_s == pytest.approx(best.result.step_time_s)
    assert found.energy_j.total == pytest.approx(best.result.energy_j.total)
    assert found.generation == best.result.generation


def test_the_table_has_times_to_tokens_and_energy_of_each(planned: Plan) -> None:
    """People compare engines by these, not by a batch of some length."""
    head, rows = ranking_rows(planned.ranked[:2])
    use = planned.ranked[0].result.generation
    assert use is not None
    energy_j = planned.ranked[0].result.energy_j.total / (8 * 16)

    names = [name.partition(" [")[0] for name in head]
    assert names == [
        "#",
        "strategy",
        "batch",
        "80 %",
        "tokens",
        "first",
        "token",
        "memory",
        "energy",
        "cost",
    ]
    assert float(rows[0][names.index("energy")]) == pytest.approx(energy_j * 1e3, rel=0.01)
    assert head[names.index("energy")] == "energy [mJ/tok]"


def test_a_model_that_no_strategy_holds_is_refused_with_what_would_help() -> None:
    """Neither a smaller optimizer, as there is none, nor fewer sequences: parameters fill it."""
    given = generates("llama-3.1-405b")
    with pytest.raises(InfeasibleError) as refused:
        plan(given)

    assert "out of memory" in str(refused.value)
    assert str(refused.value).endswith("3 nodes (by the closed form), devices with more memory")
    assert "optimizer" not in str(refused.value)


def test_plans_of_forward_passes_list_each_order_once() -> None:
    """Without backward passes GPipe and 1F1B run micro-batches alike, and nothing is reduced."""
    given = _forward()
    setting = whole(given)
    listed = list(enumerate_space(setting))
    found = plan(given)
    assert found.best is not None

    assert {options.pipeline.schedule for options in listed} == {"1f1b", "interleaved"}
    assert {options.memory.sharding for options in listed} <= {"none", "zero3", "hybrid"}
    order = {
        name: predicted(setting, StrategyOptions(pp=4, micro_batch=1, schedule=name)).result
        for name in ("1f1b", "gpipe")
    }
    assert order["1f1b"].step_time_s == pytest.approx(order["gpipe"].step_time_s, rel=1e-9)
    assert found.best.result.step_time_s <= min(each.step_time_s for each in order.values())


def _forward() -> Job:
    return job_from_mapping(
        {
            "workload": "forward",
            "model": {"transformer": SMALL},
            "data": {"sequence_length": 256, "global_batch": 8},
            "cluster": {"node": "4x-h100-sxm"},
            "strategy": "auto",
        }
    )

"""Plans: constraints kept, numbers true, errors clear, the same every time."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import pytest

import wattree
from tests.samples import sample_plan, sample_result
from tests.search.jobs import FEW, FEWEST, job, setting
from wattree.errors import InfeasibleError, JobError, StrategyError
from wattree.predict import Prediction, Setting, predicted
from wattree.search import Limits, Plan, plan
from wattree.search.explain import explanation
from wattree.search.fixes import memory_fixes
from wattree.search.infeasible import infeasible
from wattree.search.objective import to_digits
from wattree.search.pareto import undominated
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import in_order, without_idle_recomputation
from wattree.search.screen import Constraints
from wattree.search.space import enumerate_space
from wattree.search.space_search import SpaceSearch
from wattree.strategy import StrategyOptions
from wattree.units import format_bytes


@pytest.fixture(scope="module")
def found() -> Plan:
    """A plan that several tests read."""
    return plan(job(model="llama-3.2-1b", batch=32, sequence=2048))


def test_plans_are_the_same_every_time_and_simulate_no_strategy_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No choice depends on the clock or a set's order; the search often finds hand choices."""
    first = plan(job(), limits=FEW)
    simulated: list[StrategyOptions] = []

    def once(own: Setting, options: StrategyOptions) -> Prediction:
        simulated.append(options)
        return predicted(own, options)

    for module in ("plan", "promising"):
        monkeypatch.setattr(import_module(f"wattree.search.{module}"), "predicted", once)
    again = plan(job(), limits=FEW)

    assert len(set(simulated)) == len(simulated) > 0
    assert [e.options for e in again.ranked] == [e.options for e in first.ranked]
    assert again.explanation == first.explanation
    assert again.rejected == first.rejected


def test_progress_never_falls_back() -> None:
    """Parts of the space are searched one after another; each adds to what is done and to do."""
    seen: dict[str, list[tuple[int, int]]] = {}

    plan(
        job(),
        objective="energy",
        limits=replace(FEWEST, refined=True),
        progress=lambda stage, *counts: seen.setdefault(stage, []).append(counts),
    )

    for counts in seen.values():
        assert counts == sorted(counts)
        assert all(done <= total for done, total in counts)


def test_a_plan_ranks_strategies_that_fit_by_step_time(found: Plan) -> None:
    """What the command promises."""
    times = [to_digits(entry.result.step_time_s) for entry in found.ranked]

    assert found.best == found.ranked[0]
    assert times == sorted(times)
    assert all(entry.result.memory.fits for entry in found.ranked)
    assert len(found.ideas) in {9, 10}  # as many as were simulated, of ten at most


def test_every_candidate_is_feasible_or_turned_away_for_a_reason(found: Plan) -> None:
    """Nothing disappears without a count."""
    assert found.candidates == found.feasible + sum(found.rejected.values())


def test_the_json_has_the_fields_of_the_design(found: Plan) -> None:
    """Section 3 of the design names them; scripts rely on them."""
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))

    assert {
        "candidates", "simulated", "feasible", "wall_s", "best", "ranked", "explanation",
        "rejected",
    } <= set(written)  # fmt: skip
    assert written["schema"] == "wattree-plan/1"
    first = written["ranked"][0]
    assert {"mesh", "schedule", "tree", "preset"} <= set(first["strategy"])
    assert {"step_time_s", "memory", "time_s", "energy_j", "cost_usd"} <= set(first)


def test_the_explanation_names_both_hand_choices_and_the_runner_up(found: Plan) -> None:
    """The winner is explained against what people would have done."""
    text = " ".join(found.explanation).lower()

    assert "runner-up" in text
    assert "fsdp over all ranks" in text
    assert "tensor parallelism over the node" in text


def test_numbers_in_the_explanation_are_those_of_the_results(found: Plan) -> None:
    """Against the runner-up: both times, their quotient, and the difference of each part."""
    first, second = found.ranked[0].result, found.ideas[1][0].result
    sentence = found.explanation[1]
    mine, other = first.step_time_s, second.step_time_s

    assert f"{mine:.4g} s against {other:.4g} s" in sentence
    if quoted := re.search(r"by ([\d.]+) %", sentence):
        assert float(quoted.group(1)) == pytest.approx(100 * (other - mine) / mine, abs=0.051)
    gains = {k: asdict(second.time_s)[k] - v for k, v in asdict(first.time_s).items()}
    named = {"compute": "compute", "exposed_communication": "exposed communication",
             "bubble": "pipeline bubble", "recomputation": "recomputation"}  # fmt: skip
    for part, words in named.items():
        for told in re.finditer(rf"(less|more) {words}", sentence):
            assert (gains[part] > 0) == (told.group(1) == "less")


def test_recomputation_is_a_reason_only_if_one_of_the_two_recomputes(found: Plan) -> None:
    """Reasons are facts of the two strategies."""
    for sentence in found.explanation[1:]:
        if "recomputes nothing" in sentence:
            assert "recomputation" in sentence
            assert found.ranked[0].options.memory.recompute == "none" or "the other" in sentence


def test_memory_in_the_summary_is_that_of_the_result(found: Plan) -> None:
    """The first sentence says how full the fullest device is."""
    memory = found.ranked[0].result.memory

    assert format_bytes(memory.peak_bytes) in found.explanation[0]


def test_fewer_devices_are_used_when_asked() -> None:
    """`--max-devices`; part of a node need not divide it."""
    given = job(batch=12)
    found = plan(given, max_devices=3, limits=FEWEST)

    assert {entry.options.ranks for entry in found.ranked} <= {1, 2, 3}
    assert found.best is not None
    assert found.best.options.ranks == 3
    assert (
        wattree.simulate(found.best.job(given)).result.step_time_s == found.best.result.step_time_s
    )


def test_cheapest_uses_no_more_money_than_fastest() -> None:
    """A small model is dearer on eight devices than it need be; the search must look there."""
    given = job(model="gpt2", batch=8)
    fastest, cheapest = (
        plan(given, objective=objective, limits=FEWEST).best for objective in ("time", "energy")
    )
    assert fastest is not None
    assert cheapest is not None

    assert cheapest.result.energy_j.total <= fastest.result.energy_j.total


def test_the_front_holds_no_strategy_that_another_beats() -> None:
    """`--pareto time,energy`."""
    front = plan(job(model="gpt2"), pareto=("time", "energy"), limits=FEWEST).pareto
    assert front

    import numpy as np

    time_s = np.array([entry.result.step_time_s for entry in front])
    energy = np.array([entry.result.energy_j.total for entry in front])
    assert len(undominated(np.stack([time_s, energy], axis=1))) == len(front)
    assert (np.diff(time_s) > 0).all()
    assert (np.diff(energy) < 0).all()


def test_a_model_that_fits_nowhere_says_what_is_missing() -> None:
    """How much the leanest strategy needs, on how much, and how many nodes would do."""
    with pytest.raises(InfeasibleError) as error:
        plan(job(model="llama-3.1-70b", node="dgx-a100-40gb", batch=8, sequence=8192), limits=FEW)

    lines = str(error.value).splitlines()
    assert (
        lines[0]
        == "job: nothing fits: no strategy for llama-3.1-70b on 1 x dgx-a100-40gb meets every "
        "constraint"
    )
    assert re.fullmatch(r"  rejected: out of memory \([\d,]+\)", lines[1])
    assert re.fullmatch(
        r"  nearest: .*full recomputation, which needs [\d.]+ GiB on each device of 40\.00 GiB, "
        r"5% left free",
        lines[2],
    )
    assert re.fullmatch(
        r"  what would help: (the same with 'offload: {optimizer: host}', which fits with [\d.]+ s "
        r"per step; )?5 nodes \(by the closed form\), devices with more memory, or adapters in "
        r"place of all weights \(model\.lora\)",
        lines[3],
    )
    assert set(error.value.rejected) == {"out of memory"}


def test_an_objective_without_its_price_is_refused() -> None:
    """Money cannot be ranked where the node has no price."""
    given = job(model="gpt2")
    node = replace(given.cluster.node, price_usd_per_s=None)
    given = replace(given, cluster=replace(given.cluster, node=node))

    with pytest.raises(JobError, match="objective 'cost': node dgx-a100 has no price"):
        plan(given, objective="cost")


def test_memory_fixes_fit_and_are_sorted_by_step_time() -> None:
    """Each is a change after which the job runs, cheapest first."""
    job_setting = setting(model="llama-3.1-8b", batch=32, sequence=4096)
    options = StrategyOptions(dp=8)
    assert not predicted(job_setting, options).result.memory.fits

    fixes = memory_fixes(job_setting, options)

    assert len(fixes) == 3
    capacity = job_setting.job.cluster.node.device.memory_bytes
    assert all(fix.peak_bytes <= capacity for fix in fixes)
    assert [fix.step_time_s for fix in fixes] == sorted(fix.step_time_s for fix in fixes)


def test_of_equal_strategies_the_one_with_less_memory_is_first() -> None:
    """What is left of the memory is worth something; rounding of the time is worth nothing."""
    first, second = sample_plan().ranked[:2]
    memory = sample_result().memory
    full = replace(first, result=sample_result(step_time_s=16.0, memory=memory))
    lean = replace(
        second,
        result=sample_result(
            step_time_s=16.0 * (1 + 1e-9), memory=replace(memory, peak_bytes=memory.peak_bytes / 2)
        ),
    )
    slow = replace(second, result=replace(lean.result, step_time_s=16.01))

    assert in_order([slow, full, lean], "time") == (lean, full, slow)


def test_recomputation_that_frees_nothing_is_not_listed() -> None:
    """It takes longer than the same without, and needs as much memory."""
    plain, memory = StrategyOptions(dp=8), sample_result().memory
    lean = replace(memory, peak_bytes=memory.peak_bytes / 2)
    entries = [
        RankedStrategy(options=options, label=options.memory.recompute, result=result)
        for options, result in (
            (plain, sample_result()),
            (plain.changed(recompute="selective"), sample_result()),
            (plain.changed(recompute="full"), sample_result(memory=lean)),
            (plain.changed(recompute="full", sharding="zero1"), sample_result()),
        )
    ]

    first, _, *rest = entries
    assert without_idle_recomputation(entries) == (first, *rest)


def test_the_explanation_has_no_differences_of_nothing() -> None:
    """Words such as "0 J more at rest" take room and say nothing."""
    given = setting(model="gpt2")
    mine = sample_result()
    energy = mine.energy_j
    parts = replace(mine.time_s, compute=mine.time_s.compute + 1e-12)
    other = sample_result(
        step_time_s=16.0 + 1e-12,
        time_s=parts,
        energy_j=replace(energy, total=energy.total + 500.0, dynamic=energy.dynamic + 500.0),
    )
    ranked = [
        RankedStrategy(options=StrategyOptions(dp=8), label=label, result=result)
        for label, result in (("mine", mine), ("other", other))
    ]

    told = explanation(given, "energy", ranked, {}, constraints=Constraints())[1]

    assert re.sub("with [5-9][0-9] %", "with N %", told) == (
        "0.6 % less energy than its nearest variant (other), 90 kJ against 90.5 kJ, "
        "with N % probability: 500 J less for work and traffic."
    )


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [({}, "balances the layers"), ({"slowdown": {"0": 1.2}}, "gives slower devices fewer layers")],
)
def test_uneven_stages_have_the_reason_that_is_true(cluster: dict[str, Any], reason: str) -> None:
    """Equal devices have no slower ones among them."""
    given = setting(cluster={"node": "dgx-a100", **cluster})
    mine = sample_result()
    parts = replace(mine.time_s, compute=mine.time_s.compute + 4.0)
    other = sample_result(step_time_s=20.0, time_s=parts)
    uneven = StrategyOptions(dp=4, pp=2).changed(stage_layers=(7, 5))
    ranked = [
        RankedStrategy(options=uneven, label="uneven", result=mine),
        RankedStrategy(options=StrategyOptions(dp=4, pp=2), label="even", result=other),
    ]

    told = explanation(given, "time", ranked, {}, constraints=Constraints())
    assert any(reason in line for line in told)


def test_a_faster_rival_is_named_with_the_constraint_that_it_misses() -> None:
    """80 % of the memory would do; and three times as fast is no 200 %."""
    winner = replace(sample_plan().ranked[0], result=sample_result(step_time_s=24.0))
    rivals = {
        name: replace(winner, label=name, options=StrategyOptions(dp=dp), result=result)
        for name, dp, result in (
            ("full", 8, sample_result(step_time_s=16.0)),
            ("slow", 4, sample_result(step_time_s=72.0)),
        )
    }
    text = " ".join(
        explanation(setting(), "time", [winner], rivals, constraints=Constraints(margin=0.3))
    )

    assert (
        "33.3 % slower than full (full), which does not leave 30 % of the memory free (--margin 0 "
        "admits it), 24 s against 16 s"
    ) in text
    assert "3.0 times as fast as slow (slow), 24 s against 72 s" in text


def test_plan_is_exported() -> None:
    """The command calls it by this name."""
    assert wattree.plan is plan


def test_host_memory_is_offered_where_it_is_what_fits() -> None:
    """One device, no replicas to shard over: only the optimizer's state can go elsewhere."""
    job_setting = setting(model="llama-3.1-8b", batch=8)
    options = StrategyOptions()
    assert not predicted(job_setting, options, detail=False).result.memory.fits

    fixes = memory_fixes(job_setting, options)

    assert [fix.change for fix in fixes] == ["optimizer state in host memory"]


def test_sequences_of_one_token_have_strategies() -> None:
    """They admit no context parallelism, but all else; once no mesh at all was left."""
    assert plan(job(model="gpt2", sequence=1), limits=replace(FEWEST, axes={})).best is not None


def test_devices_that_were_left_out_are_asked_for_before_more_nodes() -> None:
    """More nodes do not help where --max-devices binds."""
    with pytest.raises(InfeasibleError, match="what would help: a larger --max-devices, devices"):
        plan(job(model="llama-3.1-70b", node="dgx-a100", nodes=4), max_devices=1, limits=FEW)


def test_strategies_that_only_simulations_reject_say_what_they_miss() -> None:
    """Not a time that misses nothing."""
    seek = SpaceSearch(
        setting=setting(model="gpt2"),
        constraints=Constraints(most={"time": 1.0, "cost": 1.0}),
        objectives=("time",),
        fewest=1,
        report=lambda *_: None,
    )
    sought = seek.within(enumerate_space(seek.setting, limits=FEW))
    found = replace(sought.found, reason=dict.fromkeys(sought.screened.space, "out of memory"))
    error = infeasible(seek, [replace(sought, found=found)], FEW)

    assert "most promising are out of memory\n" in str(error)
    assert re.search(
        r"\n  fastest .*limits: .*, whose 1 step takes .* and costs .* USD", str(error)
    )
    assert "what would help: more devices, a smaller --margin, devices with more" in str(error)


def test_help_names_the_host_if_that_is_enough() -> None:
    """The search leaves the optimizer on the devices; the host has 2 TB of memory."""
    with pytest.raises(
        InfeasibleError, match=r"help: the same with 'offload: {optimizer: host}', which fits with"
    ):
        plan(
            job(model="llama-3.1-70b", node="dgx-h100", batch=8, sequence=4096),
            limits=Limits(axes={"tp": (8,)}),
        )


def test_a_batch_of_more_micro_batches_than_can_be_simulated_is_blamed_itself() -> None:
    """Not a schedule that no one wrote."""
    absurd = job(model="llama-3.2-1b", batch=99_999_989, sequence=1024)
    with pytest.raises(StrategyError, match=r"^job: data\.global_batch: [\d,]+ micro-batches make"):
        plan(absurd, limits=Limits(axes={"tp": (8,)}, micro_batches=(1,)))

"""What a plan says of its first strategy: how sure it fits, and what is as good and simpler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.samples import sample_plan
from tests.search.jobs import FEWEST, job, setting
from wattree.errors import InfeasibleError
from wattree.report.plan_text import surer
from wattree.search.plan import plan
from wattree.search.plan_result import RankedStrategy
from wattree.search.winner import winner_sentences
from wattree.strategy import StrategyOptions


def _holding(entry: RankedStrategy, share: float, *, factor: float = 1.6) -> RankedStrategy:
    """Return a strategy that fills so much of the memory, exceeded by `factor` once in ten."""
    memory = entry.result.memory
    peak = share * memory.capacity_bytes
    result = replace(
        entry.result,
        memory=replace(memory, peak_bytes=peak),
        interval={"memory.peak_bytes": (peak / factor, peak * factor)},
    )
    return replace(entry, result=result)


def test_a_winner_that_may_not_fit_names_the_fastest_that_surely_does() -> None:
    """Of 90 % of a memory, exceeded by 60 % in one case of ten, a third are too much."""
    winner = sample_plan().ranked[0]
    leaner = _holding(replace(winner, label="leaner"), 0.5)
    slower_s = 1.1 * winner.result.step_time_s
    leaner = replace(leaner, result=replace(leaner.result, step_time_s=slower_s))
    found = {}
    for software, factor, others in (
        ("megatron-core", 1.6, [leaner]),
        ("auto", 1.6, []),
        ("auto", 1.1, []),
    ):
        ranked = [_holding(winner, 0.9, factor=factor), *others]
        (sentence,) = winner_sentences(setting(software=software), "time", ranked)
        found[software, factor] = sentence.partition("activations.")[2]

    words = " It fits with 61 % probability, by the spread of predicted memory: "
    assert found == {
        ("megatron-core", 1.6): f"{words}leaner does with 80 % or more, +10.0 % time.",
        ("auto", 1.6): f"{words}nothing that was found fits with 80 %; naming the software narrows "
        "that spread.",
        ("auto", 1.1): "",
    }


def test_the_best_that_surely_fits_is_named_where_the_best_of_all_may_not() -> None:
    """On a line of its own, with what it costs and where it stands."""
    winner = sample_plan().ranked[0]
    faster, sure = (
        _holding(replace(winner, label=label), share)
        for label, share in (("faster", 0.9), ("sure", 0.5))
    )
    slow_s = 1.3 * winner.result.step_time_s
    sure = replace(sure, result=replace(sure.result, step_time_s=slow_s))
    plan = replace(sample_plan(), best=faster, ranked=(faster, sure))

    assert plan.sure is sure
    assert surer(plan) == "Sure to fit: sure: +30.0 % time, 97 % sure (--rank 2)"
    plan = replace(plan, best=sure, ranked=(sure, faster))
    assert (plan.sure, surer(plan)) == (None, None)


def test_a_simpler_strategy_that_is_as_good_is_named() -> None:
    """Fewer axes, no context parallelism, equal stages, powers of two; never one that is slower."""
    winner = sample_plan().ranked[0]
    chosen = StrategyOptions(dp=2, cp=2, tp=2)
    cases = {
        "fewer axes": (StrategyOptions(dp=8), 1.009),
        "slower": (StrategyOptions(dp=8), 1.011),
        "no cp": (StrategyOptions(dp=2, pp=2, tp=2), 1.005),
        "as many": (StrategyOptions(dp=2, cp=2, ep=2), 1.005),
        "odd": (StrategyOptions(dp=2, pp=2, tp=2, micro_batch=3), 1.005),
        "uneven": (StrategyOptions(dp=2, pp=2, tp=2).changed(stage_layers=(7, 5)), 1.005),
    }
    named = {}
    for name, (options, slower) in cases.items():
        result = replace(winner.result, step_time_s=winner.result.step_time_s * slower)
        other = replace(winner, label=name, options=options, result=result)
        (sentence,) = winner_sentences(setting(), "time", [replace(winner, options=chosen), other])
        named[name] = sentence.partition("activations.")[2]

    words = "is simpler and predicted alike"
    assert {name: said for name, said in named.items() if said} == {
        "fewer axes": f" fewer axes {words} (+0.9 %).",
        **{name: f" {name} {words} (+0.5 %)." for name in ("no cp", "odd", "uneven")},
    }


def test_devices_that_the_batch_does_not_split_over_are_left_out() -> None:
    """16 samples on 24 devices, without axes that would split anything else."""
    alone = replace(FEWEST, axes={"cp": (1,), "pp": (1,), "tp": (1,)})
    found = plan(job(nodes=3), limits=alone)

    assert found.best is not None
    assert found.best.options.ranks == 16
    assert "16 samples split over no mesh of 24 devices" in found.warnings[-1]
    with pytest.raises(InfeasibleError, match="splits over no mesh of these devices"):
        plan(job(nodes=3), limits=replace(alone, idle_nodes=False))

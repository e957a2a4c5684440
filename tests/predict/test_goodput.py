"""Steps with their share of checkpoints, failures and restarts, against runs that are played."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.search.jobs import setting
from wattree.accounts.bill import run_bill
from wattree.accounts.goodput import Interruptions, interruptions, run_step
from wattree.accounts.interval import DEVIATIONS
from wattree.cost import load_calibration
from wattree.predict import predicted
from wattree.report.energy_text import run_facts
from wattree.search.limits import Limits
from wattree.search.screen import screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

_STEP_S, _STEP_J = np.array(2.0), np.array(1e3)
_FEW = Limits(micro_batches=(2,), shardings=("zero1",), schedules=("1f1b",))
_FRAGILE = Interruptions(
    checkpoint_bytes=1e12,
    failures_per_s=1 / 3600.0,
    save_s=20.0,
    blocked_s=20.0,
    restart_s=400.0,
    idle_w=100.0,
)


def _played_s(found: Interruptions, interval_s: float, intervals: int) -> float:
    """Return the time of as many intervals of steps, with failures at random moments. [s]"""
    random = np.random.default_rng(5)

    def until_failure_s() -> float:
        return float(random.exponential(1.0 / found.failures_per_s))

    total_s, whole_s = 0.0, interval_s + found.blocked_s
    for _ in range(intervals):
        while (failed_s := until_failure_s()) < whole_s:
            total_s += failed_s
            while (failed_s := until_failure_s()) < found.restart_s:
                total_s += failed_s
            total_s += found.restart_s
        total_s += whole_s
    return total_s


@pytest.mark.parametrize("every_steps", [None, 600])
def test_the_formula_is_the_mean_of_played_runs(every_steps: int | None) -> None:
    """At the interval that costs least and at a longer one, where a third of them fails."""
    found = replace(_FRAGILE, every_steps=every_steps)
    interval_s = float(found.interval_s(_STEP_S))

    time_s, _ = found.totals(_STEP_S, _STEP_J)

    played = _played_s(found, interval_s, 20_000) / (20_000 * interval_s)
    assert float(time_s / _STEP_S) == pytest.approx(played, rel=0.01)


def test_no_interval_is_much_better_than_that_which_is_taken() -> None:
    """Young's interval is the best to first order; energy rises less than time."""
    time_s, energy_j = _FRAGILE.totals(_STEP_S, _STEP_J)

    others = [replace(_FRAGILE, every_steps=n).totals(_STEP_S, _STEP_J)[0] for n in range(20, 2000)]
    assert time_s <= 1.002 * min(others)
    assert 1.0 < energy_j / _STEP_J < time_s / _STEP_S


@pytest.mark.parametrize(
    ("model", "node", "nodes", "published"),
    [
        ("llama-3.1-405b", "dgx-h100", 2048, 0.9),  # "more than 90 %", arXiv:2407.21783
        ("gpt3-175b", "dgx-a100", 1536, 0.9),  # "over 90 %", MegaScale, arXiv:2402.15627
        ("llama-3.1-70b", "dgx-h100", 1200, 0.97),  # "70B+", ByteRobust, arXiv:2509.16293
    ],
)
def test_published_goodput_is_inside(model: str, node: str, nodes: int, published: float) -> None:
    """Eight devices hardly fail. Of the last, nothing is in the constants."""
    given = setting(model=model, cluster={"node": node, "nodes": 1})
    small, large = run_step(setting(), (1.0,), 0.1, 500.0), run_step(given, (nodes,), 6.5, 1e9)
    asynchronous = replace(given, software=replace(given.software, async_checkpoints=True))
    hidden = run_step(asynchronous, (nodes,), 6.5, 1e9)

    assert small is not None
    assert large is not None
    assert hidden is not None
    assert small.goodput > 0.999
    assert large.goodput == pytest.approx(published, abs=0.04)
    low, high = (large.goodput / bound for bound in reversed(large.bounds))
    assert low < published < high
    assert large.goodput < hidden.goodput


def test_a_run_without_failures_is_its_steps() -> None:
    """With stated failures, nothing of them is assumed, and they widen no interval.

    Above, what published trainings take beyond their steps does.
    """
    options = StrategyOptions(dp=8, micro_batch=2)
    never = predicted(setting(training={"failures": 0}), options).result
    often = predicted(setting(training={"failures": 50, "restart": "1 h"}), options).result
    run, worse = run_bill(never, 1000), run_bill(often, 1000)

    assert run.time_s == run.steps * never.step_time_s
    assert run.cost_usd == pytest.approx(run.steps * (never.cost_usd or 0.0))
    low, high = (end / never.step_time_s for end in never.interval["step_time_s"])
    slower = load_calibration().residuals.spreads["run.slower"]
    above = math.exp(math.hypot(math.log(high), DEVIATIONS * slower))
    assert run.interval["time_s"] == pytest.approx([run.time_s * low, run.time_s * above])
    assert f"{above:.3g} times as long" in dict(run_facts(run, {}))["Not counted"]
    assert (often.step_time_s, often.energy_j) == (never.step_time_s, never.energy_j)
    assert worse.failures == pytest.approx(worse.time_s * 8 * 50 / 1000 / 86_400)
    assert worse.goodput == pytest.approx(1 / (1 + 0.4 / 24), abs=5e-3)
    assert worse.step is not None
    assert worse.step.assumed == ("checkpoints at 1 GB/s per node",)


def test_no_more_is_lost_than_the_run_has() -> None:
    """Checkpoints farther apart than the run is long count as one at its end."""
    seldom = {"checkpoint": {"dir": "c", "every": 200_000}}
    short, at_end, unknown = (
        run_step(setting(training={**training, "failures": 500}), (8.0,), 1.0, 500.0)
        for training in ({**seldom, "steps": 1000}, {"checkpoint": {"dir": "c", "every": 1000}}, {})
    )

    assert short is not None
    assert at_end is not None
    assert unknown is not None
    assert short.time_s == at_end.time_s
    assert short.checkpoint_every_s == 1000.0
    assert unknown.checkpoint_every_s != 1000.0


@pytest.mark.parametrize("left_out", ["failures", "restart", "checkpoint_rate"])
def test_what_is_assumed_widens_the_interval(left_out: str) -> None:
    """Each of the three has a spread; that of long runs with many devices is of all of them."""
    stated = {"failures": 0.58, "restart": "10 min", "checkpoint_rate": "1 GB/s"}
    rest = {name: value for name, value in stated.items() if name != left_out}
    sure, less, least = (
        run_step(setting(training=training), (2048.0,), 6.5, 1e9) for training in (stated, rest, {})
    )

    assert sure is not None
    assert less is not None
    assert least is not None
    assert (sure.assumed, len(less.assumed), len(least.assumed)) == ((), 1, 3)
    assert least.bounds[0] < less.bounds[0] < sure.bounds[0] == 1.0
    assert least.bounds[1] > less.bounds[1] > sure.bounds[1] >= 1.0


def test_a_run_may_never_end() -> None:
    """It is said, and no limit is met; without failures no restart is assumed."""
    options = StrategyOptions(dp=8, micro_batch=2)
    hopeless = {"failures": 1000, "restart": "30 d", "steps": 10}
    run = run_bill(predicted(setting(training=hopeless), options).result, 1000)
    facts = dict(run_facts(run, {"time": 1e30}))
    saved = {"failures": 0, "checkpoint": {"dir": "c", "every": 5}}
    step = run_step(setting(training=saved), (1.0,), 0.1, 500.0)

    assert run.never_ends
    assert facts["Time"].startswith("it never ends: it fails every ")
    assert facts["Deadline"] == "met with < 1 % probability"
    assert facts.keys() == {"Target", "Time", "Deadline"}
    assert step is not None
    assert step.assumed == ("checkpoints at 1 GB/s per node",)


def test_screened_steps_have_the_share_that_simulated_ones_have() -> None:
    """Limits of a run mean the same to estimates and to simulations."""
    given = setting(nodes=2, training={"failures": 100, "checkpoint": {"dir": "c", "every": 50}})
    screened = screen(given, enumerate_space(given, limits=_FEW, ranks=(8, 16)))
    run = screened.in_run(given)
    for index in range(0, len(screened), max(len(screened) // 5, 1)):
        nodes = given.job.cluster.pool_nodes(screened.options(index).ranks)
        time_s, energy_j = float(screened.step_time_s[index]), float(screened.energy_j[index])
        step = run_step(given, nodes, time_s, energy_j)
        assert step is not None
        assert run.step_time_s[index] == pytest.approx(step.time_s)
        assert run.energy_j[index] == pytest.approx(step.energy_j)
    assert interruptions(setting(workload="forward"), (1.0,)) is None
    assert math.isfinite(float(run.step_time_s.max()))

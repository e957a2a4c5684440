"""How many nodes a run needs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import wattree
from tests.search.jobs import FEWEST
from wattree.cli.bill import AskedOfRun
from wattree.cli.main import run
from wattree.cli.plan_sizing import nodes_asked, of_length
from wattree.errors import JobError
from wattree.job import Data, Job
from wattree.search import Limits, sizing
from wattree.search.plan import meets_by_estimate
from wattree.search.sizing import SizedCluster, Sizing, _halved, smallest_cluster
from wattree.trace import RunBill

#: What is asked holds for any part of the space.
pytestmark = pytest.mark.usefixtures("small_space")


def job(**changes: object) -> Job:
    """Return a run of a hundred steps that fits on one node."""
    return wattree.job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 128},
            "cluster": {"node": "dgx-a100"},
            "training": {"steps": 100},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def one() -> SizedCluster:
    """Return what one node takes."""
    return smallest_cluster(job(), [1], limits=FEWEST).tried[0]


@given(st.integers(1, 200), st.integers(0, 220))
@settings(max_examples=50)
def test_halving_finds_the_first_that_meets_with_few_tries(count: int, first: int) -> None:
    """Each try is a whole search: there must be few."""
    tried: list[int] = []

    def meets(number: int) -> bool:
        tried.append(number)
        return number >= first

    _halved(range(1, count + 1), meets)

    met = [number for number in tried if number >= first]
    assert (min(met) if met else None) == (max(first, 1) if first <= count else None)
    assert len(tried) == len(set(tried)) <= 2 * count.bit_length() + 1


def test_the_smallest_cluster_meets_the_deadline_and_the_one_below_does_not(
    one: SizedCluster,
) -> None:
    """Whoever rents nodes wants no more of them than it takes."""
    assert one.run is not None
    found = smallest_cluster(job(), range(1, 5), deadline_s=one.run.time_s / 1.5)

    assert found.smallest is not None
    assert found.smallest.run is not None
    assert found.smallest.run.time_s <= one.run.time_s / 1.5
    below = [each for each in found.tried if each.nodes < found.smallest.nodes]
    assert below
    assert all(each.misses == ("past the deadline",) for each in below)
    assert all(a.nodes < b.nodes for a, b in pairwise(found.tried))


def test_a_smaller_number_that_suits_the_batch_is_found(
    one: SizedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is not monotone in nodes: five nodes may be faster than six."""
    assert one.run is not None
    bill = one.run
    took_s = {1: 80, 2: 40, 3: 35, 4: 21, 5: 19, 6: 22, 7: 15, 8: 10}

    def tried(job: Job, *_: object) -> SizedCluster:
        nodes = job.cluster.nodes
        late = ("past the deadline",) if took_s[nodes] > 20 else ()
        run = replace(bill, time_s=took_s[nodes])
        return SizedCluster(nodes=nodes, plan=one.plan, run=run, misses=late)

    estimated = []

    def meets(job: Job, **_: object) -> bool:
        estimated.append(job.cluster.nodes)
        return took_s[job.cluster.nodes] <= 20

    monkeypatch.setattr("wattree.search.sizing._tried", tried)
    monkeypatch.setattr("wattree.search.sizing.meets_by_estimate", meets)
    begun: list[int] = []
    found = smallest_cluster(job(), range(1, 9), deadline_s=20, begins=begun.append)

    assert found.smallest is not None
    assert found.smallest.nodes == 5
    assert begun == [1, 2, 4, 8, 6, 7, 5]
    assert estimated == [3, 5]
    assert found.ruled_out == (3,)


def test_what_was_not_tried_is_said_with_its_reason(
    one: SizedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that was only estimated is not one that was passed over."""
    from wattree.report.sizing_text import show_sizing

    assert one.run is not None
    assert one.run.cost_usd is not None
    nine = replace(one, nodes=9)
    ten = replace(one, nodes=10, run=replace(one.run, cost_usd=0.9 * one.run.cost_usd))
    found = Sizing(tried=(one, nine, ten), smallest=nine, ruled_out=(3, 4, 5, 7), skipped=(2, 6, 8))
    show_sizing(found, job(), Console(width=200))

    said = capsys.readouterr().out
    assert "Ruled out: 3 to 5, 7: by estimates, no strategy fits and meets every limit." in said
    assert "Not tried: 2, 6, 8." in said
    assert "rent of dgx-a100: $" in said
    assert "costs 10 % less" in said  # of the largest alone
    assert said.count(" less") == 1


def test_an_estimate_tells_what_may_meet(one: SizedCluster) -> None:
    """It is of the strategy that would be tried, and so near its time."""
    run = one.run
    assert run is not None
    assert meets_by_estimate(job(), most={"time": 1.1 * run.time_s})
    assert not meets_by_estimate(job(), most={"time": 0.9 * run.time_s})
    assert not meets_by_estimate(job(), most={"cost": 0.5 * (run.cost_usd or 0.0)})
    assert not meets_by_estimate(job(model="llama-3.1-405b"), most={})


def test_a_budget_below_every_cost_is_said_to_be_missed() -> None:
    """Nodes beyond the fastest need only cost more."""
    found = smallest_cluster(job(), range(1, 3), budget_usd=1e-6)

    assert found.smallest is None
    assert found.tried[0].misses == ("over the budget",)


@pytest.mark.parametrize("name", ["energy_limit_j", "carbon_limit_gco2e"])
def test_energy_and_carbon_are_limited_as_money_is(name: str, one: SizedCluster) -> None:
    """More nodes take more of both."""
    figure = {"energy_limit_j": "energy_j", "carbon_limit_gco2e": "carbon_gco2e"}[name]
    most = getattr(one.run, figure)

    met = smallest_cluster(job(), [1, 2], **{name: 1.001 * most}).smallest
    lean = smallest_cluster(job(), [1], **{name: 0.5 * most})

    assert met is not None
    assert met.nodes == 1
    assert met.probability == pytest.approx(0.5, abs=0.05)
    assert lean.smallest is None
    assert lean.tried[0].misses in {("over the energy limit",), ("over the carbon limit",)}


def test_another_strategy_may_meet_what_the_fastest_misses() -> None:
    """Before a number of nodes is left: here one with half of the devices."""
    lean = job(data={"sequence_length": 256, "global_batch": 12})
    fastest = smallest_cluster(lean, [1]).tried[0]
    assert fastest.best is not None
    assert fastest.run is not None

    met = smallest_cluster(lean, [1], energy_limit_j=0.98 * fastest.run.energy_j).smallest

    assert met is not None
    assert met.best is not None
    assert met.best.options.ranks < fastest.best.options.ranks


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_a_number_of_nodes_has_none_of_them_idle(objective: str) -> None:
    """Idle nodes are rented too, and fewer nodes are a number of their own."""
    small = job(data={"sequence_length": 512, "global_batch": 48})
    least = replace(FEWEST, micro_batches=(1,), shardings=("zero1",))
    two, four = (
        smallest_cluster(small, [n], objective=objective, budget_usd=1e-6, limits=least).tried[0]
        for n in (2, 4)
    )
    assert two.run is not None
    assert two.run.cost_usd is not None

    between = smallest_cluster(
        small, [4], objective=objective, budget_usd=1.01 * two.run.cost_usd, limits=least
    ).tried[0]

    assert between.misses == four.misses == ("over the budget",)
    assert between.best is not None
    assert between.best.options.ranks == 4 * 8


def test_a_model_that_needs_more_devices_gets_them() -> None:
    """Without limits the question is what fits."""
    large = job(
        model="llama-3.1-70b",
        data={"sequence_length": 4096, "global_batch": 8},  # few ways to split it: few strategies
        software="pytorch",
        traits={"fused_optimizer": True},
    )
    found = smallest_cluster(
        large, range(1, 3), limits=Limits(recomputations=("full",), axes={"cp": (1,)})
    )

    assert found.smallest is not None
    assert found.smallest.nodes > 1
    assert found.tried[0].misses == ("no strategy fits",)


def test_nodes_that_no_network_joins_are_a_row_like_others() -> None:
    """The answer for one node stands, and says why more are none."""
    large = job(model="phi-4", cluster={"node": "2x-rtx-a6000"}, software="hf-trainer")
    found = smallest_cluster(large, range(1, 3))

    assert found.tried[0].misses == ("no strategy fits",)
    assert "nvlink-only joins no nodes" in found.tried[1].misses[0]


def test_a_budget_without_a_price_is_refused() -> None:
    """An unknown cost cannot be compared."""
    priced = job()
    node = replace(priced.cluster.node, price_usd_per_s=None)
    pool = replace(priced.cluster.pool, node=node)
    free = replace(priced, cluster=replace(priced.cluster, pools=(pool,)))

    with pytest.raises(JobError, match="no price"):
        smallest_cluster(free, [1], budget_usd=100.0)


@pytest.mark.parametrize("text", ["", "0..4", "5..2", "1-4", "a", "1..", "1..999999", "1,,2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    """A message shows what a range looks like."""
    with pytest.raises(JobError, match=r"such as 1\.\.64"):
        nodes_asked(text)


@pytest.mark.parametrize("asked", [{"tokens": 1e9}, {"samples": 1e9 / 1024}])
def test_tokens_become_steps_that_see_all_of_them(asked: dict[str, float]) -> None:
    """A run ends with a whole step."""
    found = of_length(job(), AskedOfRun(**asked))

    seen = found.training.steps * 1024 * 128
    assert seen >= 1e9 > seen - 1024 * 128

    images = replace(job(), data=Data(global_batch=128, has_sequence=False))
    with pytest.raises(JobError, match="so no tokens; give --samples"):
        of_length(images, AskedOfRun(tokens=1e9))


def test_the_command_writes_the_job_of_the_smallest_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found can be simulated as it is."""
    text = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"node": "dgx-a100"},
    }
    path, best = tmp_path / "job.yaml", tmp_path / "best.yaml"
    path.write_text(json.dumps(text))
    words = ["--nodes", "1..2", "--tokens", "10B", "--out", str(best), "--json", "-"]
    code = run(["plan", str(path), *words])
    found = json.loads(capsys.readouterr().out)

    written = wattree.load_job(best)
    step = wattree.simulate(written).result
    assert code == 0
    assert written.cluster.nodes == found["smallest"]["nodes"]
    assert step.step_time_s == pytest.approx(found["smallest"]["best"]["step_time_s"])
    assert run(["plan", str(path), "--nodes", "1..2", "--deadline", "1 s", "--tokens", "1T"]) == 3


def test_a_report_is_written_and_a_run_of_one_step_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a length there is no run to tell of; the plan's report is that of the answer."""
    path, page = tmp_path / "job.yaml", tmp_path / "r.html"
    data = {"sequence_length": 1024, "global_batch": 64}
    path.write_text(json.dumps({"model": "gpt2", "data": data, "cluster": {"node": "dgx-a100"}}))

    assert run(["plan", str(path), "--nodes", "1..2", "--report", str(page)]) == 0

    said = capsys.readouterr().out
    assert "The run" not in said
    assert "Tried, for one step" in said
    assert "tokens/s" in said
    assert "<html" in page.read_text(encoding="utf-8")


def test_the_strategy_of_the_file_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that was simulated on other nodes has degrees that fit no more."""
    path = tmp_path / "job.yaml"
    job_of = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"node": "dgx-a100", "nodes": 1},
        "strategy": {"tp": 8, "pp": 4},
    }
    path.write_text(json.dumps(job_of))

    assert run(["plan", str(path)]) == 0
    assert run(["simulate", str(path)]) == 2
    assert "multiply to 32 ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("8", [8]), ("2..4", [2, 3, 4]), ("8, 1,2", [1, 2, 8]), ("1,3..4", [1, 3, 4])],
)
def test_numbers_of_nodes_are_ranges_and_lists(text: str, numbers: list[int]) -> None:
    """As `schedule` takes them."""
    assert nodes_asked(text) == numbers


def test_limits_are_met_with_a_probability(
    one: SizedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deadline at the expected time is a coin toss; every number of nodes is accounted for."""
    from wattree.report.sizing_text import show_sizing

    bill = one.run
    assert bill is not None
    assert one.probability is None
    low, high = bill.interval["time_s"]
    assert bill.probability_within("time_s", bill.time_s) == pytest.approx(0.5)
    assert bill.probability_within("time_s", high) == pytest.approx(0.9)
    assert bill.probability_within("time_s", low) == pytest.approx(0.1)
    assert high * low > bill.time_s**2 * 1.01  # the interval reaches farther up
    found = smallest_cluster(job(), [1, 2, 64], deadline_s=bill.time_s, budget_usd=1e-6)
    show_sizing(found, job(), Console(width=200))
    said = capsys.readouterr().out

    assert found.tried[0].probability == pytest.approx(0.01)
    numbers = [each.nodes for each in found.tried] + [*found.ruled_out, *found.skipped]
    assert sorted(numbers) == [1, 2, 64]
    assert "probability" in said
    assert "< 1 %" in said
    show_sizing(smallest_cluster(job(), [1], deadline_s=bill.time_s), job(), Console(width=200))
    assert "met with 50 % probability" in capsys.readouterr().out


def test_a_limit_without_an_interval_leaves_the_probability_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the probability would be that of the deadline alone."""
    whole = sizing.run_of

    def without(*args: Any) -> RunBill:
        run = whole(*args)
        return replace(run, interval={**run.interval, "cost_usd": (0.0, 0.0)})

    monkeypatch.setattr(sizing, "run_of", without)
    found = smallest_cluster(job(), [1], deadline_s=1e9, budget_usd=1e9)
    assert found.tried[0].probability is None

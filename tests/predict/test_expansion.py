"""Expanded memory that devices read and write as they work: time, room and traffic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.jobs import job as small_job
from tests.search.jobs import setting
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost.expanded import bandwidth_factor
from wattree.errors import HardwareError, JobError, StrategyError
from wattree.hardware import load_node
from wattree.hardware.node import MemoryTier
from wattree.job import job_from_mapping
from wattree.predict import Setting, predicted, simulate
from wattree.report.pools_text import tier_shortages
from wattree.search.fixes import memory_fixes
from wattree.search.limits import Limits
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import Offload, StrategyOptions, Traffic

#: Of one A100 of 80 GB. [B/s]
OWN = 2039e9


def expanded(job: Setting, **changes: Any) -> Setting:
    """Return a setting whose devices reach a second tier."""
    figures = {
        "memory_bytes": 1e12,
        "bandwidth_bytes_per_s": 500e9,
        "latency_s": 0.0,
        "pooled": False,
        "access": "serial",
        "per_device": True,
    }
    cluster = job.job.cluster
    node = replace(cluster.node, cxl=MemoryTier(**(figures | changes)))
    return replace(job, job=replace(job.job, cluster=replace(cluster, node=node)))


def placing(offload: Offload, **degrees: Any) -> StrategyOptions:
    """Return a tensor-parallel strategy that puts something elsewhere."""
    given = {"dp": 1, "tp": 8, "sequence_parallel": True} | degrees
    return StrategyOptions(traffic=Traffic(offload=offload), **given)


OVERFLOW = Offload(overflow="cxl")
PLACEMENTS = {
    "overflow": OVERFLOW,
    "optimizer": Offload(optimizer="cxl"),
    "parameters": Offload(parameters="cxl", optimizer="cxl"),
    "activations": Offload(activations="cxl", layers=80),
    "half of the activations": Offload(activations="cxl", layers=40),
    "all": Offload(optimizer="cxl", parameters="cxl", activations="cxl", layers=80, overflow="cxl"),
}


@pytest.fixture(scope="module")
def large() -> Setting:
    """A model of which eight devices hold about half."""
    return setting(model="llama-3.1-70b", batch=16, sequence=2048)


# ---------------------------------------------------------------- formulas


def test_the_two_forms_at_a_known_point() -> None:
    """0.7 at 500 GB/s and 0.3 at 2,000 GB/s: 645 GB/s one after the other, 714 at once."""
    share = np.array([0.7])

    serial, concurrent = (
        2000 / bandwidth_factor(share, 4.0, concurrent=at_once)[0] for at_once in (False, True)
    )

    assert serial == pytest.approx(645.2, abs=0.1)
    assert concurrent == pytest.approx(714.3, abs=0.1)


@given(share=st.floats(0, 1), ratio=st.floats(0.1, 100))
def test_streaming_at_once_is_between_half_and_all_of_one_after_another(
    share: float, ratio: float
) -> None:
    """Two memories at once take as long as the slower, and so at least half of the sum."""
    own = np.array([share])

    serial = bandwidth_factor(own, ratio, concurrent=False)[0]
    concurrent = bandwidth_factor(own, ratio, concurrent=True)[0]

    assert serial / 2 * (1 - 1e-12) <= concurrent <= serial


# ---------------------------------------------------------------- the closed form and the play


@pytest.mark.parametrize("access", ["serial", "concurrent"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_closed_form_and_play_agree(large: Setting, name: str, access: str) -> None:
    """Time, memory of the device, and whether everything has room."""
    job = expanded(large, access=access, latency_s=1e-6)
    options = placing(PLACEMENTS[name])

    executed = predicted(job, options, detail=False)
    screened = estimate(job, options, Degrees.of([options], 16))

    assert screened.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.005)
    assert screened.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.01)
    assert bool(screened.tier_fits[0]) == all(tier.fits for tier in executed.result.tiers)
    assert executed.result.energy_j.total == pytest.approx(screened.energy_j[0], rel=0.05)


@pytest.mark.parametrize("pp", [2, 4])
def test_they_agree_in_pipelines(large: Setting, pp: int) -> None:
    """The fullest stage says what overflows of all."""
    job = expanded(large)
    options = placing(OVERFLOW, tp=8 // pp, pp=pp)

    executed = predicted(job, options, detail=False).result
    screened = estimate(job, options, Degrees.of([options], 16))

    assert screened.spilled[0] > 0.4
    assert screened.step_time_s[0] == pytest.approx(executed.step_time_s, rel=0.02)


def test_every_strategy_of_a_space_is_estimated_as_alone(large: Setting) -> None:
    """Arrays of strategies that overflow by different shares mix nothing up.

    Axes of degree 1 may leave steps in programs made for more, with or without a second tier.
    """
    job = expanded(large, memory_bytes=150e9)
    space = enumerate_space(job, limits=Limits(shardings=("none", "zero3"), schedules=("1f1b",)))
    screened = screen(job, space)
    chosen = np.random.default_rng(7).choice(len(screened), 12, replace=False)

    assert 0 < screened.fits(Constraints()).sum() < len(screened)
    for index in chosen:
        options = screened.options(int(index))
        alone = estimate(job, options, Degrees.of([options], 16))
        assert alone.step_time_s[0] == pytest.approx(screened.step_time_s[index], rel=0.004)
        assert alone.tier_fits[0] == screened.tier_fits[index]


# ---------------------------------------------------------------- limits


def test_a_tier_that_nothing_needs_changes_nothing() -> None:
    """Where all has room on the devices, it is as if there were no second tier."""
    job = setting(model="llama-3.2-1b", batch=16)
    plain = placing(Offload(), tp=2, dp=4)

    without = predicted(job, plain, detail=False).result
    beside = predicted(expanded(job), placing(OVERFLOW, tp=2, dp=4), detail=False).result

    assert beside.step_time_s == without.step_time_s
    assert beside.memory == without.memory
    assert [tier.traffic_bytes for tier in beside.tiers] == [0.0]
    assert "nothing overflows: all has room on the devices" in beside.assumed


@pytest.mark.parametrize("name", ["overflow", "optimizer", "parameters"])
def test_a_tier_as_fast_as_the_device_is_more_of_the_same(large: Setting, name: str) -> None:
    """Serial access to a tier of the device's own bandwidth takes no longer than to the device."""
    job = expanded(large, bandwidth_bytes_per_s=OWN)
    there = predicted(job, placing(PLACEMENTS[name]), detail=False).result
    here = predicted(large, placing(Offload()), detail=False).result

    assert there.memory.fits
    assert not here.memory.fits
    assert there.step_time_s == pytest.approx(here.step_time_s, rel=1e-9)


@settings(max_examples=8)
@given(rates=st.lists(st.floats(2e10, 3e12), min_size=2, max_size=2, unique=True))
def test_more_bandwidth_is_never_slower(large: Setting, rates: list[float]) -> None:
    """Nor is streaming at once slower than one access after another."""
    options = placing(OVERFLOW)
    degrees = Degrees.of([options], 16)
    low, high = sorted(rates)

    def time_s(rate: float, access: str) -> float:
        job = expanded(large, bandwidth_bytes_per_s=rate, access=access)
        return float(estimate(job, options, degrees).step_time_s[0])

    assert time_s(high, "serial") <= time_s(low, "serial")
    assert time_s(low, "concurrent") <= time_s(low, "serial")


def test_device_and_tier_together_hold_what_was_there(large: Setting) -> None:
    """Nothing is lost on the way: the parts add up to the footprint on an endless device."""
    whole = predicted(large, placing(Offload()), detail=False).result.memory

    for name in ("overflow", "optimizer", "parameters"):
        found = predicted(expanded(large), placing(PLACEMENTS[name]), detail=False).result
        (tier,) = found.tiers
        together = found.memory.peak_bytes + tier.rank_bytes
        assert together == pytest.approx(whole.peak_bytes, rel=0.02), name  # fragmentation moves
        assert sum(found.memory.by_category.values()) == pytest.approx(found.memory.peak_bytes)
        assert tier.traffic_bytes > 0


def test_the_state_of_the_optimizer_is_read_and_written_once_a_step(large: Setting) -> None:
    """Traffic of a placed class is what its update moves: moments and master weights, both ways."""
    found = predicted(expanded(large), placing(PLACEMENTS["optimizer"]), detail=False).result
    (tier,) = found.tiers

    assert tier.traffic_bytes == pytest.approx(8 * 2 * tier.rank_bytes, rel=1e-9)


# ---------------------------------------------------------------- room


@pytest.mark.parametrize(
    ("changes", "fits", "whose"),
    [
        ({"memory_bytes": 100e9}, True, "device"),
        ({"memory_bytes": 50e9}, False, "device"),
        ({"memory_bytes": 800e9, "per_device": False}, True, "node"),
        ({"memory_bytes": 400e9, "per_device": False}, False, "node"),
        ({"memory_bytes": 1600e9, "pooled": True}, True, "pool"),
        ({"memory_bytes": 800e9, "pooled": True}, False, "pool"),
    ],
)
def test_room_is_that_of_a_device_a_node_or_a_pool(
    changes: dict[str, Any],
    fits: bool,  # noqa: FBT001 - a case of the table
    whose: str,
) -> None:
    """Two replicas of a model of which half overflows, on two nodes."""
    two = setting(model="llama-3.1-70b", batch=16, sequence=2048, nodes=2)
    job = expanded(two, **changes)
    options = placing(OVERFLOW, dp=2)

    found = predicted(job, options, detail=False).result
    screened = estimate(job, options, Degrees.of([options], 16))

    assert (found.tiers[0].capacity_of, found.memory.fits) == (whose, fits)
    assert (not tier_shortages(found.tiers), bool(screened.tier_fits[0])) == (fits, fits)


def test_devices_share_the_link_of_a_node_and_all_of_them_a_pools() -> None:
    """The same bandwidth for a device, however it is described."""
    two = setting(model="llama-3.1-70b", batch=16, sequence=2048, nodes=2)
    options = placing(OVERFLOW, dp=2)
    each = two.job.cluster.node.device.host_link_bytes_per_s / 2
    same = (
        {"bandwidth_bytes_per_s": each},
        {"bandwidth_bytes_per_s": 8 * each, "per_device": False},
        {"pooled": True, "pool_bytes_per_s": 16 * each, "memory_bytes": 1e13},
    )
    times = {
        predicted(expanded(two, **changes), options, detail=False).result.step_time_s
        for changes in same
    }
    through_host = expanded(two, bandwidth_bytes_per_s=1e14, per_device=False)

    assert len(times) == 1
    # A link of the host bounds what goes through it, however fast the memory behind.
    bound = expanded(two, bandwidth_bytes_per_s=2 * each)
    assert (
        predicted(through_host, options, detail=False).result.step_time_s
        == predicted(bound, options, detail=False).result.step_time_s
    )


# ---------------------------------------------------------------- spaces


def test_spaces_try_what_makes_sense(large: Setting) -> None:
    """All on the devices where there is nothing else; otherwise what may overflow."""
    limits = Limits(shardings=("none",), recomputations=("none",), micro_batches=(1,))

    def placed(job: Setting, **changes: Any) -> set[Offload]:
        space = enumerate_space(job, limits=replace(limits, **changes))
        return {options.traffic.offload for options in space}

    assert placed(large) == {Offload()}
    assert placed(expanded(large)) == {OVERFLOW, Offload(optimizer="cxl", overflow="cxl")}
    assert placed(expanded(large), placements=("device", "activations")) == {
        Offload(),
        Offload(activations="cxl", layers=80),
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [("optimiser", "did you mean 'optimizer'?"), ("tables", "joined by '+'"), ("", "joined by")],
)
def test_unknown_placements_are_refused(large: Setting, name: str, told: str) -> None:
    """With what would be right."""
    with pytest.raises(StrategyError, match=told.replace("+", r"\+").replace("?", r"\?")):
        enumerate_space(expanded(large), limits=Limits(placements=(name,)))


def test_placements_need_a_tier(large: Setting) -> None:
    """Which a search says at once."""
    with pytest.raises(StrategyError, match="devices of this cluster read no expanded memory"):
        enumerate_space(large, limits=Limits(placements=("overflow",)))


# ---------------------------------------------------------------- files


def test_overflow_needs_memory_that_devices_reach(large: Setting) -> None:
    """Copies have to know what they copy."""
    with pytest.raises(StrategyError, match="access: serial"):
        predicted(expanded(large, access="copy"), placing(OVERFLOW))


def test_files_describe_it(tmp_path: Path) -> None:
    """All keys of `cxl`, and each fault with its key."""
    source = Path("src/wattree/hardware/catalog/nodes/dgx-a100.yaml").read_text(encoding="utf-8")
    cited = 'source: "estimate: an example"'
    tier = f"""
cxl:
  access: concurrent
  attached: device
  memory: {{value: "1 TB", {cited}}}
  bandwidth: {{value: "500 GB/s", {cited}}}
  latency: {{value: "2 us", {cited}}}
  pooled: {{value: true, {cited}}}
  pool_bandwidth: {{value: "100 TB/s", {cited}}}
"""
    path = tmp_path / "node.yaml"
    path.write_text(source + tier, encoding="utf-8")

    assert load_node(path).cxl == MemoryTier(
        memory_bytes=1e12,
        bandwidth_bytes_per_s=500e9,
        latency_s=2e-6,
        pooled=True,
        access="concurrent",
        per_device=True,
        pool_bytes_per_s=1e14,
    )
    for right, wrong, told in (
        ("concurrent", "concurent", "cxl.access: found 'concurent'.*did you mean 'concurrent'"),
        ("attached: device", "attached: rack", "cxl.attached: found 'rack', expected one of"),
        ("value: true", "value: false", "cxl.pool_bandwidth: found without a pool"),
    ):
        path.write_text(source + tier.replace(right, wrong), encoding="utf-8")
        with pytest.raises(JobError, match=told):
            load_node(path)


def test_what_contradicts_itself_is_no_tier() -> None:
    """Building one by hand is an error."""
    figures = {"memory_bytes": 1e12, "bandwidth_bytes_per_s": 1e11, "latency_s": 0.0}
    with pytest.raises(HardwareError, match="expected one of copy, serial, concurrent"):
        MemoryTier(**figures, pooled=False, access="both")
    with pytest.raises(HardwareError, match="pool_bandwidth"):
        MemoryTier(**figures, pooled=False, pool_bytes_per_s=1e12)


def test_jobs_say_it_and_results_tell_it() -> None:
    """From the words of a job's file to the JSON of its result."""
    given = {
        "model": "llama-3.2-1b",
        "data": {"sequence_length": 512, "global_batch": 8},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"preset": "ddp", "offload": {"overflow": "cxl", "optimizer": "cxl"}},
    }
    job = job_from_mapping(given)
    reaching = expanded(setting(), memory_bytes=1e12).job.cluster

    found = simulate(replace(job, cluster=reaching)).result.as_json()

    assert found["strategy"]["offload"] == {"optimizer": "cxl", "overflow": "cxl"}
    assert [(tier["name"], tier["traffic_bytes"] > 0) for tier in found["tiers"]] == [("cxl", True)]
    assert not simulate(job_from_mapping(given | {"strategy": "ddp"})).result.tiers
    assert small_job().cluster.node.cxl is None


def test_what_does_not_fit_may_overflow(large: Setting) -> None:
    """Where devices reach expanded memory, that is among the changes that make a job fit."""
    fixes = {fix.change: fix for fix in memory_fixes(expanded(large), placing(Offload()), most=8)}
    tight = memory_fixes(expanded(large, memory_bytes=1e9), placing(Offload()), most=8)

    found = fixes["overflow to expanded memory"]
    assert found.peak_bytes == pytest.approx(large.job.cluster.node.device.memory_bytes)
    assert not any(fix.change == "overflow to expanded memory" for fix in tight)


def test_copies_that_nobody_makes_are_warned_of(large: Setting) -> None:
    """A prefetch is of copies."""
    offload = Offload(activations="cxl", layers=80, prefetch=2)

    def told(access: str) -> tuple[str, ...]:
        job = replace(expanded(large, access=access).job, strategy=placing(offload))
        return simulate(job).warnings

    assert any("activations.prefetch: 2 has no effect" in line for line in told("serial"))
    assert not any("prefetch" in line for line in told("copy"))

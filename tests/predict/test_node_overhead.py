"""Overhead of nodes by part: by hand, against a node without parts, and in every sum."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattree.accounts.energy_ledger import switch_w
from wattree.accounts.energy_use import standing_w
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.hardware import load_node, node_names
from wattree.job import Job, job_from_mapping
from wattree.predict import Prediction, predicted, setting_of, simulate
from wattree.report.energy_text import unsplit_hosts
from wattree.strategy import StrategyOptions

LOADER = {"workers": 2, "decode": "40 ms", "sample_bytes": "100 kB", "tensor_bytes": "1 MB"}
PARTS = ("host_processors", "host_memory", "host_adapters", "host_rest")


def job(node: str = "dgx-a100", **changes: Any) -> Job:
    """Return a small job that loads data."""
    return job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 1024, "global_batch": 32, "loader": LOADER},
            "cluster": {"node": node, "nodes": 2},
            "strategy": {"preset": "ddp"},
            **changes,
        }
    )


def _hosted(changed: Job, **host: Any) -> Job:
    """Return a job whose nodes' host is changed."""
    cluster = changed.cluster
    node = replace(cluster.node, host=replace(cluster.node.host, **host))
    return replace(changed, cluster=replace(cluster, node=node))


def on(changed: Job, **host: Any) -> Prediction:
    """Return its prediction."""
    made = _hosted(changed, **host)
    assert not isinstance(made.strategy, str)
    return predicted(setting_of(made, load_calibration()), made.strategy)


@cache
def plain() -> Prediction:
    """Return the job on nodes whose host has no parts."""
    return on(job(), parts={}, fans=0.0, conversion=1.0)


@pytest.mark.parametrize("name", [n for n in node_names() if load_node(n).host.parts])
def test_parts_of_a_catalogue_node_add_up_to_its_host(name: str) -> None:
    """None of them is below nothing, at rest and while training, and each has its source."""
    node = load_node(name)
    host = node.host
    parts = [*host.parts.values(), host.rest]

    assert sum(part.busy_w for part in parts) == pytest.approx(host.busy_w, rel=1e-12)
    assert sum(part.idle_w for part in parts) == pytest.approx(host.idle_w, rel=1e-12)
    assert all(0 <= part.idle_w <= part.busy_w for part in parts)
    assert all(node.sources[f"host.parts.{part}"] for part in host.parts)


def test_the_parts_are_the_host_as_before() -> None:
    """The ledger moves what hosts draw to their parts, and nothing else changes."""
    whole = plain().result.energy_j
    split = on(job(), fans=0.0, conversion=1.0).result.energy_j
    host_j = whole.by_component["host_idle"] + whole.by_component["host_training"]

    assert sum(split.by_component[name] for name in PARTS) == pytest.approx(host_j, rel=1e-12)
    assert split.total == pytest.approx(whole.total, rel=1e-12)
    rest = set(whole.by_component) - {"host_idle", "host_training"}
    assert {n: split.by_component[n] for n in rest} == pytest.approx(
        {n: whole.by_component[n] for n in rest}, rel=1e-12
    )


def test_a_node_without_parts_says_so_and_invents_none() -> None:
    """By name, in the result, its evidence and in words."""
    whole, split = plain().result, on(job()).result

    assert whole.energy_j.unsplit_hosts == ("dgx-a100",)
    assert not set(PARTS) & set(whole.energy_j.by_component)
    assert "dgx-a100" in unsplit_hosts(whole.energy_j)
    assert "not distinguished" in whole.provenance["energy_j.by_component"].note
    assert split.energy_j.unsplit_hosts == ()
    assert unsplit_hosts(split.energy_j) == ""
    assert "processors, memory as rated" in split.provenance["energy_j.by_component"].note


@settings(max_examples=20)
@given(fans=st.floats(0.0, 1.0), conversion=st.floats(1.0, 1.5))
def test_fans_and_losses_follow_all_that_the_node_draws(fans: float, conversion: float) -> None:
    """By hand: a share of devices and host, and of both with the fans; switches are elsewhere."""
    energy = on(job(), fans=fans, conversion=conversion).result.energy_j
    found = dict(energy.by_component)
    whole = plain().result.energy_j
    served_j = sum(
        whole.by_component[name]
        for name in whole.by_component
        if name not in {"switch", "facility"}
    )

    assert found.get("fans", 0.0) == pytest.approx(fans * served_j, rel=1e-9)
    lost_j = (conversion - 1.0) * (1.0 + fans) * served_j
    assert found.get("conversion", 0.0) == pytest.approx(lost_j, rel=1e-9, abs=1e-9)
    assert sum(found.values()) == pytest.approx(energy.total, rel=1e-9)
    assert sum(energy.by_stage.values()) == pytest.approx(energy.total, rel=1e-9)
    assert sum(d.energy_j for d in energy.by_device) == pytest.approx(energy.total, rel=1e-9)
    assert energy.static + energy.dynamic == pytest.approx(energy.total, rel=1e-9)


def test_few_nodes_that_cables_join_have_no_switch() -> None:
    """Two or three DGX Spark are joined by cables; a fourth takes a switch, and its power."""
    sparks = [
        job("dgx-spark", cluster={"node": "dgx-spark", "nodes": nodes}).cluster for nodes in (3, 4)
    ]
    few_w, more_w = (sum(standing_w(each, [float(each.nodes)])) for each in sparks)

    assert more_w / 4 - few_w / 3 == pytest.approx(sparks[0].fabric.switch_w_per_nic)


@pytest.mark.parametrize(
    ("rate", "share"), [(400, 1.0), (300, 1.0), (200, 0.5), (130, 0.5), (100, 0.25), (25, 0.25)]
)
def test_slower_adapters_share_the_ports_of_switches(rate: int, share: float) -> None:
    """A port of four lanes is split in two or in four: 24 of 200 Gbit/s take 12 ports of 400."""
    cluster = job("8x-gaudi3", cluster={"node": "8x-gaudi3", "nodes": 16}).cluster
    pool = cluster.pools[0]
    node = replace(pool.node, nic_bandwidth_bytes_per_s=rate * 1e9 / 8)

    assert switch_w(cluster, replace(pool, node=node)) == pytest.approx(24 * 116.0 * share)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_power_over_time_has_what_follows_it(name: str) -> None:
    """Its integral is the energy, component by component."""
    found = on(job(name), fans=0.1, conversion=1.04).result
    assert found.power is not None
    pue = job(name).cluster.site.pue
    for component, watts in found.power.by_component.items():
        held_j = sum(watts) * found.power.width_s
        assert held_j == pytest.approx(found.energy_j.by_component[component], rel=1e-9)
    whole_j = sum(found.power.total_w) * found.power.width_s * pue
    assert whole_j == pytest.approx(found.energy_j.total, rel=1e-9)


def test_pools_have_their_own_fans_and_losses() -> None:
    """A node with both and one with neither: by pool, by device, and unfolded."""
    mixed = job(
        cluster={
            "pools": [{"node": "dgx-h100"}, {"node": "dgx-1-32gb"}],
            "fabric": "infiniband-ndr-fat-tree",
        },
        data={"sequence_length": 1024, "global_batch": 32},
        precision="fp16",
    )
    found, whole = simulate(mixed).result, simulate(mixed, fold=False).result
    energy = found.energy_j
    assert found.pools

    assert energy.unsplit_hosts == ("dgx-1-32gb",)
    assert {"host_processors", "host_idle", "conversion"} <= set(energy.by_component)
    assert sum(pool.energy_j for pool in found.pools) == pytest.approx(energy.total, rel=1e-9)
    assert energy.by_component == pytest.approx(whole.energy_j.by_component, rel=1e-9)


def test_screening_counts_what_the_play_counts() -> None:
    """Fans and losses in the closed form: of what stands, of work and of loading."""
    screened, executed = zip(*(_both_j(fans) for fans in (0.0, 0.2)), strict=True)

    assert screened[1] == pytest.approx(executed[1], rel=0.03)
    assert screened[1] / screened[0] == pytest.approx(executed[1] / executed[0], rel=1e-3)


def _both_j(fans: float) -> tuple[float, float]:
    """Return the screened and the played energy of a step. [J]"""
    made = _hosted(job(), fans=fans, conversion=1.0 + fans / 4)
    options = made.strategy
    assert isinstance(options, StrategyOptions)
    setting = setting_of(made, load_calibration())
    screened = estimate(setting, options, Degrees.of([options], 32))
    return float(screened.energy_j[0]), predicted(setting, options).result.energy_j.total

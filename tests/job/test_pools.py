"""Clusters of several kinds of nodes in a job file."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.job import Job, job_from_mapping

TWO = [{"node": "dgx-h100", "nodes": 2}, {"node": "dgx-a100"}]
FABRIC = "infiniband-ndr-fat-tree"


def job(section: Any, **keys: Any) -> Job:
    """Return a job on the cluster of `section`."""
    return job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 48},
            "cluster": section,
            **keys,
        }
    )


def cluster(**section: Any) -> Cluster:
    """Return the cluster of such a job."""
    return job(section).cluster


def test_pools_are_numbered_in_their_order() -> None:
    """Devices of the first pool come first."""
    found = cluster(pools=TWO, fabric=FABRIC)

    assert [(pool.node.name, pool.nodes) for pool in found.pools] == [
        ("dgx-h100", 2),
        ("dgx-a100", 1),
    ]
    assert (found.nodes, found.devices, found.is_mixed) == (3, 24, True)
    assert found.pool_devices(20) == (16, 4)
    assert found.pool_nodes(20) == (2, 1)


def test_one_pool_is_a_plain_cluster() -> None:
    """However it is written."""
    plain = cluster(node="dgx-h100", nodes=3, fabric=FABRIC)

    assert cluster(pools=[{"node": "dgx-h100", "nodes": 3}], fabric=FABRIC) == plain
    both = [{"node": "dgx-h100", "nodes": 2}, {"node": "dgx-h100"}]
    assert cluster(pools=both, fabric=FABRIC) == plain


def test_pools_whose_nodes_have_one_fabric_need_not_name_it() -> None:
    """H100 and H200 nodes are on the same."""
    pools = [{"node": "dgx-h100"}, {"node": "dgx-h200"}]

    assert cluster(pools=pools).fabric.name == FABRIC


def test_a_pool_may_have_a_power_limit_of_its_own() -> None:
    """The cluster's holds for the others, and a limit from outside replaces all."""
    pools = [TWO[0], TWO[1] | {"power_limit": "300 W"}]
    found = cluster(pools=pools, fabric=FABRIC, power_limit="500 W")

    assert [found.limit_w(pool) for pool in found.pools] == [500.0, 300.0]
    lower = found.limited(250.0)
    assert [lower.limit_w(pool) for pool in lower.pools] == [250.0, 250.0]


def test_slow_devices_and_links_are_counted_over_all_pools() -> None:
    """Device 20 is the fifth of the third node."""
    found = cluster(
        pools=TWO,
        fabric=FABRIC,
        slowdown={"20": 2},
        slow_links={"3": 4},
        stragglers={"spread": 0.1},
    )

    assert len(found.slowdown) == 24
    assert dict(found.slow_links) == {3: 4.0}


def test_hybrid_sharding_stays_inside_the_smallest_node() -> None:
    """Four of eight devices, where other nodes have four."""
    pools = [{"node": "dgx-h100", "nodes": 2}, {"node": "4x-h100-sxm", "nodes": 2}]

    options = job({"pools": pools, "fabric": FABRIC}, strategy="hsdp").strategy

    assert (getattr(options, "fsdp"), getattr(options, "dp")) == (4, 6)  # noqa: B009


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"pools": TWO, "node": "dgx-h100"}, "cluster.node: found together with pools"),
        ({"pools": TWO, "nodes": 2}, "cluster.nodes: found together with pools"),
        ({"pools": []}, "cluster.pools: found an empty list, expected a list of 1 to 64 pools"),
        ({"pools": TWO * 40}, "found a list of 80 items, expected a list of 1 to 64 pools"),
        ({"pools": 3}, "cluster.pools: found 3, expected a list of mappings with node and nodes"),
        ({"pools": ["dgx-h100"]}, "cluster.pools.0: found 'dgx-h100'"),
        ({"pools": [{}]}, "cluster.pools.0.node: is missing, expected a node of the catalog"),
        ({"pools": [{"node": "dgx-h100", "nods": 2}]}, "did you mean 'nodes'?"),
        ({"pools": [{"node": "dgx-h100", "nodes": 0}]}, "cluster.pools.0.nodes: found 0"),
        ({"pools": [{"node": "dgx-h10"}]}, "cluster.pools.0.node: unknown node 'dgx-h10'"),
        ({"pools": TWO}, "cluster.fabric: is missing, expected the fabric that joins the pools"),
        ({}, "cluster.node: is missing, expected a node of the catalog"),
        (
            {"pools": [TWO[0], {"node": "4x-a6000"}], "fabric": "nvlink-only"},
            "cluster.fabric: nvlink-only joins no nodes",
        ),
        (
            {"pools": [TWO[0], {"node": "8x-gaudi3"}], "fabric": FABRIC},
            "cluster.pools: found dgx-h100 (nvidia gpu) and 8x-gaudi3 (intel npu), which no",
        ),
        (
            {"pools": [TWO[0] | {"power_limit": "50 W"}, TWO[1]], "fabric": FABRIC},
            "cluster.pools.0.power_limit: 50 W is not above what h100-sxm-80gb draws at rest",
        ),
        (
            {"pools": TWO, "fabric": FABRIC, "slowdown": {"24": 2}},
            "cluster.slowdown.24: there is no device 24, expected 0 to 23",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(section: dict[str, Any], expected: str) -> None:
    """With the place, what was found and what was expected."""
    with pytest.raises(JobError) as caught:
        job(section)

    assert expected in str(caught.value)


def test_degrees_that_leave_a_pool_idle_are_refused() -> None:
    """A job file says what all of its devices do."""
    with pytest.raises(JobError, match="multiply to 16 ranks"):
        job({"pools": TWO, "fabric": FABRIC}, strategy={"preset": "ddp", "dp": 16})


@pytest.mark.parametrize(
    ("key", "value"),
    [("place", {"nodes": "0-1"}), ("neighbours", [{"job": "other.yaml", "nodes": "2"}])],
)
def test_pools_and_other_jobs_do_not_go_together(key: str, value: Any) -> None:
    """Places are counted in nodes of one kind."""
    with pytest.raises(
        JobError, match=f"{key}: found together with cluster.pools of different nodes"
    ):
        job({"pools": TWO, "fabric": FABRIC}, **{key: value})


def test_a_limit_above_the_rating_of_a_pool_has_no_effect() -> None:
    """Said with the pool, as of a cluster of one kind."""
    pools = [TWO[0] | {"power_limit": "900 W"}, TWO[1]]

    warnings = job({"pools": pools, "fabric": FABRIC}).warnings

    assert any("pools (2 x dgx-h100).power_limit: 900 W has no effect" in w for w in warnings)


def test_names_of_pools_are_looked_up_whatever_else_is_wrong() -> None:
    """All faults of the section come at once."""
    pools = [{"node": "dgx-h10", "nodes": "x"}, {"node": "dgx-a10"}, "dgx-h100"]

    with pytest.raises(JobError) as caught:
        cluster(pools=pools, fabric="nofab")

    for told in (
        "cluster.pools.0.nodes: found 'x'",
        "cluster.pools.0.node: unknown node 'dgx-h10'",
        "cluster.pools.1.node: unknown node 'dgx-a10'",
        "cluster.fabric: unknown fabric 'nofab'",
    ):
        assert any(line.startswith(told) for line in caught.value.problems)

"""Clusters that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattree.errors import HardwareError
from wattree.hardware import Cluster, load_fabric, load_node, load_site
from wattree.hardware.topologies import network_of


def cluster(**changes: object) -> Cluster:
    """Return two DGX H100, with `changes`."""
    made = Cluster(
        node=load_node("dgx-h100"),
        nodes=2,
        fabric=load_fabric("rail-optimised-ndr"),
        site=load_site("world-average"),
    )
    return replace(made, **changes)


def test_nodes_without_adapters_cannot_reach_each_other() -> None:
    """Otherwise a step takes millions of days."""
    with pytest.raises(HardwareError, match="nodes: 2 nodes of dgx-h100 have no network adapter"):
        cluster(node=replace(load_node("dgx-h100"), nics=0))


def test_a_power_limit_lies_above_what_a_device_draws_at_rest() -> None:
    """No clock is low enough for less."""
    with pytest.raises(
        HardwareError, match="power_limit: 1 W is not above what h100-sxm-80gb draws"
    ):
        cluster(power_limit_w=1.0)


@pytest.mark.parametrize(
    ("node", "nodes", "used", "domains"),
    [
        ("dgx-h100", 2, 8, 2),
        ("gb200-nvl72", 16, 64, 1),
        ("gb200-nvl72", 32, 64, 2),
        ("gb200-nvl72", 64, 64, 4),
        ("gb200-nvl72", 36, 72, 2),
        ("gb200-nvl72", 19, 72, 2),
        ("gb200-nvl72", 20, 72, 2),
        ("gb200-nvl72", 37, 72, 3),
        ("tpu-v5e-host", 40, 160, 2),  # slices of a torus are alike
    ],
)
def test_racks_are_used_alike_or_filled_one_after_another(
    node: str, nodes: int, used: int, domains: int
) -> None:
    """256 devices use 64 of 72 in each rack; 76 leave 4 for the second, not 4 in each of 19."""
    pool = cluster(node=load_node(node), nodes=nodes).pool

    assert (pool.domain_devices, pool.domains) == (used, domains)


def test_named_devices_are_in_the_rack_that_their_number_says() -> None:
    """Whoever names devices 0 to 127 means a rack and 56 of the next."""
    packed = cluster(node=load_node("gb200-nvl72"), nodes=32).packed()

    assert (packed.domain_devices, packed.pool.domains) == (72, 2)


def test_the_last_rack_has_the_nodes_that_are_left() -> None:
    """Its switch joins them alone."""
    links = network_of(cluster(node=load_node("gb200-nvl72"), nodes=19)).links
    joined = [{link.source for link in links if link.target == f"nvswitch{n}"} for n in (0, 1)]

    assert [len(each) for each in joined] == [72, 4]

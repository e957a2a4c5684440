"""Clusters that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattree.errors import HardwareError
from wattree.hardware import Cluster, load_fabric, load_node, load_site


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


def test_domains_use_whole_nodes_and_alike() -> None:
    """256 devices on racks of 72 use 64 of each rack."""
    rack = load_node("gb200-nvl72")

    assert cluster(node=rack, nodes=64).domain_devices == 64
    assert cluster().domain_devices == 8

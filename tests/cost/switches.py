"""Ranks at one switch, and collectives that are alone on it."""

from __future__ import annotations

from wattree.cost.algorithms import Routes, link_loads
from wattree.cost.algorithms.messages import MessageSchedule
from wattree.hardware import Cluster, load_fabric, load_node, load_site

__all__ = ["by_link", "cluster"]


def cluster(node: str, nodes: int, fabric: str = "rail-optimised-ndr") -> Cluster:
    """Return nodes of the catalog."""
    return Cluster(
        node=load_node(node),
        nodes=nodes,
        fabric=load_fabric(fabric),
        site=load_site("world-average"),
    )


def by_link(schedule: MessageSchedule, routes: Routes) -> dict[str, float]:
    """Return the loads by name of link."""
    loads = link_loads(schedule, routes)
    return {
        link.name: float(load)
        for link, load in zip(routes.network.links, loads, strict=True)
        if load
    }

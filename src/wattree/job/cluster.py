"""The `cluster` section: names and files of hardware → a cluster."""

from __future__ import annotations

from pathlib import Path

from wattree.hardware import Cluster, Fabric, Node, Site
from wattree.hardware.load import default_fabric_name, load_fabric, load_node, load_site
from wattree.job.problems import Problems, shown
from wattree.job.schema import ClusterSpec

__all__ = ["cluster_of", "located"]


def cluster_of(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Cluster | None:
    """Return the cluster that `spec` names, or None after noting why there is none."""
    node, fabric = _node_and_fabric(spec, folder=folder, problems=problems)
    site = _site(spec, folder=folder, problems=problems)
    slowdown = _slowdown(spec, problems=problems)
    if node is None or fabric is None or site is None:
        return None
    with problems.at("cluster"):
        return Cluster(
            node=node,
            nodes=spec.nodes,
            fabric=fabric,
            site=site,
            slowdown=slowdown,
            power_limit_w=spec.power_limit,
        )
    return None


def located(name: str, folder: Path) -> str | Path:
    """Return `name`, or, if it is a path, the path as seen from the `folder` of its file."""
    return folder / name if "/" in name or name.endswith((".yaml", ".yml")) else name


def _node_and_fabric(
    spec: ClusterSpec, *, folder: Path, problems: Problems
) -> tuple[Node | None, Fabric | None]:
    node = fabric = None
    with problems.at("cluster.node"):
        node = load_node(located(spec.node, folder))
        if spec.fabric is None:
            fabric = load_fabric(default_fabric_name(located(spec.node, folder)))
    if spec.fabric is not None:
        with problems.at("cluster.fabric"):
            fabric = load_fabric(located(spec.fabric, folder))
    return node, fabric


def _site(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Site | None:
    with problems.at("cluster.site"):
        return load_site(located(spec.site, folder))
    return None


def _slowdown(spec: ClusterSpec, *, problems: Problems) -> dict[int, float]:
    factors: dict[int, float] = {}
    for device, factor in (spec.slowdown or {}).items():
        if device.isascii() and device.isdigit() and len(device) < 10:
            factors[int(device)] = factor
        else:
            problems.add(
                "cluster.slowdown", f"found the key {shown(device)}, expected a device index from 0"
            )
    return factors

"""The `cluster` section: names and files of hardware → a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wattree.hardware import Cluster, Fabric, Node, Site
from wattree.hardware.load import default_fabric_name, load_fabric, load_node, load_site
from wattree.job.problems import Problems, shown
from wattree.job.schema import ClusterSpec

__all__ = ["cluster_of", "located"]


def cluster_of(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Cluster | None:
    """Return the cluster that `spec` names, or None after noting why there is none."""
    node, fabric = _node_and_fabric(spec, folder=folder, problems=problems)
    site = _site(spec, folder=folder, problems=problems)
    slowdown = _by_device(spec.slowdown, "slowdown", problems=problems)
    slow_links = _by_device(spec.slow_links, "slow_links", problems=problems)
    if node is None or fabric is None or site is None:
        return None
    with problems.at("cluster"):
        return Cluster(
            node=node,
            nodes=spec.nodes,
            fabric=fabric,
            site=site,
            slowdown=_with_stragglers(slowdown, spec, spec.nodes * node.devices),
            slow_links=slow_links,
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


def _by_device(
    given: Mapping[str, float] | None, key: str, *, problems: Problems
) -> dict[int, float]:
    factors: dict[int, float] = {}
    for device, factor in (given or {}).items():
        if not (device.isascii() and device.isdigit() and len(device) < 10):
            problems.add(
                f"cluster.{key}", f"found the key {shown(device)}, expected a device index from 0"
            )
        elif int(device) in factors:
            problems.add(f"cluster.{key}", f"device {int(device)} is named twice; name it once")
        else:
            factors[int(device)] = factor
    return factors


def _with_stragglers(
    slowdown: Mapping[int, float], spec: ClusterSpec, devices: int
) -> dict[int, float]:
    """Return the given factors times those drawn for every device, log-normal about 1."""
    if spec.stragglers is None:
        return dict(slowdown)
    draw = np.random.default_rng(spec.stragglers.seed)
    drawn = np.exp(spec.stragglers.spread * draw.standard_normal(devices))
    # A factor given for a device that is not there is for the cluster to refuse.
    beyond = {device: factor for device, factor in slowdown.items() if device >= devices}
    return beyond | {
        device: float(factor) * slowdown.get(device, 1.0) for device, factor in enumerate(drawn)
    }

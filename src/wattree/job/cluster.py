"""The `cluster` section: names and files of hardware → a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from wattree.errors import HardwareError, JobError
from wattree.hardware import Cluster, Fabric, Node, Site, attached
from wattree.hardware.load import default_fabric_name, load_fabric, load_node, load_site
from wattree.job.idle import warn_of_idle_cluster, warn_of_port
from wattree.job.problems import Problems, shown
from wattree.job.schema import ClusterSpec
from wattree.job.values import read_power_limit

__all__ = ["cluster_of", "located", "with_power_limit"]


def cluster_of(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Cluster | None:
    """Return the cluster that `spec` names, or None after noting why there is none."""
    node, fabric = _node_and_fabric(spec, folder=folder, problems=problems)
    site = _site(spec, folder=folder, problems=problems)
    slowdown = _by_device(spec.slowdown, "slowdown", problems=problems)
    slow_links = _by_device(spec.slow_links, "slow_links", problems=problems)
    if node is None or fabric is None or site is None:
        return None
    if spec.nodes > 1:
        warn_of_port(node, fabric, problems=problems)
    cluster = None
    with problems.at("cluster"):
        cluster = Cluster(
            node=attached(node, fabric),
            nodes=spec.nodes,
            fabric=fabric,
            site=site,
            slowdown=_with_stragglers(slowdown, spec, spec.nodes * node.devices),
            slow_links=slow_links,
            power_limit_w=spec.power_limit,
        )
    if cluster is not None:
        warn_of_idle_cluster(spec, cluster, problems=problems)
    return cluster


def with_power_limit(cluster: Cluster, limit: str, *, source: str) -> Cluster:
    """Return `cluster` under another cap on every device, read and checked as a job's own is.

    Args:
        cluster: To be capped.
        limit: As in a job file, such as `400 W`.
        source: What messages call the place where `limit` stands.

    Raises:
        JobError: It is no such quantity, or no cap that the devices can keep.
    """
    try:
        return replace(cluster, power_limit_w=read_power_limit(limit))
    except ValueError as error:
        raise JobError(source, [str(error)]) from error
    except HardwareError as error:
        raise JobError(source, list(error.misfits.values())) from error


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

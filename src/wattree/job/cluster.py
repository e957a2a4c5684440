"""The `cluster` section: names and files of hardware → a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wattree.errors import HardwareError, JobError
from wattree.hardware import Cluster, Fabric, Node, Pool, Site, attached
from wattree.hardware.load import default_fabric_name, load_fabric, load_node, load_site
from wattree.hardware.names import fabric_names
from wattree.job.cluster_schema import ClusterSpec, PoolSpec
from wattree.job.idle import (
    warn_of_fabric_kind,
    warn_of_idle_cluster,
    warn_of_port,
    warn_of_unknown_words,
)
from wattree.job.problems import Problems, shown
from wattree.job.values import read_power_limit
from wattree.units import whole_number

#: More kinds of nodes than this in one job are a slip: a pool of each node, perhaps.
MOST_POOLS = 64
_LOADERS: Mapping[str, Callable[[str | Path], object]] = {
    "node": load_node,
    "fabric": load_fabric,
    "site": load_site,
}


def cluster_of(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Cluster | None:
    """Return the cluster that `spec` names, or None after noting why there is none."""
    pools = _pools(spec, folder=folder, problems=problems)
    fabric = None
    if pools is not None or spec.fabric is not None:
        fabric = _fabric(spec, folder=folder, problems=problems)
    nodes = [pool.node for pool in pools or ()]
    site = _site(spec, nodes, folder=folder, problems=problems)
    devices = sum(pool.devices for pool in pools or ())
    slowdown, slow_links = straggling(spec, devices, problems=problems)
    if pools is None or fabric is None or site is None:
        return None
    if sum(pool.nodes for pool in pools) > 1:
        # Of the catalog's nodes, not one that the job chose.
        if spec.fabric is not None or fabric.name not in fabric_names():
            warn_of_fabric_kind(fabric, problems=problems)
        for node in dict.fromkeys(pool.node.name for pool in pools):
            warn_of_port(
                next(p.node for p in pools if p.node.name == node), fabric, problems=problems
            )
    cluster = None
    with problems.at("cluster"):
        cluster = Cluster(
            pools=tuple(replace(pool, node=attached(pool.node, fabric)) for pool in pools),
            fabric=fabric,
            site=site,
            slowdown=slowdown,
            slow_links=slow_links,
            power_limit_w=spec.power_limit,
        )
    if cluster is not None:
        warn_of_idle_cluster(spec, cluster, problems=problems)
    return cluster


def read_cluster(value: object, *, folder: Path, problems: Problems) -> Cluster | None:
    """Return the cluster of a section as it was read, or None after noting why there is none.

    Names are looked up whatever else is wrong, so that all faults are reported at once.
    """
    spec = problems.read(ClusterSpec, value, "cluster")
    if spec is not None:
        return cluster_of(spec, folder=folder, problems=problems)
    found = value if isinstance(value, Mapping) else {}
    named = [(f"cluster.{key}", load, found.get(key)) for key, load in _LOADERS.items()]
    pools = found.get("pools")
    for number, pool in enumerate(pools[:MOST_POOLS] if isinstance(pools, list) else ()):
        name = pool.get("node") if isinstance(pool, Mapping) else None
        named.append((f"cluster.pools.{number}.node", load_node, name))
    for place, load, name in named:
        if isinstance(name, str):
            with problems.at(place):
                load(located(name, folder))
    return None


def straggling(
    spec: ClusterSpec, devices: int, *, problems: Problems
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the factors on compute times and on shares of the network, by device."""
    slowdown = _by_device(spec.slowdown, "slowdown", problems=problems)
    slow_links = _by_device(spec.slow_links, "slow_links", problems=problems)
    return _with_stragglers(slowdown, spec, devices), slow_links


def with_power_limit(cluster: Cluster, limit: str, *, source: str) -> Cluster:
    """Return `cluster` under another cap on every device, read and checked as a job's own is.

    Args:
        limit: As in a job file, such as `400 W`.
        source: What messages call the place where `limit` stands.

    Raises:
        JobError: It is no such quantity, or no cap that the devices can keep.
    """
    try:
        return cluster.limited(read_power_limit(limit))
    except ValueError as error:
        raise JobError(source, [str(error)]) from error
    except HardwareError as error:
        raise JobError(source, list(error.misfits.values())) from error


def located(name: str, folder: Path) -> str | Path:
    """Return `name`, or, if it is a path, the path as seen from the `folder` of its file."""
    return folder / name if "/" in name or name.endswith((".yaml", ".yml")) else name


def _pools(spec: ClusterSpec, *, folder: Path, problems: Problems) -> tuple[Pool, ...] | None:
    """Return the pools of the cluster, or None after noting what is wrong with them."""
    before = len(problems.lines)
    if spec.pools is None and spec.node is None:
        described = ClusterSpec.model_fields["node"].description
        problems.add("cluster.node", f"is missing, expected {described}; or pools, a list of such")
    if spec.pools is not None:
        for key in ("node", "nodes"):
            if key in spec.model_fields_set:
                problems.add(
                    f"cluster.{key}", "found together with pools, which say it; give one of them"
                )
        if not 1 <= len(spec.pools) <= MOST_POOLS:
            problems.add(
                "cluster.pools",
                f"found {shown(spec.pools)}, expected a list of 1 to {MOST_POOLS} pools",
            )
    if len(problems.lines) > before:
        return None
    found = []
    for place, each in _named(spec):
        with problems.at(f"{place}.node"):
            node = load_node(located(each.node, folder))
            warn_of_unknown_words(node.device, f"{place}.node", problems=problems)
            found.append(Pool(node=node, nodes=each.nodes, power_limit_w=each.power_limit))
    return tuple(found) if len(problems.lines) == before else None


def _named(spec: ClusterSpec) -> list[tuple[str, PoolSpec]]:
    """Return the pools that a section names, with where it does."""
    if spec.pools is not None:
        return [(f"cluster.pools.{number}", each) for number, each in enumerate(spec.pools)]
    return [] if spec.node is None else [("cluster", PoolSpec(node=spec.node, nodes=spec.nodes))]


def _fabric(spec: ClusterSpec, *, folder: Path, problems: Problems) -> Fabric | None:
    """Return the fabric that is named, or that all nodes name for themselves."""
    if spec.fabric is not None:
        with problems.at("cluster.fabric"):
            return load_fabric(located(spec.fabric, folder))
        return None
    own: dict[str, str] = {}
    for place, each in _named(spec):
        with problems.at(f"{place}.node"):
            own.setdefault(default_fabric_name(located(each.node, folder)), each.node)
    if len(own) > 1:
        names = ", ".join(f"{fabric} of {node}" for fabric, node in own.items())
        problems.add(
            "cluster.fabric",
            f"is missing, expected the fabric that joins the pools: their nodes have different "
            f"ones of their own ({names})",
        )
    if len(own) != 1:
        return None
    with problems.at("cluster.node" if spec.pools is None else "cluster.pools"):
        return load_fabric(next(iter(own)))
    return None


def _site(
    spec: ClusterSpec, nodes: Sequence[Node], *, folder: Path, problems: Problems
) -> Site | None:
    with problems.at("cluster.site"):
        return load_site(located(spec.site, folder), nodes=nodes)
    return None


def _by_device(
    given: Mapping[str, float] | None, key: str, *, problems: Problems
) -> dict[int, float]:
    factors: dict[int, float] = {}
    for device, factor in (given or {}).items():
        if (index := whole_number(device)) is None:
            problems.add(
                f"cluster.{key}", f"found the key {shown(device)}, expected a device index from 0"
            )
        elif index in factors:
            problems.add(f"cluster.{key}", f"device {index} is named twice; name it once")
        else:
            factors[index] = factor
            if factor < 1:
                problems.warn(
                    f"cluster.{key}",
                    f"{factor:g} makes device {index} faster than the others; a fault takes "
                    "factors above 1",
                )
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

"""Places of pipeline stages: the pool of their devices, and whether a border of domains cuts them.

Stages of presets are neighbouring ranks, as `pp` is the outermost axis.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.axis_layout import smallest_part
from wattree.closed_form.degrees import Degrees
from wattree.cost.rates import Rates
from wattree.hardware import Cluster, Node
from wattree.strategy import AXES


def cuts_some_stages(cluster: Cluster, degrees: Degrees) -> Flags:
    """Return where borders of scale-up domains cut some stages and leave others whole, `(n,)`."""
    ranks = np.prod([degrees.axes[axis] for axis in AXES], axis=0)
    stage, domains = ranks // degrees.axes["pp"], {pool.domain_devices for pool in cluster.pools}
    cuts = [largest_parts(stage, ranks, domain) > 0 for domain in domains]
    return np.asarray(np.any(cuts, axis=0))


def largest_parts(stage: Floats, ranks: Floats, domain: int) -> Floats:
    """Return the ranks in one domain of the stage that a border cuts least evenly, 0 if none.

    Args:
        stage, ranks: Of a stage smaller than a domain, and of all stages, `(n,)`.
    """
    found = np.zeros(len(stage))
    for at in np.flatnonzero((stage < domain) & (ranks > domain) & (domain % stage > 0)):
        size = int(stage[at])
        found[at] = size - smallest_part(size, domain, int(ranks[at]) // size)
    return found


def stage_places(cluster: Cluster, ranks: int, stages: int) -> Floats:
    """Return the share of each stage's ranks in each pool, `(2 pools, stages)`.

    First of stages that a border of domains cuts, then of those that lie in one domain.
    """
    pools, edges = stage_pools(cluster, ranks, stages), np.arange(stages + 1) * (ranks // stages)
    places, start = [], 0
    for pool, devices in zip(cluster.pools, cluster.pool_devices(ranks), strict=True):
        own = np.clip(edges, start, start + devices) - start
        places.append(own[:-1] // pool.domain_devices < (own[1:] - 1) // pool.domain_devices)
        start += devices
    cut = np.any(places, axis=0)
    return np.concatenate([pools * cut, pools * ~cut])


def stage_pools(cluster: Cluster, ranks: int, stages: int) -> Floats:
    """Return the share of each stage's ranks in each pool, `(pools, stages)`."""
    ends = np.cumsum(cluster.pool_devices(ranks))[:, None]
    edges = np.arange(stages + 1) * (ranks / stages)
    before = np.minimum(edges, ends)  # ranks of this pool and those ahead of it, by stage
    upto = np.diff(before, axis=1)
    return np.asarray(np.diff(upto, axis=0, prepend=0.0) * stages / ranks)


def rates_of_few(rates: Rates, node: Node, ranks: Floats) -> Rates:
    """Return the rates where at most so many ranks of a node send at once, `(n,)`; 0 for all.

    Of a stage that a border cuts, no other stage uses the adapters at the same time.
    """
    sharing = node.devices / node.nics if 0 < node.nics < node.devices else 1.0
    few = (ranks > 0) & (ranks < sharing)
    if not few.any():
        return rates
    more = np.where(few, sharing / np.maximum(ranks, 1.0), 1.0)
    adapter_bytes_per_s = rates.links.adapter_bytes_per_s * more
    # Formulas work on arrays, too.
    links = replace(rates.links, adapter_bytes_per_s=adapter_bytes_per_s)  # type: ignore[arg-type]
    return replace(rates, links=links)


def node_counts(cluster: Cluster, ranks: Floats) -> Floats:
    """Return the number of nodes of a number of ranks; fractions above 1 count as such."""
    left, nodes = ranks, np.zeros_like(ranks)
    for pool in cluster.pools[:-1]:
        here = np.minimum(left, pool.devices)
        nodes, left = nodes + here / pool.node.devices, left - here
    return np.maximum(nodes + left / cluster.pools[-1].node.devices, 1.0)

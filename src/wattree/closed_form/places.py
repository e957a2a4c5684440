"""Places of pipeline stages: the pool of their devices, and whether a border of domains cuts them.

Stages of presets are neighbouring ranks, as `pp` is the outermost axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.axis_layout import smallest_part
from wattree.closed_form.degrees import MANY, Degrees
from wattree.cost.rates import Rates
from wattree.hardware import Cluster, Node, Pool
from wattree.lowering.setting import Setting
from wattree.strategy import AXES


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Devices of one pool, for stages that a border of domains cuts or for those that it does not.

    Attributes:
        number: Of the pool.
        is_whole: Stages lie in one scale-up domain; else a border cuts them, if there are such.
        pool: Its devices.
        leaf_devices: Of a leaf switch.
        is_simulated: Times of collectives depend on where their links lie.
    """

    number: int
    is_whole: bool
    pool: Pool
    leaf_devices: int
    is_simulated: bool

    @classmethod
    def of(cls, setting: Setting, number: int, *, is_whole: bool = False) -> StagePlace:
        """Return the place of stages on one pool of a job's cluster."""
        cluster = setting.job.cluster
        pool = cluster.pools[number]
        return cls(
            number=number,
            is_whole=is_whole,
            pool=pool,
            leaf_devices=pool.node.devices * cluster.fabric.leaf_nodes,
            is_simulated=setting.pool_rates[number].collectives.looks_at_any(),
        )

    @property
    def key(self) -> tuple[int, bool]:
        """What tells it from other places of its cluster."""
        return self.number, self.is_whole

    def filled(self, values: Mapping[str, Floats | Integers]) -> Floats:
        """Return how full a domain is of groups, which matters where links are simulated."""
        ranks = np.prod([values[axis] for axis in AXES], axis=0, dtype=np.float64)
        most = float(self.pool.domain_devices) if self.is_simulated else 0.0
        return np.asarray(np.minimum(ranks, most))

    def mesh(
        self, values: Mapping[str, Floats | Integers], rows: Integers | None = None
    ) -> dict[str, Floats]:
        """Return the degrees that decide how a mesh lies on a torus; none on other networks."""
        if self.pool.node.scale_up.kind != "torus" or not self.is_simulated:
            return {}
        chosen = slice(None) if rows is None else rows
        return {axis: values[axis][chosen].astype(np.float64) for axis in AXES}

    def cuts(
        self, values: Mapping[str, Floats | Integers], axes: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Return the ranks of meshes where a border may cut a block of `axes`, 0 elsewhere.

        And the largest part of stages that it cuts, where costs are those of such stages alone.
        """
        block = np.prod([values[axis] for axis in axes], axis=0, dtype=np.float64)
        ranks = np.prod([values[axis] for axis in AXES], axis=0, dtype=np.float64)
        stage, domain = ranks / values["pp"], self.pool.domain_devices
        is_cut = (domain % block > 0) | (self.leaf_devices % block > 0)
        if self.is_whole:
            is_cut &= stage > domain
        parts = largest_parts(stage, ranks, domain) * (not self.is_whole)
        return np.where(is_cut, np.minimum(ranks, MANY - 1), 0.0), parts

    def columns(
        self, values: Mapping[str, Floats | Integers], axes: Sequence[str]
    ) -> tuple[Floats, ...]:
        """Return all of these, of which costs of blocks of `axes` depend besides their degrees."""
        return self.filled(values), *self.cuts(values, axes), *self.mesh(values).values()


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
    at = np.flatnonzero((stage < domain) & (ranks > domain) & (domain % stage > 0))
    sizes, which = np.unique(np.stack([stage[at], ranks[at]]), axis=1, return_inverse=True)
    parts = [
        size - smallest_part(size, domain, of // size) for size, of in sizes.T.astype(int).tolist()
    ]
    found[at] = np.array(parts, dtype=np.float64)[which]
    return found


def stage_places(cluster: Cluster, ranks: int, stages: int) -> Floats:
    """Return the share of each stage's ranks in each pool, `(2 pools, stages)`.

    First of stages that a border of domains cuts, then of those that lie in one domain.
    """
    pools, edges = stage_pools(cluster, ranks, stages), np.arange(stages + 1) * (ranks // stages)
    cut, start = np.sum(pools > 0, axis=0) > 1, 0  # pools have domains of their own
    for pool, devices in zip(cluster.pools, cluster.pool_devices(ranks), strict=True):
        own = np.clip(edges, start, start + devices) - start
        cut |= own[:-1] // pool.domain_devices < (own[1:] - 1) // pool.domain_devices
        start += devices
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

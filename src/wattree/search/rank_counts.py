"""Over how many ranks a plan searches: at first, and after the best of those is known."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.hardware import Cluster
from wattree.search.limits import (
    Limits,
    cluster_counts,
    cluster_counts_below,
    cluster_counts_near,
)
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import in_order
from wattree.search.screen import Constraints
from wattree.search.space_search import SpaceSearch


def rank_counts(
    cluster: Cluster,
    constraints: Constraints,
    wanted: Sequence[str],
    max_devices: int | None,
    limits: Limits,
) -> tuple[int, ...]:
    """Return the numbers of ranks to try.

    Where only time counts, fewer devices are rarely faster: `ranks_below` says when they are tried.
    """
    fewer = max_devices is not None and max_devices < cluster.devices
    fewer = fewer or constraints.power_cap_w is not None
    fewer = fewer or any(name != "time" for name in (*wanted, *constraints.most))
    counts = cluster_counts(cluster, max_devices=max_devices)
    if not limits.idle_nodes:
        counts = tuple(n for n in counts if n > counts[0] - cluster.node.devices)
    return counts if fewer else counts[:1]


def ranks_near(
    seek: SpaceSearch, ranks: Sequence[int], found: Sequence[RankedStrategy], *, front: bool
) -> tuple[int, ...]:
    """Return more numbers of ranks, near those of the best strategies."""
    names = seek.objectives if front else seek.objectives[:1]
    best = {in_order(found, name)[0].options.ranks for name in names} if found else ()
    return cluster_counts_near(best, ranks, seek.setting.job)


def ranks_below(
    seek: SpaceSearch, ranks: Sequence[int], found: Sequence[RankedStrategy], limits: Limits
) -> tuple[int, ...]:
    """Return numbers of ranks below all of those tried that may be faster than the best strategy.

    Fewer ranks have as much to compute in all. What it takes them, if they do nothing else and
    their kernels are as efficient, is a lower bound of their step.
    """
    if not found or not limits.idle_nodes:
        return ()
    result = found[0].result
    least = result.ranks * result.time_s.compute / result.step_time_s
    return cluster_counts_below(min(ranks), seek.setting.job, least=least)

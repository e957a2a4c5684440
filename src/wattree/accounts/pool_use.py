"""Figures of each pool of a mixed cluster in a step."""

from __future__ import annotations

import numpy as np

from wattree.accounts.bill import cost_usd
from wattree.accounts.class_sums import ClassSums
from wattree.accounts.energy_use import StepEnergy
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.overhead import class_process_bytes
from wattree.arrays import Floats, Integers
from wattree.hardware import Cluster, Precision
from wattree.trace import PoolUse

#: Boards boost above the clock of their data sheet, and Winograd's convolutions take fewer FLOP: a
#: published step of VGG-19 on a GeForce takes 0.97 of its FLOP's time at the peak.
_FASTEST = 0.9


def pool_uses(step: ExecutedStep, energy: StepEnergy, sums: ClassSums) -> tuple[PoolUse, ...]:
    """Return the figures of each pool of a mixed cluster; empty where all nodes are alike.

    Args:
        sums: What the tasks of each rank class add up to.
    """
    trace, cluster = step.trace, step.cluster
    class_pools = step.compilation.class_pools
    if not cluster.is_mixed:
        return ()
    graph, step_s, needed = trace.graph, step.step_s, class_process_bytes(step)
    found = []
    for number, pool in enumerate(cluster.pools):
        mine = np.flatnonzero(class_pools == number)
        own, peaks = graph.class_ranks[mine], needed[mine]
        device, nodes = pool.node.device, cluster.pool_nodes(step.ranks)[number]
        peak = float(peaks.max(initial=0.0))
        found.append(
            PoolUse(
                node=pool.node.name,
                device=device.name,
                nodes=nodes,
                ranks=int(own.sum()),
                rank_classes=tuple(graph.class_names[each] for each in mine.tolist()),
                fullest=graph.class_names[mine[np.argmax(peaks)]] if len(mine) else None,
                peak_memory_bytes=peak,
                memory_capacity_bytes=device.memory_bytes,
                memory_fits=peak <= device.memory_bytes,
                computing=_mean(sums.computing_s[mine], own) / step_s if step_s > 0 else 0.0,
                energy_j=energy.by_pool[number],
                cost_usd=_cost_usd(cluster, number, nodes, step_s, energy.by_pool[number]),
            )
        )
    return tuple(found)


def _cost_usd(
    cluster: Cluster, pool: int, nodes: float, time_s: float, energy_j: float
) -> float | None:
    used = [0.0] * len(cluster.pools)
    used[pool] = nodes or 1.0  # an idle pool has a price, of which it costs nothing
    found = cost_usd(cluster, used, time_s, energy_j)
    return found if nodes or found is None else 0.0


def peak_flop_per_s(cluster: Cluster, ranks: int, precision: Precision) -> float:
    """Return the dense matrix peak of the first `ranks` devices together. [FLOP/s]"""
    used = zip(cluster.pools, cluster.pool_devices(ranks), strict=True)
    return sum(
        devices * pool.node.device.matrix_peak_flop_per_s(precision) for pool, devices in used
    )


def faster_than_peak(
    step_s: float, flop: float, cluster: Cluster, ranks: int, precision: Precision
) -> str | None:
    """Return that a step is faster than its FLOP at the peak of its devices; None if it is not."""
    least_s = flop / peak_flop_per_s(cluster, ranks, precision)
    if step_s >= _FASTEST * least_s:
        return None
    return (
        f"found {step_s:.4g} s, but the model's {flop:.4g} FLOP take {least_s:.4g} s at the "
        f"{precision.value} peak of {ranks} devices; is it the time of one micro-batch, or of "
        "other devices?"
    )


def _mean(values: Floats, weights: Integers) -> float:
    return float((values * weights).sum() / max(weights.sum(), 1))

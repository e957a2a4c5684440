"""Slowdown and extra energy of steps due to concurrent jobs on shared links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattree.hardware import Cluster
from wattree.job import Job, Neighbour
from wattree.predict import simulate
from wattree.schedule.placing import Nodes
from wattree.schedule.ways import PredictedWay


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factors on a step's time and energy at its placement.

    Attributes:
        time: At least 1.
        energy: At least 1.
    """

    time: float = 1.0
    energy: float = 1.0

    def after(self, other: Slowdown) -> Slowdown:
        """Return both slowdowns combined."""
        return Slowdown(self.time * other.time, self.energy * other.energy)


def slowdowns(
    cluster: Cluster,
    ways: Mapping[int, PredictedWay],
    nodes: Nodes,
    met: Mapping[int, Sequence[int]],
    *,
    calibration: str | Path | None = None,
) -> dict[int, Slowdown]:
    """Return the slowdown of each task that spans leaves, relative to leaves of its own.

    Its step is simulated on its nodes, at the same time as steps of those that it meets, in the
    mean over how their steps lie. Nothing is simulated on a fabric that is not oversubscribed:
    there nodes of different jobs share no link that fills up.

    Args:
        ways: How each task runs.
        nodes: Of each.
        met: Tasks that leave their leaf → whom they meet.
        calibration: File of constants; the shipped one if None.
    """
    if cluster.fabric.oversubscription <= 1.0:
        return {}
    found = {}
    for task, others in met.items():
        own = ways[task]
        job = replace(
            _on(cluster, own, nodes[task]),
            neighbours=tuple(
                Neighbour(job=_on(cluster, ways[other], nodes[other], own)) for other in others
            ),
        )
        result = simulate(job, calibration=calibration).result
        shared = result.neighbours
        step_s = result.step_time_s if shared is None else shared.mean_s
        step_j = result.energy_j.total if shared is None else shared.energy_mean_j
        found[task] = Slowdown(
            max(step_s / own.step_time_s, 1.0), max(step_j / own.step_energy_j, 1.0)
        )
    return found


def _on(
    cluster: Cluster, way: PredictedWay, nodes: Sequence[int], limit: PredictedWay | None = None
) -> Job:
    """Return the job of a way on nodes of the whole cluster, under its own or another limit."""
    per_node = cluster.node.devices
    limit_w = (limit or way).power_limit_w
    devices = tuple(d for n in nodes for d in range(n * per_node, (n + 1) * per_node))
    whole = cluster if limit_w is None else cluster.limited(limit_w)
    return replace(way.job, cluster=whole, devices=devices)

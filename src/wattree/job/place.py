"""Where a job sits on its cluster: the device of every rank."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.hardware import Cluster, Node
from wattree.job.cluster_schema import PlaceSpec
from wattree.job.problems import Problems
from wattree.job.ranges import ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """The devices that a strategy may use, where these are not the whole cluster.

    Attributes:
        devices: How many.
        node: What they stand in.
        at_most: Whether it may leave some of them to others.
    """

    devices: int
    node: Node
    at_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Devices of a cluster for one job, in the order of its ranks.

    Attributes:
        devices: Their indices.
        at_most: Whether the job takes only as many of them as it has ranks.
    """

    devices: tuple[int, ...]
    at_most: bool = False

    def allotment(self, cluster: Cluster) -> Allotment:
        """Return what the strategy has to fit."""
        return Allotment(devices=len(self.devices), node=cluster.node, at_most=self.at_most)

    def taken_by(self, ranks: int) -> tuple[int, ...]:
        """Return the device of each rank."""
        return self.devices[:ranks] if self.at_most else self.devices


def place_of(
    spec: PlaceSpec, cluster: Cluster, where: str, *, problems: Problems, least: int = 0
) -> JobPlace | None:
    """Return the place that a section names; None if it names none, or notes why there is none.

    Args:
        spec: The section.
        cluster: Whose devices they are.
        where: The section's place in the file.
        problems: Where faults go.
        least: Keys that have to be given.
    """
    given = [key for key in ("first_device", "devices", "nodes") if getattr(spec, key) is not None]
    if len(given) > 1 or len(given) < least:
        found = " and ".join(given) or "none of them"
        problems.add(where, f"found {found}, expected one of first_device, devices and nodes")
        return None
    if not given:
        return None
    key = given[0]
    named = getattr(spec, key)
    count = cluster.nodes if key == "nodes" else cluster.devices
    beyond = [index for index in (named if isinstance(named, list) else [named]) if index >= count]
    if beyond:
        problems.add(
            f"{where}.{key}",
            f"found {ranges(beyond)}, expected numbers from 0 to {count - 1}, as the cluster has",
        )
        return None
    if key == "first_device":
        return JobPlace(devices=tuple(range(named, cluster.devices)), at_most=True)
    if key == "devices":
        return JobPlace(devices=tuple(named))
    per_node = cluster.node.devices
    return JobPlace(devices=tuple(n * per_node + d for n in named for d in range(per_node)))

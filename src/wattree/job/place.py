"""Where a job sits on its cluster: the device of every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from wattree.hardware import Cluster, Node
from wattree.job.cluster_schema import PlaceSpec
from wattree.job.problems import Problems, ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """The devices that a strategy may use, where these are not the whole cluster.

    Attributes:
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
        order: Axes of the mesh, outermost first, in whose order ranks take them; None for the
            mesh's own order.
    """

    devices: tuple[int, ...]
    at_most: bool = False
    order: tuple[str, ...] | None = None

    def allotment(self, cluster: Cluster) -> Allotment:
        """Return what the strategy has to fit."""
        return Allotment(devices=len(self.devices), node=cluster.node, at_most=self.at_most)

    def taken_by(self, axes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the device of each rank of a mesh with these axes, outermost first."""
        taken = self.devices[: prod(axes.values())] if self.at_most else self.devices
        if self.order is None:
            return taken
        order = [axis for axis in self.order if axis in axes]
        order += [axis for axis in axes if axis not in order]  # of one rank: wherever
        grid = np.array(taken).reshape([axes[axis] for axis in order])
        return tuple(grid.transpose([order.index(axis) for axis in axes]).ravel().tolist())

    def check_order(self, axes: Mapping[str, int], *, problems: Problems) -> None:
        """Note what of the order does not fit a mesh."""
        order = self.order or ()
        unknown = [axis for axis in dict.fromkeys(order) if axis not in axes]
        twice = [axis for axis, count in Counter(order).items() if count > 1]
        missing = [axis for axis, degree in axes.items() if degree > 1 and axis not in order]
        found = [
            f"{what} {', '.join(which)}"
            for what, which in (
                ("axes that the mesh lacks:", unknown),
                ("more than once:", twice),
                ("without:", missing),
            )
            if which
        ]
        named = [axis for axis, degree in axes.items() if degree > 1]
        if self.order is not None and found:
            problems.add(
                "place.order",
                f"found {list(order)}, {'; '.join(found)}; expected each axis of the mesh once, "
                f"outermost first: {', '.join(named)}",
            )


def place_of(
    spec: PlaceSpec, cluster: Cluster, where: str, *, problems: Problems, least: int = 0
) -> JobPlace | None:
    """Return the place that a section names; None if it names none, or notes why there is none.

    Args:
        where: The section's place in the file.
        least: Keys that have to be given.
    """
    given = [key for key in ("first_device", "devices", "nodes") if getattr(spec, key) is not None]
    if len(given) > 1 or (len(given) < least and spec.order is None):
        found = " and ".join(given) or "none of them"
        problems.add(
            where, f"found {found}, expected one of first_device, devices and nodes, or order"
        )
        return None
    order = None if spec.order is None else tuple(spec.order)
    if not given:
        everything = tuple(range(cluster.devices))
        return None if order is None else JobPlace(devices=everything, order=order)
    key = given[0]
    named = getattr(spec, key)
    indices = named if isinstance(named, list) else [named]
    check_indices(indices, key, cluster, where, problems=problems)
    if key == "first_device":
        devices = tuple(range(named, cluster.devices))
        return JobPlace(devices=devices, at_most=True, order=order) if devices else None
    if key == "devices":
        return JobPlace(devices=tuple(named), order=order)
    per_node = cluster.node.devices
    devices = tuple(n * per_node + d for n in named for d in range(per_node))
    return JobPlace(devices=devices, order=order)


def check_indices(
    indices: Sequence[int], key: str, cluster: Cluster, where: str, *, problems: Problems
) -> None:
    """Note devices or nodes that the cluster lacks, and those that are named more than once.

    Args:
        key: `nodes` or another one, of devices.
        where: Section that has the key.
    """
    count = cluster.nodes if key == "nodes" else cluster.devices
    if beyond := [index for index in indices if index >= count]:
        problems.add(
            f"{where}.{key}",
            f"found {ranges(beyond)}, expected numbers from 0 to {count - 1}, as the cluster has",
        )
    if twice := [index for index, times in Counter(indices).items() if times > 1]:
        problems.add(
            f"{where}.{key}",
            f"found {ranges(sorted(twice))} more than once, expected each number once",
        )

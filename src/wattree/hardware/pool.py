"""Pools: equal nodes of a cluster, and the location of their devices."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.errors import HardwareError
from wattree.hardware.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal nodes of a cluster.

    Attributes:
        node: What every node of the pool is.
        nodes: How many.
        power_limit_w: Cap enforced on every device of the pool; None for the cluster's. [W]
    """

    node: Node
    nodes: int
    power_limit_w: float | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HardwareError({"nodes": f"found {self.nodes}, expected 1 or more"})

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.node.devices

    @property
    def domain_devices(self) -> int:
        """Devices of one scale-up domain that a job uses, within the pool.

        Where a domain spans nodes, whole nodes of each domain are used and every domain alike:
        256 devices on racks of 72 take 64 of each, as schedulers place them.
        """
        largest = min(max(self.node.scale_up.domain_devices, 1), self.devices)
        step = self.node.devices if largest > self.node.devices else 1
        for candidate in range(largest - largest % step, 0, -step):
            if self.devices % candidate == 0:
                return candidate
        return 1

    @property
    def label(self) -> str:
        """Label for display, such as `2 x dgx-h100`."""
        return f"{self.nodes} x {self.node.name}"

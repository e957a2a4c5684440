"""Times of the steps of a layout change on the links of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Integers
from wattree.cost.rates import Rates
from wattree.hardware import Cluster
from wattree.lowering.collective_costs import collective_costs
from wattree.lowering.program import CollectiveKind
from wattree.lowering.reshard.moves import MoveKind
from wattree.lowering.reshard.placement import DeviceGrid, volumes
from wattree.lowering.reshard.steps import ReshardStep
from wattree.lowering.topology import MeshTopology
from wattree.strategy import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    """Time of steps, alone on a cluster of one kind of node. Calling it prices a step. [s]

    Collectives cost what they cost in a training step. Of messages, the busiest port tells: that
    into a scale-up domain's links, or the share of the adapters, of one device in one direction.

    Attributes:
        cluster: Devices and their links.
        element_bytes: Width of an element. [B]
    """

    cluster: Cluster
    rates: Rates
    element_bytes: float
    _topologies: dict[DeviceGrid, MeshTopology] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, step: ReshardStep) -> float:
        """Return the time of a step. [s]"""
        if step.kind is MoveKind.LOCAL:
            return 0.0
        if step.kind is MoveKind.TRANSFER:
            return self._messages_s(step)
        whole = step.wanted if step.kind is MoveKind.ALL_GATHER else step.held
        size_bytes = np.array([volumes(whole).max() * self.element_bytes])
        group = self._topology(step.source).group(step.axes)
        kind = CollectiveKind(step.kind.value)
        cost = collective_costs(kind, size_bytes, group, self.rates)
        return float((cost.latency_s + cost.work_s)[0])

    def distance(self, senders: Integers, receivers: Integers) -> Integers:
        """Return the distance of devices: 0 for the same, then domain, leaf and beyond."""
        everyone = MeshTopology(mesh=Mesh(axes=()), cluster=self.cluster)
        return np.where(senders == receivers, 0, 1 + everyone.distance(senders, receivers))

    def _topology(self, grid: DeviceGrid) -> MeshTopology:
        if grid not in self._topologies:
            devices = np.array(grid.devices)
            self._topologies[grid] = MeshTopology(
                mesh=grid.mesh, cluster=self.cluster, devices=devices
            )
        return self._topologies[grid]

    def _messages_s(self, step: ReshardStep) -> float:
        """Return the time of messages that all start at once. [s]"""
        senders, receivers, parts = step.sent(self.distance)
        if not len(senders):
            return 0.0
        size_bytes = volumes(parts) * self.element_bytes
        far, rates = self.distance(senders, receivers), self.rates.links
        loads = (
            (far == 1, rates.scale_up_bytes_per_s),
            (far > 1, rates.adapter_bytes_per_s),
            (far > 2, rates.uplink_bytes_per_s),
        )
        busiest_s = max(
            float(np.bincount(ends[uses], weights=size_bytes[uses]).max(initial=0.0)) / speed
            for uses, speed in loads
            for ends in (senders, receivers)
        )
        return busiest_s + rates.alpha_s + rates.alpha_network_s * bool((far > 1).any())

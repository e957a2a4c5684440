"""Nodes: devices, the links among them, network adapters and the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattree.errors import HardwareError
from wattree.hardware.device import Device

__all__ = ["Host", "Node", "ScaleUp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """Links among devices that are close: NVLink, Infinity Fabric, ICI, PCIe.

    Attributes:
        kind: `switch` (any pair at full rate), `mesh` (rate split evenly over the peers),
            `ring`, `torus` or `pcie` (through the host).
        bandwidth_bytes_per_s: All links of one device together, one direction. [B/s]
        latency_s: Of one message between two devices. [s]
        domain_devices: Devices that reach each other this way; may span nodes (NVL72).
        in_network_reduction: Switches add (NVLS).
    """

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float
    domain_devices: int
    in_network_reduction: bool = False

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s <= 0 or self.latency_s < 0 or self.domain_devices < 1:
            raise HardwareError(f"impossible scale-up link: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the devices.

    Attributes:
        cpu_cores: Physical cores.
        memory_bytes: Main memory. [B]
        storage_read_bytes_per_s: Sustained reads of training data. [B/s]
        idle_w: Everything but the devices, at rest: CPUs, memory, NICs, fans, losses. [W]
        busy_w: The same while training. [W]
    """

    cpu_cores: int
    memory_bytes: float
    storage_read_bytes_per_s: float
    idle_w: float
    busy_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A server (or tray) with equal devices.

    Attributes:
        name, title: Catalogue name; name for people.
        device: What it holds.
        devices: How many.
        scale_up: Links among the devices.
        nics: Network adapters.
        nic_bandwidth_bytes_per_s: Line rate of one adapter, one direction. [B/s]
        nic_latency_s: Of one message from memory to memory through two adapters. [s]
        host: The machine around.
        price_usd_per_s: Rent of the whole node; None if unknown. [USD/s]
        sources: Field → where its value comes from.
    """

    name: str
    title: str
    device: Device
    devices: int
    scale_up: ScaleUp
    nics: int
    nic_bandwidth_bytes_per_s: float
    nic_latency_s: float
    host: Host
    price_usd_per_s: float | None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.devices < 1 or self.nics < 0:
            raise HardwareError(f"node {self.name}: needs at least one device and no negative NICs")

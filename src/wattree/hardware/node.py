"""Nodes: devices, the links among them, network adapters and the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattree.errors import HardwareError
from wattree.hardware.device import Device
from wattree.hardware.network import Link

#: How devices use memory behind them: they copy from it what they work on, or read and write it as
#: they work, one access to either memory after the other or both streaming at once.
ACCESS = ("copy", "serial", "concurrent")

#: What a node's file may tell apart of its host, in the order of reports; what is left is the rest.
HOST_PARTS = ("processors", "memory", "adapters")
#: Of a host's power, that its parts may be above it: rounding of figures that are added up.
_ROUNDING = 1e-9
#: Kinds of links that no cable takes out of a node.
_WITHIN_NODES = frozenset({"pcie", "links", "cube-mesh"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """Links between devices of one scale-up domain: NVLink, Infinity Fabric, ICI, PCIe.

    Attributes:
        kind: `switch` (any pair at full rate), `mesh` (rate split evenly over the peers),
            `cube-mesh` (DGX-1), `ring`, `torus`, `pcie` (through the host) or `links` (as the
            node lists them).
        bandwidth_bytes_per_s: All links of one device together, one direction. [B/s]
        latency_s: Of one message between two devices. [s]
        domain_devices: Devices that reach each other this way; may span nodes (NVL72).
        in_network_reduction: Switches add (NVLS).
        shape: Torus: lengths of the axes of the whole; None elsewhere.
        wrap_unit: Torus: axes wrap around where their length is a multiple of this and above two;
            an axis of two has one cable either way.
        devices_per_switch: Neighbours under one PCIe switch.
        sockets: Host bridges that the devices are spread over.
        socket_bandwidth_bytes_per_s: Between two sockets, one direction; None for that of a host
            link. [B/s]
        adapters_on_devices: Adapters are ports of the devices themselves (Gaudi), not separate
            cards.
    """

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float
    domain_devices: int
    in_network_reduction: bool = False
    shape: tuple[int, ...] | None = None
    wrap_unit: int = 1
    devices_per_switch: int = 1
    sockets: int = 1
    socket_bandwidth_bytes_per_s: float | None = None
    adapters_on_devices: bool = False

    def __post_init__(self) -> None:
        misfits = {}
        if not self.bandwidth_bytes_per_s > 0:
            found = f"{self.bandwidth_bytes_per_s:g} B/s"
            misfits["scale_up.bandwidth"] = f"found {found}, expected above 0 B/s"
        if not self.latency_s >= 0:
            misfits["scale_up.latency"] = f"found {self.latency_s:g} s, expected 0 s or more"
        for key in ("domain_devices", "wrap_unit", "devices_per_switch", "sockets"):
            if getattr(self, key) < 1:
                misfits[f"scale_up.{key}"] = f"found {getattr(self, key)}, expected 1 or more"
        if min(self.shape or (1,)) < 1:
            misfits["scale_up.shape"] = f"found {list(self.shape or ())}, expected lengths from 1"
        if misfits:
            raise HardwareError(misfits)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """Expanded memory: a second tier behind hosts or devices, reached over CXL or the like.

    Attributes:
        memory_bytes: Capacity of one host's (or device's) tier, or of the pool. [B]
        bandwidth_bytes_per_s: Of one host's (or device's) link, one direction. [B/s]
        latency_s: Of one access. [s]
        pooled: One pool for all, instead of a memory for each.
        access: One of `ACCESS`.
        per_device: Each device has a link of its own to it, which passes no host.
        pool_bytes_per_s: What the pool serves all together; None for as much as their links. [B/s]
    """

    memory_bytes: float
    bandwidth_bytes_per_s: float
    latency_s: float
    pooled: bool
    access: str = "copy"
    per_device: bool = False
    pool_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        misfits = {}
        if self.access not in ACCESS:
            misfits["cxl.access"] = f"found '{self.access}', expected one of {', '.join(ACCESS)}"
        if self.pool_bytes_per_s is not None and not self.pooled:
            misfits["cxl.pool_bandwidth"] = (
                "found with a memory for each host; set pooled, or leave it out"
            )
        if misfits:
            raise HardwareError(misfits)

    @property
    def is_accessed_in_place(self) -> bool:
        """Whether devices access it directly during kernels, instead of by copies."""
        return self.access != "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """Power of a part of the host.

    Attributes:
        idle_w: At rest. [W]
        busy_w: While training. [W]
    """

    idle_w: float
    busy_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the devices.

    Attributes:
        cpu_cores: Physical cores.
        memory_bytes: Main memory. [B]
        storage_read_bytes_per_s: Sustained reads of training data. [B/s]
        idle_w: Everything but the devices, at rest: CPUs, memory, NICs; fans and losses of power
            supplies too, unless they follow below. [W]
        busy_w: The same while training. [W]
        memory_bytes_per_s: What all channels of main memory carry together; None where the node's
            file does not say. [B/s]
        fans: Power of fans over that of all that they cool, devices and host; 0 where `idle_w` and
            `busy_w` have it in them, or there are none.
        conversion: What power supplies take in over what they give out, to devices, host and fans;
            1 where `idle_w` and `busy_w` have the loss in them.
        parts: Some of `HOST_PARTS` → what they draw, within `idle_w` and `busy_w`; empty where the
            node's file tells nothing apart.
    """

    cpu_cores: int
    memory_bytes: float
    storage_read_bytes_per_s: float
    idle_w: float
    busy_w: float
    memory_bytes_per_s: float | None = None
    fans: float = 0.0
    conversion: float = 1.0
    parts: Mapping[str, HostPart] = field(default_factory=dict)

    @property
    def behind(self) -> float:
        """Return grid power over the power of devices and host: fans and conversion."""
        return (1.0 + self.fans) * self.conversion

    @property
    def rest(self) -> HostPart:
        """Return host power not covered by the parts: drives, links among devices, boards."""
        parts = self.parts.values()
        return HostPart(
            idle_w=self.idle_w - sum(part.idle_w for part in parts),
            busy_w=self.busy_w - sum(part.busy_w for part in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A server (or tray) with equal devices.

    Attributes:
        name, title: Catalog name; name for people.
        scale_up: Links among the devices.
        nic_bandwidth_bytes_per_s: Line rate of one adapter, one direction. [B/s]
        nic_latency_s: Of one message from memory to memory through two adapters. [s]
        price_usd_per_s: Rent of the whole node; None if unknown. [USD/s]
        links: Links inside the node as its file, or a topology that was read, lists them, between
            `d0`, `d1`, …, adapters `nic0`, … and whatever else they name; empty where `scale_up`
            says it all.
        cxl: Second memory tier; None if there is none.
        pue: Facility energy / energy of nodes that stand in no data center; None for others.
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
    links: tuple[Link, ...] = ()
    cxl: MemoryTier | None = None
    pue: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        misfits = {}
        if self.devices < 1:
            misfits["devices"] = f"found {self.devices} in {self.name}, expected 1 or more"
        if self.nics < 0:
            misfits["nics"] = f"found {self.nics} in {self.name}, expected 0 or more"
        misfits |= _domain_misfits(self.scale_up, max(self.devices, 1))
        misfits |= _host_misfits(self.host)
        if self.scale_up.kind == "links" and not self.links:
            misfits["scale_up.kind"] = (
                "found 'links', but no links are given; list them under `links` or name a file "
                "under `topology`"
            )
        if misfits:
            raise HardwareError(misfits)

    @property
    def idle_w(self) -> float:
        """Power at rest: devices, host, fans and conversion; no switches. [W]"""
        return (self.devices * self.device.idle_w + self.host.idle_w) * self.host.behind


def _domain_misfits(scale_up: ScaleUp, devices: int) -> dict[str, str]:
    """Return the problems of a scale-up domain on nodes of so many devices, by key."""
    misfits, domain = {}, max(scale_up.domain_devices, 1)
    if domain % devices and devices % domain:
        misfits["scale_up.domain_devices"] = (
            f"found {domain} with {devices} devices of a node, expected whole nodes or equal parts "
            f"of one, such as {devices}"
        )
    elif domain > devices and scale_up.kind in _WITHIN_NODES:
        misfits["scale_up.domain_devices"] = (
            f"found {domain} with {devices} devices of a node, expected at most {devices}: "
            f"links of kind '{scale_up.kind}' end with the node"
        )
    return misfits


def _host_misfits(host: Host) -> dict[str, str]:
    """Return the problems of a host's power, by key."""
    misfits = {}
    if host.idle_w > host.busy_w * (1.0 + _ROUNDING):
        misfits["host.idle"] = (
            f"found {host.idle_w:g} W, expected at most host.busy, {host.busy_w:g} W"
        )
    rest = host.rest
    for key, left_w, whole_w in (
        ("idle", rest.idle_w, host.idle_w),
        ("busy", rest.busy_w, host.busy_w),
    ):
        if left_w < -_ROUNDING * whole_w:
            misfits["host.parts"] = (
                f"found {whole_w - left_w:g} W for {', '.join(host.parts)} together, expected at "
                f"most host.{key}, {whole_w:g} W"
            )
    return misfits

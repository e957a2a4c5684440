"""Memory behind the devices: links to it, copies over them, and checks of its capacity.

A copy is moved by an engine of its own: it takes link and memory bandwidth, and slows no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.hardware import Node
from wattree.lowering.topology import LinkUse
from wattree.units import format_bytes

_WORDS = {"host": "host memory", "cxl": "CXL memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A memory behind the devices, as seen by one rank.

    Attributes:
        name: One of `strategy.TIERS`.
        copy_bytes_per_s: Of one copy when no other rank copies, one direction. [B/s]
        latency_s: Of one copy. [s]
        update_bytes_per_s: What the host reads and writes there for one rank while it updates
            for all ranks of a node; None where the node does not say. [B/s]
    """

    name: str
    copy_bytes_per_s: float
    latency_s: float
    update_bytes_per_s: float | None


def tiers_of(
    node: Node, used: Sequence[str], devices: Integers, update_rate: float
) -> dict[str, Tier]:
    """Return the tiers in use, by name.

    Args:
        node: Where they are; it has those in use.
        devices: Device of each rank.
        update_rate: Share of its memory bandwidth that the host's updates reach. [1]
    """
    link = node.device.host_link_bytes_per_s
    sharing = int(np.bincount(devices // node.devices).max())
    memory = node.host.memory_bytes_per_s
    found = {}
    for name in used:
        if name == "host":
            within = [link, *([] if memory is None else [memory])]
            latency_s, updating = 0.0, []
        else:
            assert node.cxl is not None
            own = node.cxl.bandwidth_bytes_per_s
            within = [own] if node.cxl.per_device else [own, link]
            latency_s = node.cxl.latency_s
            updating = [own * sharing if node.cxl.per_device else own]
        updating += [] if memory is None else [memory * update_rate]
        found[name] = Tier(
            name=name,
            copy_bytes_per_s=min(within),
            latency_s=latency_s,
            update_bytes_per_s=min(updating) / sharing if updating else None,
        )
    return found


def tier_links(node: Node, used: Sequence[str], devices: Integers) -> tuple[LinkUse, ...]:
    """Return the links that copies cross: device, PCIe switch if shared, memory or CXL.

    Args:
        node: Equal for all ranks.
        devices: Device of each rank.
    """
    if not used:
        return ()
    host = devices // node.devices
    link = node.device.host_link_bytes_per_s
    found = []
    together = node.scale_up.devices_per_switch
    switches = -(-node.devices // together)
    on_device = node.cxl is not None and node.cxl.per_device and tuple(used) == ("cxl",)
    for way in () if on_device else ("out", "in"):  # or else no copy passes the host
        load = f"host_link_{way}_bytes"
        found.append(_one_way(f"host link {way}", load, devices, link))
        if together > 1:
            switch = host * switches + devices % node.devices // together
            found.append(_one_way(f"PCIe switch {way}", load, switch, link))
    if "host" in used and node.host.memory_bytes_per_s is not None:
        bandwidth = node.host.memory_bytes_per_s
        found.append(_one_way("host memory", "host_memory_bytes", host, bandwidth))
    if "cxl" in used:
        assert node.cxl is not None
        where = devices if node.cxl.per_device else host
        for way in ("out", "in"):
            bandwidth = node.cxl.bandwidth_bytes_per_s
            found.append(_one_way(f"CXL {way}", f"cxl_{way}_bytes", where, bandwidth))
        if (pool := node.cxl.pool_bytes_per_s) is not None:
            found += [
                _one_way(f"CXL pool {way}", f"cxl_{way}_bytes", 0 * host, pool)
                for way in ("out", "in")
            ]
    return tuple(found)


def _one_way(name: str, load: str, of_rank: Integers, bandwidth: float) -> LinkUse:
    return LinkUse(
        name=name, load=load, of_rank=of_rank, bandwidth_bytes_per_s=bandwidth, one_way=True
    )


def capacity_misfits(node: Node, held: Mapping[str, Floats], devices: Integers) -> dict[str, str]:
    """Return path → which tier is too small, and where.

    Args:
        node: Equal for all ranks.
        held: Tier → bytes that each rank keeps there, `(ranks,)`. [B]
        devices: Device of each rank.
    """
    found = {}
    for tier, size in held.items():
        by_host: Floats = np.bincount(devices // node.devices, weights=size).astype(np.float64)
        capacity, where = node.host.memory_bytes, f"a {node.name}"
        if tier == "cxl":
            assert node.cxl is not None
            capacity = node.cxl.memory_bytes
            if node.cxl.pooled:
                by_host, where = by_host.sum(keepdims=True), "the pool"
            elif node.cxl.per_device:
                by_host, where = size, f"a device of {node.name}"
        if by_host.max() > capacity:
            found["strategy.offload"] = (
                f"{format_bytes(float(by_host.max()))} of {_WORDS[tier]} needed on "
                f"{where}, which has {format_bytes(capacity)}; keep more on the "
                "devices, or use more of them"
            )
    return found

"""The host of a node as its file has it."""

from __future__ import annotations

from wattree.hardware.fields import Fields
from wattree.hardware.node import HOST_PARTS, Host, HostPart

__all__ = ["read_host"]

#: Bounds of what can be meant: fans as hungry as all else; supplies that lose a third.
_MOST_FANS, _MOST_CONVERSION = 1.0, 1.5
_MOST_W = 100_000


def read_host(section: Fields) -> Host:
    """Return the host of a node's file; what it draws in parts is optional."""
    keys = section.keys()
    host = Host(
        cpu_cores=section.count("cpu_cores", name="host.cpu_cores", low=1, high=100_000),
        memory_bytes=section.quantity(
            "memory", "bytes", name="host.memory_bytes", low=2**28, high=2**50
        ),
        storage_read_bytes_per_s=section.quantity(
            "storage_read",
            "bytes_per_s",
            name="host.storage_read_bytes_per_s",
            low=1e6,
            high=1e13,
        ),
        idle_w=section.quantity("idle", "w", name="host.idle_w", low=0, high=100_000),
        busy_w=section.quantity("busy", "w", name="host.busy_w", low=0, high=100_000),
        memory_bytes_per_s=section.quantity(
            "memory_bandwidth",
            "bytes_per_s",
            name="host.memory_bytes_per_s",
            low=1e9,
            high=1e14,
        )
        if "memory_bandwidth" in keys
        else None,
        fans=section.number("fans", name="host.fans", low=0, high=_MOST_FANS)
        if "fans" in keys
        else 0.0,
        conversion=section.number(
            "conversion", name="host.conversion", low=1, high=_MOST_CONVERSION
        )
        if "conversion" in keys
        else 1.0,
        parts=_read_parts(section.section("parts")) if "parts" in keys else {},
    )
    section.end()
    return host


def _read_parts(section: Fields) -> dict[str, HostPart]:
    """Return part → what it draws; one that names no power at rest draws the same there."""
    keys = [key for name in HOST_PARTS for key in (name, f"{name}_idle")]
    watts = section.quantities(keys, "w", name="host.parts", low=0, high=_MOST_W)
    for name in HOST_PARTS:
        if f"{name}_idle" in watts and name not in watts:
            section.refuse(name, f"is missing beside {name}_idle, expected {{value: …, source: …}}")
    section.end()
    return {
        name: HostPart(idle_w=watts.get(f"{name}_idle", watts[name]), busy_w=watts[name])
        for name in HOST_PARTS
        if name in watts
    }

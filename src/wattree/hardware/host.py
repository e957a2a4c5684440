"""The host of a node as its file has it."""

from __future__ import annotations

from wattree.hardware.fields import CitedFigure, Fields
from wattree.hardware.node import HOST_PARTS, Host, HostPart

_MOST_W = 100_000
#: Bounds of what can be meant: fans as hungry as all else; supplies that lose a third.
_FIGURES = {
    "cpu_cores": CitedFigure("cpu_cores", "count", 1, 100_000),
    "memory_bytes": CitedFigure("memory", "bytes", 2**28, 2**50),
    "storage_read_bytes_per_s": CitedFigure("storage_read", "bytes_per_s", 1e6, 1e13),
    "idle_w": CitedFigure("idle", "w", 0, _MOST_W),
    "busy_w": CitedFigure("busy", "w", 0, _MOST_W),
    "memory_bytes_per_s": CitedFigure(
        "memory_bandwidth", "bytes_per_s", 1e9, 1e14, is_optional=True
    ),
    "fans": CitedFigure("fans", "number", 0, 1.0, is_optional=True),
    "conversion": CitedFigure("conversion", "number", 1, 1.5, is_optional=True),
}


def read_host(section: Fields) -> Host:
    """Return the host of a node's file; the power of its parts is optional."""
    found = section.figures(_FIGURES, "host.")
    parts = _read_parts(section.section("parts")) if "parts" in section else {}
    section.end()
    return Host(**found, parts=parts)


def _read_parts(section: Fields) -> dict[str, HostPart]:
    """Return part → power; a part without idle power draws the same when idle."""
    keys = [key for name in HOST_PARTS for key in (name, f"{name}_idle")]
    watts = section.quantities(keys, "w", name="host.parts", low=0, high=_MOST_W)
    for name in HOST_PARTS:
        if f"{name}_idle" in watts and name not in watts:
            section.refuse(name, f"is needed with {name}_idle, expected {{value: …, source: …}}")
    section.end()
    return {
        name: HostPart(idle_w=watts.get(f"{name}_idle", watts[name]), busy_w=watts[name])
        for name in HOST_PARTS
        if name in watts
    }

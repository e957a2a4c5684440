"""Processor cores: those allowed to this process, their NUMA nodes, and nearby devices.

References:
    Linux kernel documentation, `Documentation/ABI/testing/sysfs-bus-pci` (`local_cpulist`,
    `numa_node`), `Documentation/ABI/stable/sysfs-devices-node` (`cpulist`) and
    `Documentation/admin-guide/cputopology.rst` (`thread_siblings_list`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_SYS = Path("/sys")


def parsed_cores(text: str) -> tuple[int, ...]:
    """Return the numbers of a kernel list: `0-2,8` is 0, 1, 2, 8."""
    found: list[int] = []
    for part in text.strip().split(","):
        matched = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if matched:
            first, last = matched.groups()
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def allowed_cores(*, system: Path = _SYS) -> tuple[int, ...]:
    """Return the cores that this process may use, adjacent ones next to each other.

    By memory domain, then by physical core: the threads of one are not torn apart by a cut.

    Args:
        system: Where the kernel describes itself.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    domains = {
        core: number
        for folder in (system / "devices/system/node").glob("node[0-9]*")
        for number in [int(folder.name.removeprefix("node"))]
        for core in parsed_cores(read_text(folder / "cpulist"))
    }

    def place(core: int) -> tuple[int, int, int]:
        siblings = read_text(system / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return domains.get(core, 0), min(parsed_cores(siblings), default=core), core

    return tuple(sorted(os.sched_getaffinity(0), key=place))


def cores_near(bus: str, allowed: tuple[int, ...], *, system: Path = _SYS) -> tuple[int, ...]:
    """Return the allowed cores that are near a PCI device.

    All of them where the system does not say, or where the job may use none of the near ones.

    Args:
        bus: Address as NVIDIA's tools write it, `00000000:07:00.0`.
        allowed: Cores that may be used, in order.
        system: Where the kernel describes itself.
    """
    near = set(parsed_cores(read_text(_device(bus, system) / "local_cpulist")))
    return tuple(core for core in allowed if core in near) or allowed


def numa_of(bus: str, *, system: Path = _SYS) -> int | None:
    """Return the NUMA node of a PCI device; None if unknown."""
    text = read_text(_device(bus, system) / "numa_node").strip()
    return int(text) if text.isdigit() else None  # -1 where firmware says nothing


def _device(bus: str, system: Path) -> Path:
    domain, _, rest = bus.lower().partition(":")
    return system / "bus/pci/devices" / f"{domain[-4:]}:{rest}"


def read_text(path: Path) -> str:
    """Return the content of a system file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""

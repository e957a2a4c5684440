"""Names of processes that claim points, and whether a process of this machine has ended."""

from __future__ import annotations

import platform
import uuid

from wattree.process import Process, is_alive, this_process
from wattree.units import whole_number


def own_name() -> str:
    """Return a unique name of this process: machine, number, start, and a random part."""
    process = this_process()
    return f"{platform.node()}/{process.pid}/{process.start}/{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    parts = name.split("/")
    number = whole_number(parts[1]) if len(parts) == 4 and parts[0] == platform.node() else None
    return number is not None and not is_alive(Process(number, parts[2]))

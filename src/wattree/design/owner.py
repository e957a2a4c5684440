"""Names of processes that hold points, and whether one of this machine is gone."""

from __future__ import annotations

import platform
import uuid

from wattree.process import Process, is_alive, this_process


def own_name() -> str:
    """Return a name of this process that no other has: machine, number, start, and a draw."""
    process = this_process()
    return f"{platform.node()}/{process.pid}/{process.start}/{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a process of this machine has ended; False of those of others."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != platform.node() or not parts[1].isdigit():
        return False
    return not is_alive(Process(int(parts[1]), parts[2]))

"""Names of processes that hold points, and whether one of this machine is gone."""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path


def own_name() -> str:
    """Return a name of this process that no other has: machine, number, start, and a draw."""
    pid = os.getpid()
    return f"{platform.node()}/{pid}/{_started(pid)}/{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a process of this machine has ended; False of those of others."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != platform.node() or not parts[1].isdigit():
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _started(pid) != parts[2]  # the number was given to another


def _started(pid: int) -> str:
    """Return when a process started, in ticks since boot; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        state = text.rpartition(")")[2].split()
        return "0" if state[0] in {"Z", "X"} and pid != os.getpid() else state[19]
    except (OSError, IndexError):
        return "0"

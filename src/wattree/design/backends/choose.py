"""Which backend an option names."""

from __future__ import annotations

import os

from wattree.design.backends.backend import Backend, Here, StudyWork
from wattree.design.backends.processes import Processes
from wattree.errors import OutputError


def backend_of(on: str, work: StudyWork, *, workers: int | None, points: int) -> Backend:
    """Return what evaluates points.

    Args:
        on: `processes`, `here`, `ray` for a Ray cluster on this machine, or the address of one
            (`ray://HOST:PORT`).
        workers: Points at once; as many as there are cores if None.

    Raises:
        WattreeError: There is no such backend, or it cannot be used.
    """
    if on == "here" or (on == "processes" and min(points, workers or 2) < 2):
        return Here(work)
    if on == "processes":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return Processes(work, min(workers or cores or 1, points))
    if on == "ray" or on.startswith("ray://"):
        from wattree.design.backends.rays import Rays

        return Rays(work, address=None if on == "ray" else on, workers=workers)
    raise OutputError(
        f"--on: found '{on}', expected processes, here, ray, or an address such as "
        "ray://head-node:10001"
    )

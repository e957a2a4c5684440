"""Spread of a predicted peak of memory, by the tool that reads it and by what is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from wattree.cost import AUTO_SOFTWARE
from wattree.job import WorkloadKind
from wattree.lowering.setting import Setting

#: Spread of what a process holds besides tensors.
OVERHEAD_SPREAD = 0.25


def memory_spread(setting: Setting, tensor_share: float, kind: str = "process") -> float:
    """Return the spread of a peak of memory of which `tensor_share` is tensors."""
    spreads = setting.calibration.residuals.spreads
    trains = setting.job.workload is WorkloadKind.TRAIN
    return math.hypot(
        spreads.get(f"memory.peak_bytes.{kind}", 0.0),
        software_spread(spreads, setting.job.software) if trains else 0.0,
        max(1.0 - tensor_share, 0.0) * OVERHEAD_SPREAD,
    )


def software_spread(spreads: Mapping[str, float], software: str) -> float:
    """Return the spread of peaks of a software family; of all families where none is its own."""
    known = "unnamed" if software == AUTO_SOFTWARE else software
    names = (f"memory.peak_bytes.software.{each}" for each in (known, "generic"))
    return next((spreads[name] for name in names if name in spreads), 0.0)

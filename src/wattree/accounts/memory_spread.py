"""Spread of a predicted peak of memory, by the tool that reads it and by what is known."""

from __future__ import annotations

import math

from wattree.cost import AUTO_SOFTWARE
from wattree.job import WorkloadKind
from wattree.lowering.setting import Setting

#: Spread of what a process holds besides tensors.
OVERHEAD_SPREAD = 0.25


def has_memory_rows(setting: Setting) -> bool:
    """Return whether memory was measured with the job's software."""
    return setting.software.name in setting.calibration.residuals.rows.get("memory_software", ())


def memory_spread(setting: Setting, tensor_share: float, kind: str = "process") -> float:
    """Return the spread of a peak of memory of which `tensor_share` is tensors."""
    spreads, known = setting.calibration.residuals.spreads, "measured"
    if setting.job.workload is WorkloadKind.TRAIN:
        if setting.job.software == AUTO_SOFTWARE:
            known = "unnamed"
        elif not has_memory_rows(setting):
            known = "generic"
    return math.hypot(
        spreads.get(f"memory.peak_bytes.{kind}", 0.0),
        spreads.get(f"memory.peak_bytes.software.{known}", 0.0),
        max(1.0 - tensor_share, 0.0) * OVERHEAD_SPREAD,
    )

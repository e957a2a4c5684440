"""Several training processes on one device: how many, what each trains on, how they share it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BATCH_RULES",
    "FIXED_GLOBAL",
    "FIXED_PER_PROCESS",
    "MPS",
    "SHARINGS",
    "TIME_SLICED",
]

#: The processes of a device share the samples that one would have: the same optimisation path.
FIXED_GLOBAL: Final = "fixed-global"
#: Each has as many samples as one alone, so the batch grows with their number.
FIXED_PER_PROCESS: Final = "fixed-per-process"
BATCH_RULES = (FIXED_GLOBAL, FIXED_PER_PROCESS)
#: Kernels of several processes run at once, as under NVIDIA's Multi-Process Service.
MPS: Final = "mps"
#: Processes take turns; their kernels never overlap.
TIME_SLICED: Final = "time-sliced"
SHARINGS = (MPS, TIME_SLICED)

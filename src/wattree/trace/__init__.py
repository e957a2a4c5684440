"""What happened (or would happen) in a step, and the figures drawn from it."""

from wattree.trace.result import (
    EnergyUse,
    Evidence,
    MemoryFix,
    MemoryUse,
    PoolUse,
    Result,
    SimulationSize,
    TimeParts,
)
from wattree.trace.trace import Trace

__all__ = [
    "EnergyUse",
    "Evidence",
    "MemoryFix",
    "MemoryUse",
    "PoolUse",
    "Result",
    "SimulationSize",
    "TimeParts",
    "Trace",
]

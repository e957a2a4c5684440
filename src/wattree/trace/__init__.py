"""What happened (or would happen) in a step, and the figures drawn from it."""

from wattree.trace.result import (
    AliveTensors,
    EnergyUse,
    Evidence,
    MemoryFix,
    MemoryUse,
    Result,
    SimulationSize,
    TimeParts,
)
from wattree.trace.trace import Trace

__all__ = [
    "AliveTensors",
    "EnergyUse",
    "Evidence",
    "MemoryFix",
    "MemoryUse",
    "Result",
    "SimulationSize",
    "TimeParts",
    "Trace",
]

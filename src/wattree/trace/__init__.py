"""What happened (or would happen) in a step, and the figures drawn from it."""

from wattree.trace.bill import RunBill, ScheduleShift, ShiftedStart
from wattree.trace.energy import (
    COMPONENTS,
    DeviceEnergy,
    EnergyEntry,
    EnergyUse,
    PowerOverTime,
    WaitingUse,
)
from wattree.trace.materials import PART_WORDS, MaterialsFix, MaterialsUse
from wattree.trace.neighbours import (
    CrowdedLinks,
    NeighbourEffect,
    NeighbourJob,
    NeighbourPlay,
)
from wattree.trace.result import (
    AliveTensors,
    AllocatorUse,
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
    "COMPONENTS",
    "PART_WORDS",
    "AliveTensors",
    "AllocatorUse",
    "CrowdedLinks",
    "DeviceEnergy",
    "EnergyEntry",
    "EnergyUse",
    "Evidence",
    "MaterialsFix",
    "MaterialsUse",
    "MemoryFix",
    "MemoryUse",
    "NeighbourEffect",
    "NeighbourJob",
    "NeighbourPlay",
    "PoolUse",
    "PowerOverTime",
    "Result",
    "RunBill",
    "ScheduleShift",
    "ShiftedStart",
    "SimulationSize",
    "TimeParts",
    "Trace",
    "WaitingUse",
]

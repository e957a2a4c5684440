"""Events of a step, simulated or real, and the figures derived from them."""

from wattree.trace.bill import RunBill, ScheduleShift, ShiftedStart
from wattree.trace.energy import (
    COMPONENTS,
    DeviceEnergy,
    EnergyEntry,
    EnergyUse,
    PowerOverTime,
    WaitingUse,
)
from wattree.trace.memory import AllocatorUse, LiveTensors, MemoryFix, MemoryUse, TierUse
from wattree.trace.neighbours import (
    CrowdedLinks,
    NeighbourEffect,
    NeighbourExecution,
    NeighbourJob,
)
from wattree.trace.result import (
    STEP_PART_WORDS,
    Evidence,
    IntervalPart,
    PoolUse,
    Result,
    SimulationSize,
    TimeParts,
)
from wattree.trace.run import (
    STAGES,
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    RunOrigin,
    StageUse,
    Work,
)
from wattree.trace.run_file import read_run, run_as_json, write_run
from wattree.trace.trace import Repeats, Trace
from wattree.trace.uses import (
    PART_WORDS,
    ColocationUse,
    DecodePoint,
    GenerationUse,
    MaterialsFix,
    MaterialsUse,
    PhaseUse,
    TrainingUse,
)

__all__ = [
    "COMPONENTS",
    "PART_WORDS",
    "STAGES",
    "STEP_PART_WORDS",
    "Activity",
    "AllocatorUse",
    "ColocationUse",
    "CrowdedLinks",
    "DecodePoint",
    "DeviceEnergy",
    "EnergyEntry",
    "EnergyUse",
    "Evidence",
    "GenerationUse",
    "IntervalPart",
    "LiveTensors",
    "MaterialsFix",
    "MaterialsUse",
    "MemoryFix",
    "MemoryUse",
    "MeterReading",
    "NeighbourEffect",
    "NeighbourExecution",
    "NeighbourJob",
    "PhaseUse",
    "PoolUse",
    "PowerOverTime",
    "PowerSeries",
    "Repeats",
    "Result",
    "Run",
    "RunBill",
    "RunOrigin",
    "ScheduleShift",
    "ShiftedStart",
    "SimulationSize",
    "StageUse",
    "TierUse",
    "TimeParts",
    "Trace",
    "TrainingUse",
    "WaitingUse",
    "Work",
    "read_run",
    "run_as_json",
    "write_run",
]

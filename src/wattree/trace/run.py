"""A run of training, measured or simulated: work done, time by stage, energy by meter. Data only.

A file of this is what `measure` and `simulate` write and what `energy` fits, predicts and compares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: The stages of a step, in the order in which a step goes through them.
STAGES = ("materials", "computing", "communicating")
#: The domain of a node's own meter, which reads all that is in the node: `node0/board`.
BOARD = "board"
#: The domain of a power series of all meters that count.
TOTAL = "total"


class RunOrigin(StrEnum):
    """Where the figures of a run come from; never mixed silently."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"
    UNREAD = "unread"  # no meter read anything; its times are measured


class Activity(StrEnum):
    """What a run did: each step of the fitting protocol isolates a part."""

    IDLE = "idle"
    LOADER = "loader"
    RESIDENT = "resident"
    COLLECTIVE = "collective"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one iteration does on all nodes together; None where it is not known.

    Attributes:
        samples: Samples trained on.
        flop: Forward and backward, multiply-adds counted twice. [FLOP]
        memory_bytes: Traffic of device memory. [B]
        read_bytes: From storage. [B]
        core_s: Core time of reading, decoding and augmenting. [s]
        copied_bytes: Host to device. [B]
        network_bytes: Sent by all nodes. [B]
        gradient_bytes: Of one replica's gradients. [B]
    """

    samples: float | None = None
    flop: float | None = None
    memory_bytes: float | None = None
    read_bytes: float | None = None
    core_s: float | None = None
    copied_bytes: float | None = None
    network_bytes: float | None = None
    gradient_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """Time and energy of one stage over the whole run.

    Attributes:
        busy_s: How long the stage's work ran on a rank, on average; may overlap other stages. [s]
        exposed_s: How long it was what the step waited for; adds up to the run's time. [s]
        energy_j: Of all nodes; None where no meter could tell stages apart. [J]
    """

    busy_s: float
    exposed_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """Energy of one domain over the run, read once however many ranks share it.

    Attributes:
        domain: `node0/gpu0`, `node0/cpu0`, `node0/dram0`, `node0/board`, ….
        meter: Kind of the meter: `nvml`, `rapl`, `csv`, `replay`, `estimate`, `simulation`, ….
        energy_j: Over the run. [J]
        resolution_j: Smallest step that the counter was seen to make; None if unknown. [J]
        period_s: How often the counter was seen to change; None if unknown. [s]
        is_estimate: No counter read this.
        note: What happened to it: a reset, a wrap, a gap.
    """

    domain: str
    meter: str
    energy_j: float
    resolution_j: float | None = None
    period_s: float | None = None
    is_estimate: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSeries:
    """Power over time of one domain, or of all (`total`).

    Attributes:
        domain: As in `MeterReading`, or `total`.
        at_s: `(T,)` ascending, from the run's start. [s]
        watts: `(T,)`, the average since the time before. [W]
    """

    domain: str
    at_s: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        name: For people; file name without its ending where the file says nothing.
        origin: Measured, estimated or simulated; unread where nothing read any energy.
        activity: What it did.
        model: What was trained; empty for idle and collective runs.
        node: Kind of the nodes, for people and for grouping.
        nodes, devices_per_node: How many; devices 0 for nodes without accelerators.
        ranks_per_node: Processes that train together on a node; None for one per device, and one
            on a node without devices.
        wall_s: Length. [s]
        iterations: Steps done; 0 for idle runs.
        work: Of one iteration, all nodes.
        stages: `materials`, `computing`, `communicating`; empty where nothing labeled them.
        meters: What was read.
        missing: Domains that the machine has and nothing read.
        power: Series, where they were recorded.
        utilization: Average share busy by component: `cpu`, `memory`, `accelerator`, `network`,
            `storage`; 0 to 1.
        rated_w: Sum of the rated power of all devices and processors; None if unknown. [W]
        prefetch: Whether samples are prepared while a step computes, as workers do; False for a
            loader within the process, which the step waits for; None if unknown, taken as True.
        exit_code: Of the command; None if it was interrupted.
        command: As it was called.
        notes: What a reader must know.
    """

    name: str
    origin: RunOrigin
    activity: Activity = Activity.TRAINING
    model: str = ""
    node: str = ""
    nodes: int = 1
    devices_per_node: int = 0
    ranks_per_node: int | None = None
    wall_s: float
    iterations: int = 0
    work: Work = field(default_factory=Work)
    stages: Mapping[str, StageUse] = field(default_factory=dict)
    meters: tuple[MeterReading, ...] = ()
    missing: tuple[str, ...] = ()
    power: tuple[PowerSeries, ...] = ()
    utilization: Mapping[str, float] = field(default_factory=dict)
    rated_w: float | None = None
    prefetch: bool | None = None
    exit_code: int | None = 0
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[MeterReading, ...]:
        """The readings that add up to the run's energy.

        Where a node has a meter of its own, the meters of its parts are in it.
        """
        boards = {node for node, _, part in map(_split, self.meters) if part == BOARD}
        return tuple(
            reading
            for reading in self.meters
            if (parts := _split(reading))[0] not in boards or parts[2] == BOARD
        )

    @property
    def energy_j(self) -> float:
        """Energy of all domains that were read, each joule once. [J]"""
        return math.fsum(reading.energy_j for reading in self.counted)

    @property
    def average_w(self) -> float:
        """Average power of all domains that were read. [W]"""
        return self.energy_j / self.wall_s if self.wall_s > 0 else 0.0


def _split(reading: MeterReading) -> tuple[str, str, str]:
    return reading.domain.partition("/")

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
#: How a note begins that ranks had to share their cores.
WAITED_FOR_CORE = "a rank waited for a core"


class RunOrigin(StrEnum):
    """Origin of the figures of a run; origins are never mixed silently."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"
    UNREAD = "unread"  # no meter read anything; its times are measured


class Activity(StrEnum):
    """Kind of a run: each step of the fitting protocol isolates a part."""

    IDLE = "idle"
    LOADER = "loader"
    RESIDENT = "resident"
    COLLECTIVE = "collective"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one iteration on all nodes; None if unknown.

    Attributes:
        samples: Samples trained on.
        flop: Forward and backward, multiply-adds counted twice. [FLOP]
        memory_bytes: Traffic of device memory. [B]
        read_bytes: Bytes read from storage. [B]
        core_s: Core time of reading, decoding and augmenting. [s]
        copied_bytes: Bytes copied from host to device. [B]
        network_bytes: Bytes sent by all nodes. [B]
        gradient_bytes: Size of one replica's gradients. [B]
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
        busy_s: Time of the stage's work on a rank, on average; may overlap other stages. [s]
        exposed_s: Time that the step waited for it; adds up to the run's time. [s]
        energy_j: Energy of all nodes; None if no meter could separate stages. [J]
    """

    busy_s: float
    exposed_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """Energy of one domain over the run, read once for all ranks that share it.

    Attributes:
        domain: `node0/gpu0`, `node0/cpu0`, `node0/dram0`, `node0/board`, ….
        meter: Kind of the meter: `nvml`, `rapl`, `csv`, `replay`, `estimate`, `simulation`, ….
        energy_j: Energy over the run. [J]
        resolution_j: Smallest observed step of the counter; None if unknown. [J]
        period_s: Observed time between changes of the counter; None if unknown. [s]
        is_estimate: The figure is not from a counter.
        note: Events of the counter: a reset, a wrap, a gap.
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
        name: Name in reports; by default the file name without its ending.
        origin: Measured, estimated or simulated; unread if no meter was read.
        activity: Kind of the run.
        model: Name of the trained model; empty for idle and collective runs.
        node: Kind of the nodes, for reports and for grouping.
        nodes, devices_per_node: Nodes, and devices of each; 0 for nodes without accelerators.
        ranks_per_node: Processes that train together on a node; None for one per device, and one
            on a node without devices.
        wall_s: Length. [s]
        iterations: Steps done; 0 for idle runs.
        work: Work of one iteration on all nodes.
        stages: `materials`, `computing`, `communicating`; empty if they were not labeled.
        meters: Readings of the meters.
        missing: Domains of the machine that no meter read.
        power: Power series, if recorded.
        utilization: Average share busy by component: `cpu`, `memory`, `accelerator`, `network`,
            `storage`; 0 to 1.
        rated_w: Sum of the rated power of all devices and processors; None if unknown. [W]
        prefetch: Whether samples are prepared while a step computes, as workers do; False for a
            loader within the process, which the step waits for; None if unknown, taken as True.
        exit_code: Exit code of the command; None if it was interrupted.
        command: The command line.
        notes: Remarks for readers.
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

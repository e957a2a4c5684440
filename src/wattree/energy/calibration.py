"""Constants of the stage model of one kind of node, with intervals and their sources. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from wattree.energy.stages import AllReduce
from wattree.errors import RunError
from wattree.trace.run import RunOrigin


class Status(StrEnum):
    """How far the runs determine a constant."""

    FITTED = "fitted"
    WEAK = "weak"  # the interval reaches zero or most of the range, or there is none
    BOUND = "bound"  # the runs say only that it is at least, or at most, so much
    INSEPARABLE = "inseparable"  # another constant stands for it
    ABSENT = "absent"  # no run exercises it


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConstant:
    """A constant of the model.

    Attributes:
        value: In the unit that `CONSTANTS` gives; None where the runs do not determine it.
        lower, upper: Interval of 95 %; None where there is none.
        status: How far the runs determine it.
        runs: Runs that exercise it.
    """

    value: float | None
    lower: float | None = None
    upper: float | None = None
    status: Status = Status.FITTED
    runs: int = 0
    note: str = ""


def no_value(note: str, status: Status = Status.ABSENT, *, runs: int = 0) -> StageConstant:
    """Return a constant that runs do not determine, and why."""
    return StageConstant(value=None, status=status, runs=runs, note=note)


#: Constant → unit and meaning. The letters are those of docs/energy.md.
CONSTANTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "energy.static_w": ("W", "power of one node at rest, P_static"),
        "energy.flop_j": ("J/FLOP", "arithmetic, e_flop"),
        "energy.trained_j": ("J", "computing a sample, where FLOP are not known"),
        "energy.computing_w": ("W", "of one node that computes, independent of its FLOP, P_busy"),
        "energy.core_w": ("W", "a core that prepares samples, e_prep"),
        "energy.sample_j": ("J", "preparing a sample, where core time is not known"),
        "energy.network_j_per_byte": ("J/B", "a byte sent, e_net"),
        "energy.read_j_per_byte": ("J/B", "a byte read from storage, e_io"),
        "energy.memory_j_per_byte": ("J/B", "a byte of memory traffic, e_mem"),
        "energy.copied_j_per_byte": ("J/B", "a byte copied to a device, e_h2d"),
        "energy.polling_w": ("W", "of one node that waits in a collective, P_poll"),
        "time.computing.overhead_s": ("s", "of a step, independent of its batch, a0"),
        "time.computing.s_per_flop": ("s/FLOP", "one rank at a large batch, 1 / (R η∞)"),
        "time.computing.s_per_sample": ("s", "a sample on one rank, where FLOP are not known"),
        "time.computing.half_batch": ("1", "samples per rank at half efficiency, b½"),
        "time.computing.s_per_byte": ("s/B", "memory traffic alongside arithmetic, κ"),
        "time.materials.cores": ("1", "cores of a node that prepare at once"),
        "time.materials.samples_per_s": ("1/s", "prepared by a node, where core time is unknown"),
        "time.materials.node_bytes_per_s": ("B/s", "storage of one node, BW_node"),
        "time.materials.cluster_bytes_per_s": ("B/s", "storage of all nodes, BW_fs"),
        "time.materials.copied_bytes_per_s": ("B/s", "copies of one node, BW_h2d"),
        "time.network.within.alpha_s": ("s", "a message between ranks of one node, α"),
        "time.network.within.bytes_per_s": ("B/s", "of one rank among those of a node, β"),
        "time.network.between.alpha_s": ("s", "a message between nodes, α"),
        "time.network.between.bytes_per_s": ("B/s", "of one rank among several nodes, β"),
        "time.overlap": ("1", "share of backward behind which gradients travel, φ"),
    }
)


#: Fields of `Work` that grow with the samples of a rank.
SCALING_WORK = ("flop", "memory_bytes", "read_bytes", "core_s", "copied_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLine:
    """What one rank does in a step with `b` samples: `per_step + per_sample b`."""

    per_step: float
    per_sample: float

    def at(self, samples: float) -> float:
        """Return the work of a rank for a number of samples."""
        return self.per_step + self.per_sample * samples


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """The results of the runs for one model.

    Attributes:
        work: Of `SCALING_WORK` → one rank's step, by samples on the rank.
        gradient_bytes: Of one replica; None if unknown. [B]
        least_samples, most_samples: On a rank in the runs.
        time_ratio: Computing time over that of the constants of all models.
        energy_ratio: Energy of arithmetic and memory over that of these constants.
        overlap: Its own `φ`; None to use that of all models.
        prefetch: As in `Run`; None if its runs do not say, or differ.
        runs: Training runs of it.
    """

    work: Mapping[str, WorkLine]
    gradient_bytes: float | None
    least_samples: float
    most_samples: float
    time_ratio: float = 1.0
    energy_ratio: float = 1.0
    overlap: float | None = None
    prefetch: bool | None = None
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Root mean square of relative errors of training runs; None if there are too few.

    Attributes:
        known: Energy of runs of models in the fit.
        unseen: Energy of runs of models that were left out of the fit.
    """

    known: float | None = None
    unseen: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyCalibration:
    """The stage model of one kind of node.

    Attributes:
        node, origin: Kind of the nodes, and where the runs' figures come from.
        devices_per_node: Ranks of a node: devices, or processes on nodes without any.
        domains: Kinds of meter domain that the energy holds.
        constants: Name as in `CONSTANTS` → result of the runs; every name is there.
        correlated: Names of energy constants, in the order of `covariance`.
        covariance: `(k, k)` of those constants.
        scatter: Residual errors of the fit.
        algorithms: `within` and `between` → algorithm of all-reduces, as far as times show it.
        models: Results of the runs for each model.
        most_nodes: Largest number of nodes in the fit.
        runs: Activity → names of runs.
        warnings: Undetermined quantities, in sentences.
    """

    node: str
    origin: RunOrigin
    devices_per_node: int
    domains: tuple[str, ...]
    constants: Mapping[str, StageConstant]
    correlated: tuple[str, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    scatter: Scatter = field(default_factory=Scatter)
    algorithms: Mapping[str, AllReduce] = field(default_factory=dict)
    models: Mapping[str, ModelTraits] = field(default_factory=dict)
    most_nodes: int = 1
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    version: str = ""

    def values(self) -> dict[str, float]:
        """Return the constants that the runs determine."""
        return {name: each.value for name, each in self.constants.items() if each.value is not None}


_NOTE = "given, not from runs"


def with_network(
    calibration: EnergyCalibration, *, bytes_per_s: float, latency_s: float = 0.0
) -> EnergyCalibration:
    """Return a calibration with α and β between nodes; such predictions have no intervals.

    Args:
        calibration: Of runs on single nodes.
        bytes_per_s: β, the rate at which a rank sends. [B/s]
        latency_s: α, of one message. [s]

    Raises:
        RunError: The runs determine them, which is more accurate.
    """
    name = "time.network.between"
    if calibration.constants[f"{name}.bytes_per_s"].value is not None:
        raise RunError(
            "--bandwidth",
            [f"found one, but the runs of the fit tell {name}.bytes_per_s: expected none"],
        )
    # A ring over several nodes passes through each of them: its slowest link sets the pace.
    values = calibration.values() if calibration.devices_per_node > 1 else {}
    within = "time.network.within"
    rate = min(bytes_per_s, values.get(f"{within}.bytes_per_s", bytes_per_s))
    alpha_s = max(latency_s, values.get(f"{within}.alpha_s", latency_s))
    slower = [
        what
        for what, is_slower in (
            ("bytes", rate < bytes_per_s),
            ("messages", alpha_s > latency_s),
        )
        if is_slower
    ]
    note = _NOTE
    if slower:
        note += f"; within nodes {' and '.join(slower)} are slower, which sets the pace"
    given = {
        f"{name}.bytes_per_s": StageConstant(value=rate, status=Status.WEAK, note=note),
        f"{name}.alpha_s": StageConstant(value=alpha_s, status=Status.WEAK, note=note),
    }
    warning = f"{name}: {bytes_per_s:.4g} B/s and {latency_s:.4g} s are given, not from runs"
    return replace(
        calibration,
        constants={**calibration.constants, **given},
        warnings=(*calibration.warnings, warning),
    )

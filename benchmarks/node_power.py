"""Power of a node of eight devices that trains at a known rate, and the constants of it.

The stage form of energy (docs/energy.md) with work at a measured rate, over a run of length T:

    P = c (host + 8 (idle + spin R))                                  while it does not train
    P = c (host + 8 (idle + R ((1-x) active + x spin) + e r))         while it does

R is the device's range from rest to rated power; *active* and *spin* are the shipped shares; x is
the share of the simulated step in which communication is exposed; r is the rate, e the energy of a
sample: `k (math FLOP + memory bytes)` with the shipped constants, at the rate of one node, where
the limit caps it. Fitted on nodes of one kind: *host*, and *k*, by how much kernels of training
draw more for their work than the steady products that made *math* and *memory*. c is 1 behind the
power supplies (DC) and one ratio before them (AC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.mlperf_runs import DEVICES, Load, NodeRow, load_of
from wattree.cost import Calibration
from wattree.cost.device_power import device_power
from wattree.energy import DevicePower
from wattree.hardware import Precision, load_device

__all__ = [
    "NodeConstants",
    "Run",
    "conversion_of",
    "fitted",
    "measured_work_w",
    "node_w",
    "not_training_s",
    "of_benchmark",
    "runs_of",
]

Floats = NDArray[np.float64]

_DEVICE = "h100-sxm-80gb"
_FP8_BENCHMARKS = ("llama2_70b_lora",)
#: Start of the fit: what the catalogue says of the host, and no excess.
_START = (1500.0, 1.0)
#: Ratio of demand to limit up to which the fit looks; beyond it nothing changes.
_MOST_EXCESS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstants:
    """Of one kind of node.

    Attributes:
        host_w: Processors, memory, adapters, pumps, behind the power supplies. [W]
        excess: k above.
        conversion: AC over DC power.
    """

    host_w: float
    excess: float
    conversion: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row with what its benchmark does on one node at the rate that is measured there.

    Attributes:
        of: The row.
        power: Of its devices.
        load: Simulated step of the row.
        one: Simulated step of the same benchmark on one node.
        one_step_s: What that took, measured; a step of the row if no row has one node. [s]
        one_nodes: Nodes of `one`.
        trains: Share of the run that is spent on steps.
    """

    of: NodeRow
    power: DevicePower
    load: Load
    one: Load
    one_step_s: float
    one_nodes: int
    trains: float


def runs_of(rows: Sequence[NodeRow], calibration: Calibration) -> list[Run]:
    """Return rows with their loads; the times on one node are of the same benchmark's row there."""
    device = load_device(_DEVICE)
    found = []
    for row in rows:
        batch = row.row.global_batch
        assert batch
        precision = Precision.FP8 if row.benchmark in _FP8_BENCHMARKS else Precision.FP16
        one = _one_node(row, rows) or row
        found.append(
            Run(
                of=row,
                power=device_power(device, precision, calibration),
                load=load_of(row.benchmark, batch, row.nodes),
                one=load_of(row.benchmark, batch, one.nodes),
                one_step_s=one.step_s,
                one_nodes=one.nodes,
                trains=1.0 - not_training_s(row, rows) / row.run_s,
            )
        )
    return found


def _one_node(row: NodeRow, rows: Sequence[NodeRow]) -> NodeRow | None:
    """Return the row of the same benchmark, batch and scope on one node."""
    return next((each for each in _alike(row, rows) if each.nodes == 1), None)


def _alike(row: NodeRow, rows: Sequence[NodeRow]) -> list[NodeRow]:
    return [
        each
        for each in rows
        if (each.benchmark, each.scope) == (row.benchmark, row.scope)
        and each.row.global_batch == row.row.global_batch
    ]


def not_training_s(row: NodeRow, rows: Sequence[NodeRow]) -> float:
    """Return what a run takes besides its steps: start, evaluation that does not scale. [s]

    Runs of one submission at one global batch train on as many samples whatever the nodes. From
    lengths and rates of two of them, `rate (length - rest)` is equal: that is the rest. None is
    known of a benchmark with runs of one size, or of another submission.
    """
    others = (
        each
        for each in _alike(row, rows)
        if each.nodes != row.nodes and each.row.source_id == row.row.source_id
    )
    other = next(others, None)
    if other is None:
        return 0.0
    rates = np.array([1.0 / row.step_s, 1.0 / other.step_s])
    steps = rates * np.array([row.run_s, other.run_s])
    return max(0.0, float((steps[0] - steps[1]) / (rates[0] - rates[1])))


def conversion_of(rows: Sequence[NodeRow]) -> float:
    """Return the median ratio of AC to DC power of runs that were read on both sides."""
    by_run: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        by_run.setdefault((row.benchmark, row.system), {})[row.scope] = row.power_w
    both = [each["AC"] / each["DC"] for each in by_run.values() if len(each) == 2]
    return float(np.median(both)) if both else 1.0


def node_w(
    run: Run,
    constants: NodeConstants,
    *,
    work_w: float | None = None,
    step_s: float | None = None,
) -> float:
    """Return the average power of a node. [W]

    Args:
        run: With the measured rate.
        constants: Of its kind of node.
        work_w: What one device draws for work on one node, where that was measured. [W]
        step_s: Of the run, if not as measured. [s]
    """
    power = run.power
    waits_w = power.idle_w + power.spin_share * power.range_w
    if work_w is None:
        work_w = _work_w(run, constants.excess)
    pace = run.one_nodes * run.one_step_s / (run.of.nodes * (step_s or run.of.step_s))
    trains_w = min(_base_w(power, run.load) + work_w * pace, power.held_share * power.rated_w)
    device_w = run.trains * trains_w + (1.0 - run.trains) * waits_w
    return _scope(run, constants) * (constants.host_w + DEVICES * device_w)


def measured_work_w(one: Run, constants: NodeConstants) -> float:
    """Return what a device draws for work on one node, from its measured power. [W]"""
    device_w = (one.of.power_w / _scope(one, constants) - constants.host_w) / DEVICES
    return device_w - _base_w(one.power, one.load)


def _scope(run: Run, constants: NodeConstants) -> float:
    return constants.conversion if run.of.scope == "AC" else 1.0


def _base_w(power: DevicePower, load: Load) -> float:
    """Return what a device draws while it trains, whatever its work. [W]"""
    exposed = 1.0 - load.computing_s / load.step_s
    share = (1.0 - exposed) * power.active_share + exposed * power.spin_share
    return power.idle_w + power.range_w * share


def _work_w(run: Run, excess: float) -> float:
    """Return what a device draws for work at the rate of one node, within its limit. [W]"""
    power, one = run.power, run.one
    math = power.math_share * one.flop / (power.peak_flop_per_s * run.one_step_s)
    memory = min(one.traffic_bytes / (power.memory_bytes_per_s * run.one_step_s), 1.0)
    asked_w = power.range_w * excess * (math + power.memory_share * memory)
    return float(min(asked_w, power.held_share * power.rated_w - _base_w(power, one)))


def fitted(runs: Sequence[Run], conversion: float) -> NodeConstants:
    """Return the constants of least squared relative error."""

    def error(at: Floats) -> float:
        found = _constants(at, conversion)
        off = [node_w(run, found) / run.of.power_w - 1.0 for run in runs]
        return float(np.mean(np.square(off)))

    best = min(
        (
            minimize(
                error,
                (_START[0], start),
                method="Nelder-Mead",
                options={"xatol": 1e-3, "fatol": 1e-12},
            )
            for start in (1.0, 1.5, 2.0)
        ),
        key=lambda found: float(found.fun),
    )
    return _constants(best.x, conversion)


def _constants(at: Floats, conversion: float) -> NodeConstants:
    host_w, excess = np.clip(at, (0.0, 0.1), (5e3, _MOST_EXCESS)).tolist()
    return NodeConstants(host_w=host_w, excess=excess, conversion=conversion)


def of_benchmark(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    """Return benchmark → its runs."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.of.benchmark, []).append(run)
    return found

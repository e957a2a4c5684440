"""Power of a node of eight devices that trains at a known rate, by the shipped model.

The rows tell the rate, the simulation what a step of it does (`mlperf_runs`). Over a run of length
T, of which a node trains for a share:

    P = c (host + 8 device),  device = trains * (base + work * pace) + (1 - trains) * waits

*work* is what one device draws on one node above what it draws while it trains anyway (*base*), at
the rate of that node and within its limit; pace is the rate of a device over that on one node. What
a device draws is that of `average_power_w`. Host, fans and conversion are those of the node's
catalog entry; c is 1 + fans (0 of immersed nodes), times AC over DC before the power supplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize

from benchmarks.mlperf_runs import DEVICES, NODE, Load, NodeRow, load_of
from wattree.arrays import Floats
from wattree.cost import Calibration
from wattree.cost.device_power import device_power
from wattree.energy import DevicePower
from wattree.hardware import Precision, load_device, load_node

_FP8_BENCHMARKS = ("llama2_70b_lora",)
#: Devices whose constant comes from rows of their own; where rows of nodes are at their limit, and
#: so tell no more than a bound, the fit is drawn weakly to their mean.
_OTHERS, _PULL = ("a40", "v100-pcie-16gb"), 3e-4
#: Where the fit of host and bytes begins, and bounds of both.
_STARTS = ((1500.0, 1.0), (1500.0, 2.0), (1500.0, 3.0))
_LEAST, _MOST = (0.0, 1.0), (5e3, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstants:
    """Of one kind of node.

    Attributes:
        host_w: Processors, memory, adapters, pumps, behind the power supplies. [W]
        conversion: AC over DC power.
        training: What a byte draws in training over what it draws in steady products
            (`power_training`).
    """

    host_w: float
    conversion: float
    training: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row with what its benchmark does on one node at the rate that is measured there.

    Attributes:
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


def shipped(calibration: Calibration) -> NodeConstants:
    """Return what catalog and calibration say."""
    node = load_node(NODE)
    return NodeConstants(
        host_w=node.host.busy_w,
        conversion=node.host.conversion,
        training=calibration.device(node.device, "power_training"),
    )


def runs_of(rows: Sequence[NodeRow], calibration: Calibration) -> list[Run]:
    """Return rows with their loads; the times on one node are of the same benchmark's row there."""
    device = load_node(NODE).device
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
        work_w: What one device draws for work on one node, where that was measured. [W]
        step_s: Of the run, if not as measured. [s]
    """
    power = _fitted_power(run.power, constants)
    waits_w = power.idle_w + power.spin_w
    if work_w is None:
        work_w = _device_w(power, run.one, run.one_step_s) - _device_w(power, run.one)
    pace = run.one_nodes * run.one_step_s / (run.of.nodes * (step_s or run.of.step_s))
    most_w = power.idle_w + power.most_dynamic_w
    trains_w = min(_device_w(power, run.load) + work_w * pace, most_w)
    device_w = run.trains * trains_w + (1.0 - run.trains) * waits_w
    return _scope(run, constants) * (constants.host_w + DEVICES * device_w)


def measured_work_w(one: Run, constants: NodeConstants) -> float:
    """Return what a device draws for work on one node, from its measured power. [W]"""
    device_w = (one.of.power_w / _scope(one, constants) - constants.host_w) / DEVICES
    return device_w - _device_w(_fitted_power(one.power, constants), one.load)


def _fitted_power(power: DevicePower, constants: NodeConstants) -> DevicePower:
    return replace(power, vector_share=(constants.training - 1.0) * power.memory_share)


def _scope(run: Run, constants: NodeConstants) -> float:
    ratio = constants.conversion if run.of.scope == "AC" else 1.0
    return (1.0 + run.of.fans) * ratio


def average_power_w(
    power: DevicePower,
    *,
    flop: float,
    traffic_bytes: float,
    computing_s: float,
    communicating_s: float,
) -> float:
    """Return the average power of a device over a step from sums over the step. [W]

    What kernels do is spread over the whole step, which is what the limit then applies to. It is
    what `dynamic_energy_j` gives of its parts where none of them is at the limit.

    Args:
        flop: Matrix FLOP of the step.
        traffic_bytes: Of device memory. [B]
        computing_s: Of the step, computing. [s]
        communicating_s: The rest of it, spinning in collectives. [s]
    """
    step_s = computing_s + communicating_s
    core_w, memory_w = power.asked_w(np.array(flop), np.array(traffic_bytes), np.array(step_s))
    waits = communicating_s / step_s
    asked_w = core_w + memory_w + power.range_w * waits * (power.spin_share - power.active_share)
    return power.idle_w + float(np.minimum(asked_w, power.most_dynamic_w))


def _device_w(power: DevicePower, load: Load, step_s: float | None = None) -> float:
    """Return what a device draws with a load in a step of that length, or with no work. [W]"""
    computing = load.computing_s / load.step_s
    lasts_s = step_s or load.step_s
    return average_power_w(
        power,
        flop=load.flop if step_s else 0.0,
        traffic_bytes=load.traffic_bytes if step_s else 0.0,
        computing_s=computing * lasts_s,
        communicating_s=(1.0 - computing) * lasts_s,
    )


def of_others(calibration: Calibration) -> float:
    """Return `training` as devices have it that are in none of these nodes."""
    return float(
        np.mean([calibration.device(load_device(name), "power_training") for name in _OTHERS])
    )


def fitted(runs: Sequence[Run], conversion: float, *, expected: float) -> NodeConstants:
    """Return the constants of least squared relative error.

    Args:
        conversion: AC over DC power.
        expected: `training` of other devices.
    """

    def error(at: Floats) -> float:
        found = _constants(at, conversion)
        off = [node_w(run, found) / run.of.power_w - 1.0 for run in runs]
        pull = _PULL * (found.training / expected - 1.0) ** 2
        return float(np.mean(np.square(off)) + pull)

    best = min(
        (
            minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-12})
            for start in _STARTS
        ),
        key=lambda found: float(found.fun),
    )
    return _constants(best.x, conversion)


def _constants(at: Floats, conversion: float) -> NodeConstants:
    host_w, training = np.clip(at, _LEAST, _MOST).tolist()
    return NodeConstants(host_w=host_w, training=training, conversion=conversion)


def of_benchmark(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    """Return benchmark → its runs."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.of.benchmark, []).append(run)
    return found

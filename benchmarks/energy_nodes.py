"""Power of whole nodes in MLPerf training at the logged rate, and eight nodes from one.

Rates and lengths are those of the rows, power is predicted: precision and strategy are in none of
them. For ResNet-50 and RetinaNet, whose submissions published their configurations, the step is
predicted too (`benchmarks.mlperf_steps` has more such steps).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.frame import Measure, Options, Section
from benchmarks.mlperf_runs import load_of, node_rows
from benchmarks.node_power import (
    NodeConstants,
    Run,
    conversion_of,
    fitted,
    measured_work_w,
    node_w,
    of_benchmark,
    of_others,
    runs_of,
    shipped,
)

_TARGET = 0.05
_SCALED = ("resnet", "ssd")


def read_runs(options: Options) -> list[Run]:
    """Return all rows of whole nodes; none where the tables are not there."""
    return runs_of(node_rows(options.shared), options.calibration)


def kind_of(runs: Sequence[Run]) -> list[Run]:
    """Return the rows that constants are made of: immersed nodes of one submitter."""
    return [run for run in runs if not run.of.fans]


def _errors(runs: Sequence[Run], constants: NodeConstants) -> list[float]:
    return [node_w(run, constants) / run.of.power_w - 1.0 for run in runs]


def _measure(name: str, errors: Sequence[float], target: float | None = None) -> Measure:
    return Measure.of(name, np.array(errors), target)


def section(options: Options) -> Section | None:
    """Return the errors of average node power."""
    runs = read_runs(options)
    if not runs:
        return None
    own = kind_of(runs)
    ratio = conversion_of([run.of for run in runs])
    constants = shipped(options.calibration)
    expected = of_others(options.calibration)
    left_out: list[float] = []
    details = []
    for name, mine in of_benchmark(own).items():
        others = [run for run in own if run not in mine]
        off = _errors(mine, fitted(others, ratio, expected=expected))
        left_out += off
        details.append(_measure(f"{name}, left out of the fit", off))
    one = [run for run in own if run.of.nodes == 1]
    eight = [run for run in own if run.of.nodes > 1]
    from_one = _errors(eight, fitted(one, ratio, expected=expected))
    other = [run for run in runs if run not in own]
    return Section(
        title="Average power of nodes of eight H100, MLPerf training, at the logged rate",
        measures=(_measure("all rows", _errors(runs, constants), _TARGET),),
        details=(
            _measure("rows of one node", _errors(one, constants)),
            _measure("rows of eight nodes", _errors(eight, constants)),
            _measure("eight nodes, constants of one-node rows alone", from_one),
            _measure("each benchmark left out of the fit", left_out),
            *details,
            _measure("another node (air-cooled), with fans", _errors(other, constants)),
        ),
        notes=(
            f"shipped: host {constants.host_w:.0f} W and AC {constants.conversion:.3f} of DC in "
            f"the catalog, a byte of training {constants.training:.2f} times one of steady "
            f"products in the calibration: made of {len(own)} of the rows (--fit)",
            "`validate` expresses none of these rows: neither precision nor strategy is printed",
            "rates are as logged; what rates and lengths on one and eight nodes leave of a run "
            "is not training and draws what waiting draws",
            *(_line(run, constants) for run in runs),
        ),
    )


def _line(run: Run, constants: NodeConstants) -> str:
    found = node_w(run, constants)
    row = run.of
    slower = run.load.step_s / row.step_s
    low = f", p05 {row.low_w:.0f} W" if row.low_w else ""
    return (
        f"{row.row.row_id} {row.benchmark:15} {row.nodes} x {row.scope}  {row.power_w:5.0f} W, "
        f"found {found:5.0f} ({found / row.power_w - 1:+.1%}), trains {run.trains:.0%}{low}, "
        f"simulated step {slower:.2f} of logged"
    )


def scaling(options: Options) -> Section | None:
    """Return the errors of energy per sample on eight nodes, from runs on one."""
    runs = kind_of(read_runs(options))
    if not runs:
        return None
    one = {(run.of.benchmark, run.of.scope): run for run in runs if run.of.nodes == 1}
    # Nothing of eight nodes makes a constant here.
    constants = fitted(
        list(one.values()),
        conversion_of([run.of for run in one.values()]),
        expected=of_others(options.calibration),
    )
    found: list[tuple[float, ...]] = []
    notes = []
    for run in runs:
        if run.of.benchmark not in _SCALED or run.of.nodes == 1:
            continue
        from_ = one[run.of.benchmark, run.of.scope]
        anchored_s = from_.of.step_s * run.load.step_s / from_.load.step_s
        steps_s = run.of.step_s, run.load.step_s, anchored_s, _untuned_s(run, from_)
        errors = tuple(_energy_error(run, from_, step_s, constants) for step_s in steps_s)
        found.append(errors)
        one_off, many_off = (each.load.step_s / each.of.step_s - 1.0 for each in (from_, run))
        notes.append(
            f"{run.of.row.row_id} {run.of.benchmark} {run.of.scope}: "
            f"{run.of.energy_per_sample_j:.4g} J a sample, {errors[0]:+.1%} at the logged rate; "
            f"simulated step {one_off:+.1%} on one node, {many_off:+.1%} on eight, "
            f"energy then {errors[1]:+.1%}"
        )
    logged, simulated, anchored, plain = (list(each) for each in zip(*found, strict=True))
    return Section(
        title="ResNet-50 and RetinaNet on eight nodes from one node, same global batch",
        measures=(
            _measure("energy a sample, logged samples/s (energy.csv)", logged, _TARGET),
            _measure("energy a sample, step time from the simulation too", simulated, _TARGET),
        ),
        details=(
            _measure("the same, measured step of one node times simulated ratio", anchored),
            _measure("likewise, software family without settings", plain),
        ),
        notes=(
            f"host {constants.host_w:.0f} W from rows of one node; the work of a sample is what "
            "one node drew above rest, host and running kernels",
            "no step time is measured in the second line: ResNet-50 ran other kernels on one node "
            "than on eight (batch norms inside convolutions), so no ratio holds between them",
            *notes,
        ),
    )


def _untuned_s(run: Run, one: Run) -> float:
    """Return the step on more nodes: the measured one on one node, scaled as simulated. [s]

    Nothing is set of what the submission switched on.
    """
    batch = run.of.row.global_batch
    assert batch
    many = load_of(run.of.benchmark, batch, run.of.nodes, tuned=False)
    few = load_of(run.of.benchmark, batch, one.of.nodes, tuned=False)
    return one.of.step_s * many.step_s / few.step_s


def _energy_error(run: Run, one: Run, step_s: float, constants: NodeConstants) -> float:
    watts = node_w(run, constants, work_w=measured_work_w(one, constants), step_s=step_s)
    assert run.of.row.global_batch
    energy_j = watts * run.of.nodes * step_s / run.of.row.global_batch
    return energy_j / run.of.energy_per_sample_j - 1.0

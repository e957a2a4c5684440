"""Simpler models beside the stage model on measured rows: nodes that train, devices under limits.

Utilization is in none of the rows. Of nodes it is the share of the run that computes, as simulated,
of memory the simulated bytes at the logged rate. Of a device under limits it is the power of its
anchor over the anchor's limit; its rated power is the limit. All models are told the length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.energy_nodes import kind_of, read_runs
from benchmarks.energy_zeus import makes_constants, rows_under_limits
from benchmarks.frame import Measure, Options, Section
from benchmarks.mlperf_runs import DEVICES
from benchmarks.node_power import Run, conversion_of, fitted, node_w, of_benchmark, of_others
from wattree.energy.baselines import BASELINES
from wattree.energy.compare import compare_runs
from wattree.errors import RunError
from wattree.trace.run import Activity, MeterReading, RunOrigin, StageUse, Work
from wattree.trace.run import Run as TrainingRun
from wattree.validation.anchored import anchored_device, anchored_scores, anchors_of
from wattree.validation.rows import MeasuredRow

#: Rows → predictor of a node's power.
_Predictor = Callable[[Run], float]
_Fit = Callable[[Sequence[Run]], _Predictor]
_STAGES = "MC² stages"


def as_training_run(run: Run) -> TrainingRun:
    """Return a row as a run that models of energy take: work and stages simulated, energy read."""
    row, load = run.of, run.load
    steps = max(1, round(run.trains * row.run_s / row.step_s))
    computing = load.computing_s / load.step_s
    bandwidth = run.power.memory_bytes_per_s
    computing_s = computing * run.trains * row.run_s
    # Ranks that do not train yet wait for one another as in a collective.
    times = {"computing": computing_s, "communicating": row.run_s - computing_s}
    devices = row.nodes * DEVICES
    return TrainingRun(
        name=row.row.row_id,
        origin=RunOrigin.MEASURED,
        activity=Activity.TRAINING,
        model=row.benchmark,
        node=row.scope,
        nodes=row.nodes,
        devices_per_node=DEVICES,
        wall_s=row.run_s,
        iterations=steps,
        work=Work(
            samples=float(row.row.global_batch or 0),
            flop=load.flop * devices,
            memory_bytes=load.traffic_bytes * devices,
        ),
        stages={name: StageUse(busy_s=each, exposed_s=each) for name, each in times.items()},
        meters=(
            MeterReading(
                domain="all/nodes", meter="csv", energy_j=row.power_w * row.nodes * row.run_s
            ),
        ),
        utilization={
            "accelerator": computing * run.trains,
            "memory": min(load.traffic_bytes / (row.step_s * bandwidth), 1.0) * run.trains,
            "network": (1.0 - computing) * run.trains,
        },
        rated_w=run.power.rated_w * devices,
    )


def _baseline(name: str) -> _Fit:
    def fit(runs: Sequence[Run]) -> _Predictor:
        energy_j = BASELINES[name].fit([as_training_run(run) for run in runs])
        return lambda run: energy_j(as_training_run(run)) / (run.of.nodes * run.of.run_s)

    return fit


def _methods(conversion: float, expected: float) -> Mapping[str, _Fit]:
    def stages(runs: Sequence[Run]) -> _Predictor:
        constants = fitted(runs, conversion, expected=expected)
        return lambda run: node_w(run, constants)

    return {
        _STAGES: stages,
        **{each.title: _baseline(name) for name, each in BASELINES.items()},
    }


def _splits(runs: Sequence[Run]) -> Mapping[str, list[tuple[list[Run], list[Run]]]]:
    """Return title → pairs of what is fitted on and what is scored."""
    one = [run for run in runs if run.of.nodes == 1]
    more = [run for run in runs if run.of.nodes > 1]
    by_name = of_benchmark(runs)
    return {
        "benchmark left out": [
            ([run for run in runs if run not in mine], list(mine)) for mine in by_name.values()
        ],
        "1 node to 8": [(one, more)],
    }


def section(options: Options) -> Section | None:
    """Return errors of every model on rows of nodes (AC) and of devices under limits."""
    every = read_runs(options)
    if not every:
        return None
    runs = [run for run in kind_of(every) if run.of.scope == "AC"]
    measures, notes, errors = [], [], {}
    methods = _methods(conversion_of([run.of for run in every]), of_others(options.calibration))
    for split, pairs in _splits(runs).items():
        for title, fit in methods.items():
            off = [
                (run, predict(run) / run.of.power_w - 1.0)
                for fitted_on, scored in pairs
                for predict in (fit(fitted_on),)
                for run in scored
            ]
            errors[split, title] = {run.of.row.row_id: (run, error) for run, error in off}
            figures = np.array([error for _, error in off])
            measures.append(Measure.of(f"{split}: {title}", figures, None))
        notes += _behind(split, {t: e for (s, t), e in errors.items() if s == split})
    return Section(
        title="Simpler models on the same rows: average power of a node (AC)",
        measures=tuple(measures),
        beside=tuple(_limits(options)),
        notes=(
            "stages: the form of the rows of nodes, told the logged rate too; under limits, from "
            "the anchor; fitted on one benchmark less, on one node, and on half of the pairs",
            *notes,
            _generic(runs),
        ),
    )


def _behind(split: str, found: Mapping[str, Mapping[str, tuple[Run, float]]]) -> list[str]:
    """Return where another model is as near or nearer than the stage model."""
    lines = []
    for row_id, (run, ours) in found[_STAGES].items():
        better = {
            title: errors[row_id][1]
            for title, errors in found.items()
            if title != _STAGES and abs(errors[row_id][1]) <= abs(ours)
        }
        if better:
            told = ", ".join(
                f"{title.split(' ')[0].rstrip(',')} {error:+.1%}" for title, error in better.items()
            )
            lines.append(
                f"{split}: not ahead on {run.of.benchmark}, {run.of.nodes} node(s): "
                f"{ours:+.1%} against {told}"
            )
    return lines


def _generic(runs: Sequence[Run]) -> str:
    """Return what `wattree energy compare` says of rows that hold power alone."""
    try:
        (group,) = compare_runs([as_training_run(run) for run in runs], fit_on="nodes<=1").groups
    except RunError as refused:
        return f"`wattree energy compare`, fitted on one node: {' '.join(str(refused).split())}"
    stages = group.methods[0]
    told = f"{stages.total.mean_abs_error:.1%}" if stages.total else f"none: {stages.reason}"
    return f"`wattree energy compare`, fitted on one node: {stages.title} {told}"


def _limits(options: Options) -> list[Measure]:
    """Return errors on devices under limits, of pairs of model and batch outside the fit."""
    rows = rows_under_limits(options)
    anchors = anchors_of(rows)
    ours = {
        each.row.row_id: each.error
        for entries in anchored_scores(rows, options.calibration).values()
        for each in entries
        if each.quantity == "average_power_w" and each.error is not None
    }
    found: dict[str, list[float]] = {}
    for device in sorted({str(anchored_device(row)) for row in rows}):
        mine = [row for row in rows if row.row_id in ours and anchored_device(row) == device]
        scored = [row for row in mine if not makes_constants(row)]
        found.setdefault(_STAGES, []).extend(ours[row.row_id] for row in scored)
        fit_on = [_limited(row, anchors[row.row_id]) for row in mine if makes_constants(row)]
        for baseline in BASELINES.values():
            energy_j = baseline.fit(fit_on)
            found.setdefault(baseline.title, []).extend(
                energy_j(_limited(row, anchors[row.row_id])) / (row.avg_power_w or 1.0) - 1.0
                for row in scored
            )
    return [
        Measure.of(f"under limits: {title}", np.array(errors), None)
        for title, errors in found.items()
    ]


def _limited(row: MeasuredRow, anchor: MeasuredRow) -> TrainingRun:
    """Return a second of a row as a run."""
    assert row.avg_power_w
    assert anchor.avg_power_w
    assert anchor.power_limit_w
    return TrainingRun(
        name=row.row_id,
        origin=RunOrigin.MEASURED,
        wall_s=1.0,
        iterations=1,
        meters=(MeterReading(domain="node0/gpu0", meter="csv", energy_j=row.avg_power_w),),
        utilization={"accelerator": min(anchor.avg_power_w / anchor.power_limit_w, 1.0)},
        rated_w=row.power_limit_w,
    )

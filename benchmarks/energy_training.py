"""Power of training from the job alone: `simulate`, before and after its constant.

Rows are whole nodes (MLPerf) and single devices at rated power (Zeus, the anchors of the rows under
limits), whose models the catalog has. Zeus prints neither precision nor software: PyTorch's
defaults are taken, fp32 on V100 and tf32 on A40, and data that never keeps a step waiting. Left out
are NCF (the catalog's is that of a larger data set, and the rows wait for data: they draw what a
device at rest does), DeepSpeech2 and BERT on Sentiment140 (lengths not stated).

`power_training` is by how much a byte of training draws more than one of a steady product. Of A40
and V100 it is fitted here, to rows that tell samples/s, at that rate: the times of all tasks are
stretched by measured over simulated step. Of H100 the rows of nodes make it (`node_power`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

import wattree
from benchmarks.energy_nodes import kind_of, read_runs
from benchmarks.energy_zeus import rows_under_limits
from benchmarks.frame import Measure, Options, Section
from benchmarks.mlperf_runs import NODE
from benchmarks.node_power import Run, conversion_of, fitted, node_w, shipped
from wattree.accounts.energy_use import step_energy
from wattree.cost import Calibration
from wattree.cost.device_power import pool_powers
from wattree.energy import DevicePower
from wattree.hardware import Cluster, load_node
from wattree.job import Job, job_from_mapping
from wattree.predict import predicted, setting_of
from wattree.trace import Trace
from wattree.validation.anchored import anchored_device, anchors_of
from wattree.validation.rows import MeasuredRow

#: Model as printed → what is fixed of its job. CIFAR's ShuffleNet halves its images twice less than
#: ImageNet's, so that of 32 pixels works as that of 128 from its second stage on.
_MODELS: Mapping[str, Mapping[str, Any]] = {
    "resnet50 / imagenet": {"model": "resnet-50"},
    "shufflenetv2 / cifar100": {
        "model": {"name": "shufflenet-v2-1.0", "arguments": {"image_size": 128}}
    },
    "bert_base_uncased / squad": {"model": "bert-base", "data": {"sequence_length": 384}},
}
_NODES = {"a40": ("8x-a40", "tf32"), "v100-pcie-16gb": ("8x-v100-pcie-16gb", "fp32")}
#: Name of the constant of each device.
_PREFIXES = {"a40": "device.a40", "v100-pcie-16gb": "architecture.volta"}
_H100 = "h100-sxm-80gb"
#: Share of a step below which the work of kernels, each at full rate, is too little to tell what
#: runs from what waits for the host or for data.
_LEAST_WORK = 0.3
_MOST = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A row of one device at rated power, and the simulated step of its job.

    Attributes:
        device: Catalog name.
        power: What the device draws.
        step_s: Measured; None where the row tells no rate. [s]
        work: Share of the simulated step that its FLOP and bytes take at full rate.
    """

    row: MeasuredRow
    device: str
    trace: Trace
    cluster: Cluster
    power: DevicePower
    step_s: float | None
    work: float

    @property
    def measured_w(self) -> float:
        """Return the average power of the board. [W]"""
        assert self.row.avg_power_w
        return self.row.avg_power_w


def trained_runs(options: Options) -> list[Trained]:
    """Return the rows whose model the catalog has; none where the table is not there."""
    if not (options.measured / "energy.csv").is_file():
        return []
    rows = rows_under_limits(options)
    anchors = {row.row_id: row for row in anchors_of(rows).values()}
    return [
        _trained(row, options.calibration) for row in anchors.values() if row.model_name in _MODELS
    ]


def _trained(row: MeasuredRow, calibration: Calibration) -> Trained:
    device, batch = anchored_device(row), int(row.global_batch or 0)
    assert device
    trace, cluster, precision = _played(str(row.model_name), batch, device)
    (power, *_) = pool_powers(cluster, precision, calibration)
    graph, step_s = trace.graph, trace.makespan_s
    work_s = (
        float(graph.flop.sum()) / power.peak_flop_per_s
        + float(graph.memory_traffic_bytes.sum()) / power.memory_bytes_per_s
    )
    return Trained(
        row=row,
        device=device,
        trace=trace,
        cluster=cluster,
        power=power,
        step_s=batch / row.samples_per_s if row.samples_per_s else None,
        work=work_s / step_s,
    )


@cache
def _played(model: str, batch: int, device: str) -> tuple[Trace, Cluster, Any]:
    """Return the step of a job, its cluster and its precision."""
    job = _job(model, batch, device)
    return wattree.simulate(job).trace, job.cluster, job.precision


@cache
def _job(model: str, batch: int, device: str) -> Job:
    """Return a job on one device of a node."""
    fixed, (node, precision) = _MODELS[model], _NODES[device]
    return job_from_mapping(
        {
            **fixed,
            "data": {**fixed.get("data", {}), "global_batch": batch},
            "precision": precision,
            "cluster": {"node": node, "nodes": 1},
            "place": {"devices": "0"},
            "software": "pytorch",
            "traits": {"earlier_host": True},  # of 2022
            "strategy": {"preset": "ddp", "dp": 1, "micro_batch": batch},
        }
    )


def device_w(run: Trained, *, training: float | None = None, measured_time: bool = False) -> float:
    """Return the average power of the device by the ledger of the step. [W]

    Args:
        training: In place of the shipped constant.
        measured_time: Whether tasks take the measured step time.
    """
    power, trace = run.power, run.trace
    if training is not None:
        power = replace(power, vector_share=(training - 1.0) * power.memory_share)
    if measured_time:
        assert run.step_s
        stretch = run.step_s / trace.makespan_s
        trace = replace(trace, start_s=trace.start_s * stretch, end_s=trace.end_s * stretch)
    use = step_energy(trace, run.cluster, [power], trace.graph.ranks).use
    return power.idle_w + use.by_component["device_dynamic"] / trace.makespan_s


def _errors(runs: Sequence[Trained], **how: Any) -> list[float]:
    return [device_w(run, **how) / run.measured_w - 1.0 for run in runs]


def _measure(name: str, errors: Sequence[float]) -> Measure:
    return Measure.of(name, np.array(errors), None)


def section(options: Options) -> Section | None:
    """Return errors of average power where nothing but the job is known."""
    nodes, devices = read_runs(options), trained_runs(options)
    if not nodes or not devices:
        return None
    made = fitted_devices(options)
    at_work = [run for run in devices if run.work >= _LEAST_WORK]
    waits = [run for run in devices if run.work < _LEAST_WORK]
    plain = [run.load.scoped_steady_w(run.of) / run.of.power_w - 1.0 for run in nodes]
    own = [run.load.scoped_w(run.of) / run.of.power_w - 1.0 for run in nodes]
    groups = {
        "A40": [run for run in at_work if run.device == "a40"],
        "V100": [run for run in at_work if run.device != "a40"],
    }
    before = [_measure("nodes of H100, without it", plain)]
    after = [_measure("nodes of H100", own)]
    for title, runs in groups.items():
        before.append(_measure(f"{title}, without it", _errors(runs, training=1.0)))
        after.append(_measure(title, _errors(runs)))
    before.append(_measure("the same, without it", _errors(waits, training=1.0)))
    after.append(_measure("steps that launches bound, A40 and V100", _errors(waits)))
    pairs = (each for pair in zip(after, before, strict=True) for each in pair)
    return Section(
        title="`simulate` alone: average power at its own rate, shipped constants",
        measures=tuple(pairs),
        details=(
            *_steps(groups),
            *_at_measured_rate(options, groups, made),
            *(_under_limits(options, at_work) if options.refits else ()),
        ),
        notes=(
            "without it: were a byte of training to draw what one of steady products does",
            "nodes before their power supplies, switches left out; devices are boards",
            *_constants_note(made),
            *_by_benchmark(nodes),
            *_by_model(at_work),
        ),
    )


def _under_limits(options: Options, runs: Sequence[Trained]) -> list[Measure]:
    """Return errors of the step over that at rated power, under lower limits; none made them."""
    rows, anchors = rows_under_limits(options), anchors_of(rows_under_limits(options))
    rated = {run.row.row_id: run for run in runs if run.step_s}
    pairs = [
        (row, rated[anchors[row.row_id].row_id])
        for row in rows
        if row.row_id in anchors
        and anchors[row.row_id].row_id in rated
        and row.row_id not in rated
        and row.samples_per_s
    ]
    plain = options.calibration.replaced(
        {name: 1.0 for name in options.calibration.constants if name.endswith(".power_training")}
    )
    found = []
    for title, calibration in (("", options.calibration), (", without it", plain)):
        errors = []
        for row, run in pairs:
            assert row.samples_per_s
            assert row.global_batch
            measured = row.global_batch / row.samples_per_s / (run.step_s or 1.0)
            stretch = _limited_s(run, row.power_limit_w or 0.0, calibration) / run.trace.makespan_s
            errors.append(stretch / measured - 1.0)
        found.append(_measure(f"step under a limit over that without, A40 and V100{title}", errors))
    return found


def _limited_s(run: Trained, limit_w: float, calibration: Calibration) -> float:
    """Return the simulated step under a limit. [s]"""
    job = _job(str(run.row.model_name), int(run.row.global_batch or 0), run.device).capped(limit_w)
    assert not isinstance(job.strategy, str)
    return predicted(setting_of(job, calibration), job.strategy).result.step_time_s


def _steps(groups: Mapping[str, Sequence[Trained]]) -> list[Measure]:
    """Return errors of step times, of devices whose steps no constant was fitted to."""
    found = []
    for title, runs in groups.items():
        errors = [run.trace.makespan_s / run.step_s - 1.0 for run in runs if run.step_s]
        found.append(_measure(f"{title}, step, no row in any fit", errors))
    return found


def _at_measured_rate(
    options: Options, groups: Mapping[str, Sequence[Trained]], made: Mapping[str, float]
) -> list[Measure]:
    """Return errors at the measured rate: shipped, and with what fitting has not seen."""
    found = []
    for title, runs in groups.items():
        rated = [run for run in runs if run.step_s]
        name = rated[0].device
        others = [value for device, value in made.items() if device != name]
        found.append(_measure(f"{title}, given the rate", _errors(rated, measured_time=True)))
        left_out = _errors(rated, measured_time=True, training=float(np.mean(others)))
        found.append(_measure(f"{title}, given, constant of the other two devices", left_out))
        by_model = []
        for model in {run.row.model_name for run in rated}:
            mine = [run for run in rated if run.row.model_name == model]
            rest = [run for run in rated if run not in mine]
            by_model += _errors(mine, measured_time=True, training=_fitted(rest))
        found.append(_measure(f"{title}, given, each model left out of the fit", by_model))
    runs = kind_of(read_runs(options))
    training = float(np.mean([made[name] for name in _NODES]))
    constants = replace(shipped(options.calibration), training=training)
    off = [node_w(run, constants) / run.of.power_w - 1.0 for run in runs]
    found.append(_measure("nodes of H100, given, constant of A40 and V100", off))
    return found


def _constants_note(made: Mapping[str, float]) -> list[str]:
    factors = ", ".join(f"{name} {value:.2f}" for name, value in made.items())
    return [
        f"bytes of training draw, over those of steady products: {factors}; of H100 all rows but "
        "those of DLRM are at the limit from there on: no more than a lower bound"
    ]


def _by_benchmark(runs: Sequence[Run]) -> list[str]:
    """Return the errors of each benchmark's nodes before their power supplies, in words."""
    lines = []
    for run in runs:
        if run.of.scope == "AC":
            before, after = (
                watts / run.of.power_w - 1.0
                for watts in (run.load.scoped_steady_w(run.of), run.load.scoped_w(run.of))
            )
            lines.append(
                f"{run.of.row.row_id} {run.of.benchmark}, {run.of.nodes} node(s): {before:+.1%} "
                f"before, {after:+.1%}; simulated step {run.load.step_s / run.of.step_s:.2f} of "
                "logged"
            )
    return lines


def _by_model(runs: Sequence[Trained]) -> list[str]:
    """Return the errors of each device and model, in words."""
    found: dict[str, list[Trained]] = {}
    for run in runs:
        found.setdefault(f"{run.device}, {run.row.model_name}", []).append(run)
    lines = []
    for title, mine in found.items():
        after, before = _errors(mine), _errors(mine, training=1.0)
        lines.append(
            f"{title}: {len(mine)} rows, {np.mean(before):+.1%} before, {np.mean(after):+.1%} "
            f"({min(after):+.1%} to {max(after):+.1%})"
        )
    return lines


def fitted_devices(options: Options) -> dict[str, float]:
    """Return device → what a byte of training draws over one of steady products."""
    rows = [run for run in trained_runs(options) if run.step_s and run.work >= _LEAST_WORK]
    found = {name: _fitted([run for run in rows if run.device == name]) for name in _NODES}
    runs = kind_of(read_runs(options))
    if runs:
        expected = float(np.mean(list(found.values())))
        ratio = conversion_of([run.of for run in runs])
        found[_H100] = fitted(runs, ratio, expected=expected).training
    return found


def _fitted(runs: Sequence[Trained]) -> float:
    """Return the constant of least mean absolute error at the measured rate."""

    def loss(training: float) -> float:
        return float(np.mean(np.abs(_errors(runs, measured_time=True, training=training))))

    return float(minimize_scalar(loss, bounds=(1.0, _MOST), method="bounded").x)


def fit(options: Options) -> dict[str, float]:
    """Return constants by name: of devices, pooled, and of the node."""
    devices = fitted_devices(options)
    found = {f"{_PREFIXES.get(n, f'device.{n}')}.power_training": v for n, v in devices.items()}
    found["pooled.power_training"] = float(np.mean(list(devices.values())))
    runs = kind_of(read_runs(options))
    if runs:
        ratio = conversion_of([run.of for run in runs])
        expected = float(np.mean([devices[name] for name in _NODES]))
        found[f"{NODE}: host.busy [W]"] = fitted(runs, ratio, expected=expected).host_w
        found[f"{NODE}: host.conversion"] = ratio
    return found


def shipped_figures() -> dict[str, float]:
    """Return what the catalog has of those that are no constants of the calibration."""
    host = load_node(NODE).host
    return {f"{NODE}: host.busy [W]": host.busy_w, f"{NODE}: host.conversion": host.conversion}

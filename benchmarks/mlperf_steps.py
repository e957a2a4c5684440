"""Steps of ResNet-50 and RetinaNet in MLPerf Training, H100 and H200, without an anchor.

No constant is made from these rows: software is set to what the submissions' configurations say
(`benchmarks.mlperf_runs`), everything else is the shipped model. Rows of up to eight nodes; a node
of four or three devices counts as one of eight with as many samples on each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import wattree
from benchmarks.frame import Measure, Options, Section
from benchmarks.mlperf_runs import DEVICES, job_of
from wattree.validation.rows import MeasuredRow, read_rows

_BENCHMARKS = {"resnet50": "resnet", "RetinaNet (ResNeXt50)": "ssd"}
_NODES = {"H100-SXM": "dgx-h100", "H200": "dgx-h200"}
_MOST_DEVICES = 64
_TABLE = "throughput_vision_dlrm.csv"


def section(options: Options) -> Section | None:
    """Return the errors of step times."""
    rows = _rows(options.measured / _TABLE)
    if not rows:
        return None
    errors: dict[str, list[float]] = {}
    notes = []
    for row in rows:
        benchmark, samples, step_s = _BENCHMARKS[row.model_name], _samples(row), _step_s(row)
        found_s = _predicted_s(row)
        errors.setdefault(benchmark, []).append(found_s / step_s - 1.0)
        notes.append(
            f"{row.row_id} {benchmark:6} {row.n_accel:3} x {row.accelerator:8} {samples:3} each: "
            f"{step_s * 1e3:6.2f} ms, found {found_s * 1e3:6.2f} ({found_s / step_s - 1:+.1%})"
        )
    every = [error for each in errors.values() for error in each]
    return Section(
        title="Steps of ResNet-50 and RetinaNet, MLPerf training, H100 and H200, no anchor",
        measures=(Measure.of("all rows", np.array(every), None),),
        details=tuple(Measure.of(name, np.array(each), None) for name, each in errors.items()),
        notes=tuple(notes),
    )


def _rows(path: Path) -> list[MeasuredRow]:
    """Return one row of each submission; what is submitted again says nothing new."""
    if not path.is_file():
        return []
    found: dict[tuple[Any, ...], MeasuredRow] = {}
    for row in read_rows(path):
        known = row.model_name in _BENCHMARKS and row.accelerator in _NODES
        few = (row.n_accel or 0) <= _MOST_DEVICES
        if row.source_id.startswith("mlperf-training") and known and few and row.samples_per_s:
            found.setdefault((row.n_accel, row.global_batch, row.samples_per_s), row)
    return list(found.values())


def _samples(row: MeasuredRow) -> int:
    assert row.global_batch
    assert row.n_accel
    return row.global_batch // row.n_accel


def _step_s(row: MeasuredRow) -> float:
    assert row.global_batch
    assert row.samples_per_s
    return row.global_batch / row.samples_per_s


def _predicted_s(row: MeasuredRow) -> float:
    assert row.n_accel
    nodes, samples = max(row.n_accel // DEVICES, 1), _samples(row)
    benchmark = _BENCHMARKS[row.model_name]
    job = job_of(benchmark, samples * nodes * DEVICES, nodes, node=_NODES[row.accelerator])
    return wattree.simulate(job).result.step_time_s

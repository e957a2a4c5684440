"""Training under power limits: runs with lower limits predicted from the highest, and the fit.

Zeus traces: one device, six models, many batches, seven to nine limits. Half of the (model, batch)
pairs of each device, chosen by a hash, make its constants; the table has all rows, as `wattree
validate` does, and the other half by itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks.frame import Measure, Options, Section
from wattree.arrays import Floats
from wattree.energy import ClockCurve, Mixture, under_limit
from wattree.hardware import Device, load_device
from wattree.validation.anchored import (
    anchored_device,
    anchored_scores,
    anchors_of,
    measured_of,
)
from wattree.validation.rows import MeasuredRow, read_rows

_TARGETS = {"average_power_w": 0.06, "step_time_s": 0.08, "energy_j": None}
_NAMES = {"average_power_w": "average power", "step_time_s": "step time", "energy_j": "energy"}

_SOURCE = "zeus-nsdi23-trace"


def _rows(path: Path) -> list[MeasuredRow]:
    return [row for row in read_rows(path) if row.source_id == _SOURCE and row.core]


def rows_under_limits(options: Options) -> list[MeasuredRow]:
    """Return the rows that count, anchors among them."""
    return _rows(options.measured / "energy.csv")


def makes_constants(row: MeasuredRow) -> bool:
    """Return whether a row's model and batch are in the half that makes constants."""
    return zlib.crc32(f"{row.model_name}|{row.global_batch}".encode()) % 2 == 0


def section(options: Options) -> Section | None:
    """Return the errors of the shipped constants."""
    path = options.measured / "energy.csv"
    if not path.is_file():
        return None
    scores = anchored_scores(
        [row for row in read_rows(path) if row.source_id == _SOURCE], options.calibration
    )
    scored = [each for entries in scores.values() for each in entries if each.counts]
    measures, details = [], []
    for quantity, target in _TARGETS.items():
        mine = [each for each in scored if each.quantity == quantity and each.error is not None]
        measures.append(Measure.of(_NAMES[quantity], _errors(mine), target))
        for device in sorted({str(anchored_device(each.row)) for each in mine}):
            of_device = [each for each in mine if anchored_device(each.row) == device]
            unseen = [each for each in of_device if not makes_constants(each.row)]
            name = f"{_NAMES[quantity]}, {device}"
            details.append(Measure.of(name, _errors(of_device), None))
            details.append(Measure.of(f"{name}, pairs left out of the fit", _errors(unseen), None))
    return Section(
        title="Training under power limits, from the run with the highest (Zeus)",
        measures=tuple(measures),
        details=tuple(details),
        notes=("anchors are outside every average",),
    )


def _errors(scored: Sequence[object]) -> Floats:
    return np.array([each.error for each in scored])  # type: ignore[attr-defined]


#: Start of each constant, and what it may be.
_START: Mapping[str, tuple[float, float, float]] = {
    "clock_leakage": (0.7, 0.1, 1.2),
    "clock_voltage_slope": (0.8, 0.1, 3.0),
    "clock_floor_voltage": (0.82, 0.5, 1.0),
    "clock_memory": (0.5, 0.05, 0.9),
    "anchor_rest": (0.25, 0.05, 0.5),
    "anchor_most": (0.98, 0.6, 1.3),
    "anchor_steadiness": (0.35, 0.02, 1.5),
    "anchor_memory_power": (0.12, 0.0, 0.6),
    "anchor_math": (0.82, 0.3, 1.0),
    "power_held": (0.995, 0.95, 1.0),
}
_LOWEST = 0.12
_PULL, _OUTSIDE, _TIME_WEIGHT = 3e-4, 1.0, 0.5
_ROUNDS, _RESTARTS = 700, 3


def fit(options: Options) -> dict[str, float]:
    """Return constants by name, from the half of the pairs that makes them."""
    rows = _rows(options.measured / "energy.csv")
    anchors = anchors_of(rows)
    found = {}
    for name, prefix in (("v100-pcie-16gb", "architecture.volta"), ("a40", "device.a40")):
        mine = [
            row
            for row in rows
            if anchored_device(row) == name
            and makes_constants(row)
            and anchors[row.row_id] is not row
        ]
        at = _fitted(load_device(name), mine, [anchors[row.row_id] for row in mine])
        found |= {f"{prefix}.{item}": value for item, value in at.items()}
    return found


def _fitted(
    device: Device, rows: Sequence[MeasuredRow], anchors: Sequence[MeasuredRow]
) -> dict[str, float]:
    """Return the constants of least mean error of power, and half as much of time."""
    start, low, high = (np.array(part) for part in zip(*_START.values(), strict=True))
    loss = _loss(device, rows, anchors)

    def penalised(at: Floats) -> float:
        outside = np.sum(np.maximum(0.0, at - high) + np.maximum(0.0, low - at))
        pull = _PULL * np.sum((at / start - 1.0) ** 2)
        return float(loss(np.clip(at, low, high)) + _OUTSIDE * outside + pull)

    noise = np.random.default_rng(0)
    best = min(
        (
            minimize(
                penalised,
                start * (1.0 + (number > 0) * noise.normal(0.0, 0.06, len(start))),
                method="Nelder-Mead",
                options={"maxiter": _ROUNDS, "adaptive": True},
            )
            for number in range(_RESTARTS)
        ),
        key=lambda found: float(found.fun),
    )
    return dict(zip(_START, np.clip(best.x, low, high).tolist(), strict=True))


def _loss(
    device: Device, rows: Sequence[MeasuredRow], anchors: Sequence[MeasuredRow]
) -> Callable[[Floats], float]:
    power_w = np.array([row.avg_power_w for row in rows])
    limit_w = np.array([row.power_limit_w for row in rows])
    anchor_w = np.array([row.avg_power_w for row in anchors])
    anchor_limit_w = np.array([row.power_limit_w for row in anchors])
    stretch = np.array([_run_s(row) for row in rows]) / np.array([_run_s(row) for row in anchors])

    def loss(at: Floats) -> float:
        mixture = _mixture(device, dict(zip(_START, at.tolist(), strict=True)))
        run = under_limit(mixture, power_w=anchor_w, anchor_limit_w=anchor_limit_w, limit_w=limit_w)
        power = np.mean(np.abs(run.power_w / power_w - 1.0))
        return float(power + _TIME_WEIGHT * np.mean(np.abs(run.stretch / stretch - 1.0)))

    return loss


def _run_s(row: MeasuredRow) -> float:
    """Return how long an epoch took: its energy over its power."""
    found = measured_of(row)
    return found["energy_j"] / found["average_power_w"]


def _mixture(device: Device, constants: Mapping[str, float]) -> Mixture:
    return Mixture(
        rest_w=constants["anchor_rest"] * device.tdp_w,
        most_w=constants["anchor_most"] * device.tdp_w,
        steadiness=constants["anchor_steadiness"],
        memory_power_share=constants["anchor_memory_power"],
        math_share=constants["anchor_math"],
        held_share=constants["power_held"],
        curve=ClockCurve(
            floor_voltage=constants["clock_floor_voltage"],
            voltage_slope=constants["clock_voltage_slope"],
            lowest=_LOWEST,
            memory_clock=constants["clock_memory"],
            leakage_w=constants["clock_leakage"] * device.idle_w,
        ),
    )

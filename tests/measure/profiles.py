"""A machine that is made up: journals whose times follow known constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wattree.cost import at_precision, software_family, volume_factor
from wattree.cost.rates import UPDATE_STATES
from wattree.cost.update import update_traffic_bytes
from wattree.hardware import Precision
from wattree.measure.profile.journal import Journal, PointMeasurement
from wattree.measure.profile.machine import Machine
from wattree.measure.profile.points import PointFamily, ProfilePoint, element_bytes, points_for

RATE, RAMP, ROWS, PRODUCT_MEMORY, ALIASED = 9e10, 6.0, 8.0, 2e10, 0.9
STREAM, CACHED, FRESH = 3e10, 9e10, 4e-10
SUM_RATE, UPDATE_RATE = 4e10, 7e10
STEP_S, LAYER_S = 6e-5, 3e-5
ALPHA_S, GATHER, REDUCE, ALPHA_REDUCE_S = 3e-4, 7e8, 9e8, 8e-4
#: Beside products: 2 ms of a gather of 8 MiB. And products with slices over those with the whole.
EXCHANGE_S, EXCHANGE_S_PER_BYTE, SLICE_RATE = 8e-4, 1.2e-3 / (4 << 20), 0.8
SAMPLE_S, COLLATE = 1.2e-6, 1.5e10
RESIDENT = 2.5e8


def machine(**changes: object) -> Machine:
    """Return two ranks of one thread on two cores."""
    told: dict[str, object] = {
        "title": "Made up, 2 ranks",
        "device": "made-up-2x1-on-2",
        "in_catalog": False,
        "kind": "cpu",
        "vendor": "acme",
        "architecture": "first",
        "ranks": 2,
        "threads": 1,
        "cores": 2,
        "memory_bytes": 8e9,
        "host_bytes": 16e9,
        "precisions": ("fp32",),
        "software": "PyTorch 0",
        **changes,
    }
    return Machine(**told)  # type: ignore[arg-type]


def true_s(point: ProfilePoint) -> float:  # noqa: C901, PLR0911 - a formula for each kind
    """Return what a point takes on the machine. [s]"""
    size = float(point.size_bytes)
    match point.kind:
        case PointFamily.PRODUCT:
            m, n, k = (float(x) for x in point.matmul)
            width = element_bytes(point.precision)
            result = m * n * width
            row = n * width
            matmul_s = (
                2 * m * n * (k + RAMP) * (1 + ROWS / m) / RATE
                + (m * k + k * n + m * n) * width / PRODUCT_MEMORY
            )
            aliased = ALIASED if row % 4096 == 0 and row >= 24 << 10 else 1.0
            return matmul_s / aliased + (result * FRESH if result >= 32 << 20 else 0.0)
        case PointFamily.STREAM:
            moved = (2.0 if point.name == "relu" else 3.0) * size
            if point.name == "add_in_place":
                return moved / (SUM_RATE if size > 4 << 20 else CACHED)
            fresh = size * FRESH if size >= 32 << 20 else 0.0
            return moved / (STREAM if size > 4 << 20 else CACHED) + fresh
        case PointFamily.UPDATE:
            software = at_precision(software_family("pytorch"), Precision.FP32)
            count = np.array(size / 4)
            moved = update_traffic_bytes(count, UPDATE_STATES[point.name], software)
            return float(moved) / UPDATE_RATE
        case PointFamily.STEP:
            return STEP_S + LAYER_S * point.inner
        case PointFamily.COLLATE:
            return point.rows * (SAMPLE_S + 4 * point.inner / COLLATE)
        case PointFamily.COLLECTIVE:
            sent = float(volume_factor(point.name, np.array([2.0]))[0]) * size
            if point.name == "all_reduce":
                return ALPHA_REDUCE_S + sent / REDUCE
            return ALPHA_S + sent / GATHER
        case PointFamily.OVERLAP:
            taken = EXCHANGE_S + EXCHANGE_S_PER_BYTE * size / 2
            return {"product": 10e-3, "exchange": 8e-3, "both": 10e-3 + taken}[point.name]
        case PointFamily.SLICES:
            whole = 2.0 * point.rows * point.inner * point.columns / RATE
            return whole / (SLICE_RATE if point.name.endswith("sliced") else 1.0)
        case _:
            return size / 1e10


def journal_of(
    path: Path, *, noise: float = 0.0, rounds: int = 3, of: Machine | None = None
) -> Journal:
    """Return a journal with all points, each time off by `noise` (standard deviation of ln)."""
    own = of or machine()
    journal = Journal(path, own)
    journal.note_resident(RESIDENT)
    draw = np.random.default_rng(7)
    points = points_for(precisions=own.precisions, ranks=own.ranks, accelerator=own.accelerator)
    for number in range(rounds):
        for point in points:
            took = true_s(point) * float(np.exp(noise * draw.standard_normal()))
            # Of the wall's time, other programs have had a quarter.
            wall = (
                took if point.kind in {PointFamily.COLLECTIVE, PointFamily.OVERLAP} else took / 0.75
            )
            journal.add(
                point,
                number,
                PointMeasurement(wall_s=(wall,) * own.ranks, busy_s=(took,) * own.ranks),
            )
    return journal

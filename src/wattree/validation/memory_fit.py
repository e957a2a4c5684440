"""Fit of memory beyond live tensors: the allocator's overhead and the context's bytes.

The tensors themselves are counted, not fitted: nothing is added to them for `allocated`. Two things
are, each seen by one kind of measurement: a share for `reserved`, and a factor of the buffers of
communicators for `process`. What libraries reserve in one process, and the driver's context, are
stated: no row tells them from communicators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Calibration
from wattree.validation.rows import MeasuredRow

_SHARE = "general.memory_fragmentation"
_RESERVED = "general.memory_reserved_bytes"
_RINGS = "general.memory_communicators"
#: Names that `fit_memory` remakes.
MEMORY_CONSTANTS = (_SHARE, _RINGS)
#: Weak pull toward the start, as a share of each constant, so that what no row sees stays put.
_PRIOR_WEIGHT = 1e-3
_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """A measured peak and the live tensors predicted for it.

    Attributes:
        row: Where it comes from.
        context_bytes: Of the driver. [B]
        rings_bytes, messages_bytes: Buffers of communicators as their sources count them. [B]
        allocator: Of its software.
        kind: `allocated`, `reserved` or `process`.
        measured_bytes: What was measured. [B]
        tensor_bytes: Live tensors at the predicted peak. [B]
    """

    row: MeasuredRow
    context_bytes: float
    rings_bytes: float
    messages_bytes: float
    allocator: str
    kind: str
    measured_bytes: float
    tensor_bytes: float


def memory_bytes(row: MemoryRow, calibration: Calibration) -> float:
    """Return the predicted figure of `row` under `calibration`. [B]"""
    values = np.array([calibration.constants[name].value for name in MEMORY_CONSTANTS])
    base, design = _design([row], calibration)
    return float((base + design @ values)[0])


def fit_memory(rows: Sequence[MemoryRow], start: Calibration) -> Calibration:
    """Return `start` with the memory constants refitted: least mean absolute relative error."""
    from scipy.optimize import lsq_linear

    names = MEMORY_CONSTANTS
    values = np.array([start.constants[name].value for name in names])
    base, design = _design(rows, start)
    measured = np.array([row.measured_bytes for row in rows])
    target, matrix = (measured - base) / measured, design / measured[:, None]
    # In units that bring every constant near one; what no row sees is held by the prior alone.
    scale = np.maximum(np.abs(matrix).max(axis=0), 1.0 / np.maximum(values, 1e-3))
    solution = values
    for _ in range(_ROUNDS):  # iteratively reweighted least squares: absolute errors
        error = np.abs(target - matrix @ solution)
        weight = 1.0 / np.maximum(error, 5e-3)
        ridge = np.sqrt(_PRIOR_WEIGHT * weight.mean()) * scale
        root = np.sqrt(weight)
        found = lsq_linear(
            np.concatenate([matrix * root[:, None], np.diag(ridge)]) / scale,
            np.concatenate([target * root, ridge * values]),
            bounds=(0.0, np.inf),
        )
        solution = found.x / scale
    return start.replaced(dict(zip(names, solution.tolist(), strict=True)))


def _design(rows: Sequence[MemoryRow], calibration: Calibration) -> tuple[Floats, Floats]:
    """Return the part that is not fitted, and the coefficients of the constants."""
    tensors = np.array([row.tensor_bytes for row in rows])
    base = tensors.copy()
    design = np.zeros((len(rows), len(MEMORY_CONSTANTS)))
    for index, row in enumerate(rows):
        used = {}
        if row.kind != "allocated":
            used[_SHARE] = tensors[index]
            base[index] += calibration.constants[_RESERVED].value
        if row.allocator == "expandable":
            used.pop(_SHARE, None)
        if row.kind == "process":
            base[index] += row.context_bytes + row.messages_bytes
            used[_RINGS] = row.rings_bytes
        for name, coefficient in used.items():
            design[index, MEMORY_CONSTANTS.index(name)] = coefficient
    return base, design

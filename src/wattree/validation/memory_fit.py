"""Fit what frameworks add to live tensors: the allocator's surplus, the context's bytes.

The tensors themselves are counted, not fitted. Three things are added, each seen by one kind of
measurement: a constant for `allocated`, a share and a constant for `reserved`, and the context of
a device type for `process`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.cost import Calibration
from wattree.validation.rows import MeasuredRow

__all__ = ["MEMORY_CONSTANTS", "MemoryRow", "fit_memory", "memory_bytes"]

Floats = NDArray[np.float64]

_ALLOCATED = "general.memory_allocated_bytes"
_SHARE = "general.memory_fragmentation"
_RESERVED = "general.memory_reserved_bytes"
_CONTEXTS = {
    "a100-sxm-80gb": "device.a100-sxm-80gb.memory_context_bytes",
    "v100-sxm2-32gb": "device.v100-sxm2-32gb.memory_context_bytes",
}
#: Names that `fit_memory` remakes.
MEMORY_CONSTANTS = (_ALLOCATED, _SHARE, _RESERVED, *_CONTEXTS.values())
#: Weak pull towards the start, as a share of each constant, so that what no row sees stays put.
_PRIOR_WEIGHT = 1e-3
_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """A measured peak and the live tensors predicted for it.

    Attributes:
        row: Where it comes from.
        device: Catalogue name of its device.
        kind: `allocated`, `reserved` or `process`.
        measured_bytes: What was measured. [B]
        tensor_bytes: Live tensors at the predicted peak. [B]
    """

    row: MeasuredRow
    device: str
    kind: str
    measured_bytes: float
    tensor_bytes: float


def memory_bytes(row: MemoryRow, calibration: Calibration) -> float:
    """Return the predicted figure of `row` under `calibration`. [B]"""
    values = np.array([calibration.constants[name].value for name in MEMORY_CONSTANTS])
    base, design = _design([row])
    return float((base + design @ values)[0])


def fit_memory(rows: Sequence[MemoryRow], start: Calibration) -> Calibration:
    """Return `start` with the memory constants refitted: least mean absolute relative error."""
    names = MEMORY_CONSTANTS
    values = np.array([start.constants[name].value for name in names])
    base, design = _design(rows)
    measured = np.array([row.measured_bytes for row in rows])
    target, matrix = (measured - base) / measured, design / measured[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
    solution = values
    for _ in range(_ROUNDS):  # iteratively reweighted least squares: absolute errors
        error = np.abs(target - matrix @ solution)
        weight = 1.0 / np.maximum(error, 5e-3)
        ridge = _PRIOR_WEIGHT * weight.mean() * scale**2
        normal = (matrix * weight[:, None]).T @ matrix + np.diag(ridge)
        right = (matrix * weight[:, None]).T @ target + ridge * values
        solution = np.linalg.solve(normal, right)
    return start.replaced(_positive(dict(zip(names, solution.tolist(), strict=True))))


def _positive(values: Mapping[str, float]) -> dict[str, float]:
    return {name: max(value, 0.0) for name, value in values.items()}


def _design(rows: Sequence[MemoryRow]) -> tuple[Floats, Floats]:
    """Return the part that is not fitted, and the coefficients of the constants."""
    base = np.array([row.tensor_bytes for row in rows])
    design = np.zeros((len(rows), len(MEMORY_CONSTANTS)))
    for index, row in enumerate(rows):
        used = {_ALLOCATED: 1.0} if row.kind == "allocated" else {_SHARE: base[index], _RESERVED: 1}
        if row.kind == "process":
            used[_CONTEXTS[row.device]] = 1.0
        for name, coefficient in used.items():
            design[index, MEMORY_CONSTANTS.index(name)] = coefficient
    return base, design

"""Measured rows as they are predicted, for what asks how far that errs and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wattree.cost import Calibration
from wattree.predict import Prediction
from wattree.validation.calibrate import CalibrationFit, linearized
from wattree.validation.left_out import FittedRows
from wattree.validation.memory_fit import MemoryRow
from wattree.validation.rows import MeasuredRow
from wattree.validation.validate import (
    _GROUPS,
    Progress,
    _fit_rows,
    _fitted_rows,
    _memory_rows,
    _memory_software,
    _Runner,
)


def fitted_groups(
    rows: Sequence[MeasuredRow], constants: Calibration, *, progress: Progress
) -> Iterator[FittedRows]:
    """Yield the rows that each fit is made of, as `constants` predict them.

    Args:
        rows: Measured rows.
        constants: That were fitted to them.
        progress: Called with (stage, done, total).
    """
    runner = _Runner(rows, progress)
    predictions = runner.predictions(constants)
    for is_network, members in _fit_rows(runner).items():
        found = []
        for row in members:
            prediction = predictions[row.expressed.row.row_id]
            if isinstance(prediction, Prediction):
                row.ratio = prediction.result.step_time_s / row.estimate_s(constants)
                found.append(row)
        priors = {n: p for n, p in _GROUPS[is_network].items() if n in constants.constants}
        start = np.full((len(found), len(priors)), np.nan)
        logs, jacobian = linearized(found, constants, start, tuple(priors), progress=progress)
        full = CalibrationFit(
            calibration=constants, spread={}, logs=logs, jacobian=jacobian, priors=priors
        )
        yield _fitted_rows(found, full, predictions)


def memory_rows(
    rows: Sequence[MeasuredRow], constants: Calibration, *, progress: Progress
) -> list[tuple[str, MemoryRow]]:
    """Return software and row of memory, as `constants` predict its tensors; arguments as above."""
    runner = _Runner([row for row in rows if row.mem_gib_per_gpu], progress)
    return _memory_software(runner, _memory_rows(runner, runner.predictions(constants), constants))

"""Measured rows as they are predicted, for what asks how far that errs and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattree.accounts.interval import facts_of
from wattree.accounts.known import JobFacts
from wattree.cost import Calibration
from wattree.predict import Prediction
from wattree.validation.calibrate import FitRow
from wattree.validation.left_out import FittedRows
from wattree.validation.memory_fit import MemoryRow
from wattree.validation.rows import MeasuredRow
from wattree.validation.validate import _GROUPS, Progress, _fit_rows, _memory_rows, _Runner


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
        found: list[tuple[FitRow, Prediction]] = []
        for row in members:
            prediction = predictions[row.expressed.row.row_id]
            if isinstance(prediction, Prediction):
                row.ratio = prediction.result.step_time_s / row.estimate_s(constants)
                found.append((row, prediction))
        priors = {n: p for n, p in _GROUPS[is_network].items() if n in constants.constants}
        yield FittedRows(
            rows=[row for row, _ in found],
            calibration=constants,
            priors=priors,
            parts=[prediction.result.interval_parts for _, prediction in found],
            facts=[_facts(row, constants) for row, _ in found],
        )


def _facts(row: FitRow, constants: Calibration) -> JobFacts:
    cluster = row.expressed.job.cluster
    return facts_of(row.setting(constants), cluster.node.device, cluster.devices)


def memory_rows(
    rows: Sequence[MeasuredRow], constants: Calibration, *, progress: Progress
) -> list[tuple[str, MemoryRow]]:
    """Return software and row of memory, as `constants` predict its tensors; arguments as above."""
    runner = _Runner([row for row in rows if row.mem_gib_per_gpu], progress)
    found = _memory_rows(runner, runner.predictions(constants), constants)
    software = {e.row.row_id: e.expressed.job.software for e in runner.entries if e.expressed}
    return [(software[row.row.row_id], row) for row in found]

"""A measured row as a job that `simulate` can run."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.errors import RowError, UnknownNameError, WattreeError
from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells
from wattree.validation.rows import MeasuredRow
from wattree.validation.sources import SOURCES, Expression, generic


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressed:
    """A row as a job.

    Attributes:
        row: What was expressed.
        job: The job.
        assumed: In words, every cell that the row leaves empty or open and how it was read.
        of_first_stage: Memory was read on a node that runs the first stage.
    """

    row: MeasuredRow
    job: Job
    assumed: tuple[str, ...]
    of_first_stage: bool = False


def express(row: MeasuredRow) -> Expressed:
    """Return `row` as a job, by the convention of its source or else the general one.

    Raises:
        RowError: The row does not say enough, or says what cannot be.
    """
    cells = Cells(row)
    try:
        _check_task(row)
        job = _expression(row.source_id)(cells)
    except RowError:
        raise
    except WattreeError as error:
        # A device that is not in the catalog or a strategy that cannot be: the row's fault.
        raise cells.refusal(str(error)) from error
    assert isinstance(job.strategy, StrategyOptions)
    if not job.strategy.ranks == job.cluster.devices == row.n_accel:
        raise cells.refusal(
            f"its degrees make {job.strategy.ranks} ranks on {job.cluster.devices} devices, "
            f"expected n_accel {row.n_accel}"
        )
    return Expressed(
        row=row, job=job, assumed=tuple(cells.assumed), of_first_stage=cells.of_first_stage
    )


def _expression(source_id: str) -> Expression:
    try:
        return SOURCES[source_id]
    except UnknownNameError:
        return generic.express


def _check_task(row: MeasuredRow) -> None:
    """Refuse what is no training step of a whole model with all its parameters."""
    if row.unreadable is not None:
        raise RowError(f"row {row.row_id}: {row.unreadable}")
    if (row.task or "pretrain").split(" ")[0] not in ("pretrain", "train"):
        raise RowError(f"row {row.row_id}: task '{row.task}' is no plain pre-training")

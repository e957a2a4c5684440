"""The registry of sources and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from wattree.errors import RowError
from wattree.hardware import Cluster
from wattree.job import Data, Job, ModelSource
from wattree.registry import Registry
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells, Degrees

__all__ = ["SOURCES", "Expression", "expert_split", "row_job"]


class Expression(Protocol):
    """The convention of one source."""

    def __call__(self, cells: Cells) -> Job:
        """Return the row as a job; note every assumption in `cells`.

        Raises:
            RowError: The row does not say enough.
        """


SOURCES: Registry[Expression] = Registry(kind="source of rows", group="wattree.row_sources")


def row_job(
    cells: Cells,
    *,
    model: ModelSource,
    cluster: Cluster,
    strategy: StrategyOptions,
    software: str,
    traits: Mapping[str, Any] | None = None,
) -> Job:
    """Return the job of a row whose model, cluster and strategy are known.

    Raises:
        RowError: The global batch does not split into whole micro-batches.
    """
    row = cells.row
    samples = cells.whole("global_batch")
    per_pass = strategy.replicas * strategy.pipeline.micro_batch
    if samples % per_pass:
        message = f"global batch {samples} does not split over {strategy.replicas} replicas"
        raise RowError(
            f"row {row.row_id}: {message} of micro-batch {strategy.pipeline.micro_batch}"
        )
    if row.grad_accum is not None and row.grad_accum != samples // per_pass:
        message = f"found grad_accum {row.grad_accum}, but the batch sizes give"
        raise RowError(f"row {row.row_id}: {message} {samples // per_pass}")
    return Job(
        model=model,
        data=Data(sequence_length=cells.whole("seq_len"), global_batch=samples),
        precision=cells.precision().value,
        optimizer=cells.optimizer(),
        cluster=cluster,
        strategy=strategy,
        software=software,
        source=f"row {row.row_id} of {row.source_id}",
        traits=dict(traits or {}),
    )


def expert_split(cells: Cells, degrees: Degrees) -> tuple[int, int]:
    """Return the mesh's `dp` and `ep`.

    A row's `ep` counts the ranks that hold different experts, tensor ranks among them (experts
    are whole on each rank); the mesh's `ep` is the part of the replicas over which they spread.

    Raises:
        RowError: The ranks that hold experts are not made of whole tensor groups and replicas.
    """
    if degrees.ep == 1:
        return degrees.dp, 1
    if degrees.ep % degrees.tp:
        message = f"ep {degrees.ep} is no multiple of tp {degrees.tp}, over which it extends"
        raise RowError(f"row {cells.row.row_id}: {message}")
    ep = degrees.ep // degrees.tp
    if degrees.dp % ep:
        message = f"ep {degrees.ep} over tp {degrees.tp} needs {ep} replicas of {degrees.dp}"
        raise RowError(f"row {cells.row.row_id}: {message}")
    if degrees.tp > 1:
        cells.assume("experts whole on each rank: spread over data and tensor ranks together")
    return degrees.dp // ep, ep

"""The registry of sources and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from wattree.hardware import Cluster
from wattree.job import Data, Job, ModelSource
from wattree.registry import Registry
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells, RowDegrees
from wattree.validation.clusters import row_cluster
from wattree.validation.shapes import row_model


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
    strategy: StrategyOptions,
    software: str,
    model: ModelSource | None = None,
    cluster: Cluster | None = None,
    traits: Mapping[str, Any] | None = None,
    left_open: tuple[str, ...] = (),
) -> Job:
    """Return the job of a row whose strategy is known.

    Args:
        cells: The row.
        strategy: As the source has it.
        software: Family.
        model, cluster: None: what the row's own cells say.
        traits: Overrides of the family's defaults.
        left_open: Keys of the strategy that the row leaves to its software.

    Raises:
        RowError: The global batch does not split into whole micro-batches, or the row does not say
            enough of its model and cluster.
    """
    row = cells.row
    model, cluster = model or row_model(cells), cluster or row_cluster(cells)
    samples = cells.whole("global_batch")
    per_pass = strategy.replicas * strategy.pipeline.micro_batch
    if samples % per_pass:
        raise cells.refusal(
            f"global batch {samples} does not split over {strategy.replicas} replicas "
            f"of micro-batch {strategy.pipeline.micro_batch}"
        )
    if row.grad_accum is not None and row.grad_accum != samples // per_pass:
        raise cells.refusal(
            f"found grad_accum {row.grad_accum}, but the batch sizes give {samples // per_pass}"
        )
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
        released=row.source_date,
        left_open=left_open,
    )


def expert_split(cells: Cells, degrees: RowDegrees) -> tuple[int, int]:
    """Return the mesh's `dp` and `ep`.

    A row's `ep` counts the ranks that hold different experts, tensor ranks among them (experts
    are whole on each rank); the mesh's `ep` is the part of the replicas over which they spread.

    Raises:
        RowError: The ranks that hold experts are not made of whole tensor groups and replicas.
    """
    if degrees.ep == 1:
        return degrees.dp, 1
    if degrees.ep % degrees.tp:
        raise cells.refusal(
            f"ep {degrees.ep} is no multiple of tp {degrees.tp}, over which it extends"
        )
    ep = degrees.ep // degrees.tp
    if degrees.dp % ep:
        raise cells.refusal(
            f"ep {degrees.ep} over tp {degrees.tp} needs {ep} replicas of {degrees.dp}"
        )
    if degrees.tp > 1:
        cells.assume("experts whole on each rank: spread over data and tensor ranks together")
    return degrees.dp // ep, ep

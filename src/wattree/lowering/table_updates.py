"""How embedding tables are updated: what is assumed, and what the optimizer refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wattree.cost import Software
from wattree.graph import ModelGraph, OperatorKind
from wattree.job import Job
from wattree.job.optimizers import DENSE_OPTIMIZERS
from wattree.strategy.parts import tables_of

#: Tables with a smaller share of the parameters are updated in next to no time.
_SLIGHT: Final = 0.01
_SPARSE = (
    "{} of torch.optim takes no sparse gradients; use adagrad or sgd, SparseAdam for the tables, "
    "or fused optimizers of TorchRec"
)


def with_table_updates(job: Job, model: ModelGraph, software: Software) -> Job:
    """Return the job with how its embedding tables are updated, where it does not say."""
    elements = sum(table.elements for table in tables_of(model))
    if "sparse_gradients" in job.traits or software.sparse_gradients:
        return job
    if elements <= _SLIGHT * model.parameters:
        return job
    words = (
        f"embedding tables have dense gradients, and {job.optimizer} updates all of their rows in "
        "each step; "
    )
    words += (
        _SPARSE.format(job.optimizer)
        if _refuses(job, software)
        else "as TorchRec and MLPerf's DLRM train, only those looked up: traits: "
        "{sparse_gradients: true}"
    )
    return replace(job, assumed=(*job.assumed, words))


def has_trained_tables(model: ModelGraph) -> bool:
    """Return whether an embedding table is trained, of positions or samples."""
    return any(
        parameter.trainable
        for operator in model.operators
        if operator.kind is OperatorKind.EMBEDDING
        for parameter in operator.parameters
    )


def refused_updates(job: Job, model: ModelGraph, software: Software) -> tuple[str, ...]:
    """Return the warning of sparse gradients that the optimizer refuses, if any."""
    refused = software.sparse_gradients and _refuses(job, software)
    if not refused or not has_trained_tables(model):
        return ()
    return (f"traits.sparse_gradients: {_SPARSE.format(job.optimizer)}; predicted all the same",)


def _refuses(job: Job, software: Software) -> bool:
    return software.torch_modules and job.optimizer in DENSE_OPTIMIZERS

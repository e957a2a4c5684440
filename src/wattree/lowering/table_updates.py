"""How embedding tables are updated: what is assumed, and what the optimizer refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wattree.cost import Software
from wattree.cost.families import OF_PYTORCH
from wattree.graph import ModelGraph
from wattree.job import Job
from wattree.job.optimizers import DENSE_OPTIMIZERS
from wattree.strategy.parts import tables_of

#: Tables with a smaller share of the parameters are updated in next to no time.
_SLIGHT: Final = 0.01
_SPARSE = (
    "takes no sparse gradients in torch.optim; use adagrad or sgd, SparseAdam for the tables, or "
    "fused optimizers of TorchRec"
)


def with_table_updates(job: Job, model: ModelGraph, software: Software) -> Job:
    """Return the job with how its embedding tables are updated, where it does not say."""
    elements = sum(table.elements for table in tables_of(model))
    if "sparse_gradients" in job.traits or software.sparse_gradients:
        return job
    if elements <= _SLIGHT * model.parameters:
        return job
    refuses = f", which {job.optimizer} {_SPARSE}" if _refuses(job) else ""
    words = (
        f"embedding tables have dense gradients, and {job.optimizer} updates all of their rows in "
        "each step; as TorchRec and MLPerf's DLRM train, only those looked up: traits: "
        "{sparse_gradients: true}"
    )
    return replace(job, assumed=(*job.assumed, words + refuses))


def refused_updates(job: Job, model: ModelGraph, software: Software) -> tuple[str, ...]:
    """Return the warning of sparse gradients that the optimizer refuses, if any."""
    if not software.sparse_gradients or not _refuses(job) or not tables_of(model):
        return ()
    return (f"traits.sparse_gradients: {job.optimizer} {_SPARSE}; predicted all the same",)


def _refuses(job: Job) -> bool:
    return job.software in OF_PYTORCH and job.optimizer in DENSE_OPTIMIZERS

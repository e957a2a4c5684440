"""A job's model source → model graph, adapters applied."""

from __future__ import annotations

from wattree.capture import load_model, transformer_from_mapping
from wattree.capture.adapters import freeze, with_lora
from wattree.graph import ModelGraph
from wattree.job import Job

__all__ = ["model_of"]


def model_of(job: Job) -> ModelGraph:
    """Return the model graph that `job` names.

    Raises:
        ModelError: The model cannot be read or built.
        UnknownNameError: No catalogue entry has that name.
    """
    source = job.model
    if source.transformer is not None:
        graph = transformer_from_mapping(source.transformer, f"{job.source}: model.transformer")
    else:
        assert source.name is not None
        graph = load_model(source.name)
    if source.lora is not None:
        graph = with_lora(graph, rank=source.lora.rank, targets=source.lora.targets)
    if source.freeze:
        graph = freeze(graph, source.freeze)
    return graph

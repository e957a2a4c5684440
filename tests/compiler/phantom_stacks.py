"""Stacks of phantom layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.compiler.jobs import Job
from wattree.capture import build_ffn
from wattree.graph import ModelGraph
from wattree.job import Ffn
from wattree.lowering.passes.phantom import with_phantoms
from wattree.strategy import StrategyOptions

__all__ = ["WIDTH", "changed_job", "phantom", "stack"]

#: Bytes of an element at bf16.
WIDTH = 2.0


def stack(width: int, depth: int = 3, **changes: Any) -> ModelGraph:
    """Return a stack of square layers without biases."""
    given: dict[str, Any] = {"width": width, "depth": depth, "bias": False}
    return build_ffn(Ffn(**{**given, "inputs": width, "outputs": width, **changes}))


def phantom(ranks: int, ghosts: int, **changes: Any) -> StrategyOptions:
    """Return phantom layers over `ranks`."""
    return StrategyOptions(phantom=True, tp=ranks, ghosts=ghosts, **changes)


def changed_job(job: Job) -> Job:
    """Return the job with the model that is trained."""
    model, tree = with_phantoms(job.model, job.strategy.tree, dict(job.strategy.mesh.axes))
    return replace(job, model=model, strategy=replace(job.strategy, tree=tree))

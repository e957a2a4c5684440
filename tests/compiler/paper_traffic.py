"""What a compiled layer sends."""

from __future__ import annotations

from tests.compiler.jobs import (
    Job,
    moved_bytes,
)

__all__ = ["SYNCHRONISING", "sent_per_step"]
SYNCHRONISING = ("gradients.reduce", "parameters.update", "parameters.gather")


def sent_per_step(job: Job) -> float:
    """Return the bytes that one rank sends for parameters and gradients in a step."""
    graph = job.compiled().graph
    return moved_bytes(graph, *(name for name in SYNCHRONISING if name in graph.names))

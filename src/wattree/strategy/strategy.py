"""A whole strategy: mesh, schedule and tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from wattree.strategy.mesh import Mesh
from wattree.strategy.tree import StrategyTree

__all__ = ["Schedule", "Strategy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How micro-batches flow through the pipeline stages.

    Attributes:
        name: `gpipe`, `1f1b` or `interleaved`.
        micro_batches: Micro-batches per step and replica.
        virtual_stages: Chunks of layers that each pipeline rank holds.
        stage_layers: Layers of each chunk in model order (`pp * virtual_stages` numbers); None
            for the most even split.
    """

    name: str = "1f1b"
    micro_batches: int = 1
    virtual_stages: int = 1
    stage_layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A complete answer to "who computes and stores what, and when".

    Attributes:
        mesh: Ranks as a grid.
        schedule: Order of micro-batches.
        tree: Choices by module.
        preset: Names of the presets it was composed from, for people.
        overlap_gradients, overlap_parameters: Hide data-parallel traffic behind compute; None
            leaves it to the software family's habit.
        overlap_tensor: Hide tensor-parallel traffic behind the neighbouring products; likewise.
        bucket_bytes: Gradients reduced together; None: as the software does.
    """

    mesh: Mesh
    schedule: Schedule
    tree: StrategyTree
    preset: tuple[str, ...] = field(default=())
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None
    overlap_tensor: bool | None = None
    bucket_bytes: float | None = None

"""Which layers of a model this rank has, where it is cut into pipeline chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from wattree.runtime.recipe import Recipe
from wattree.strategy import chunk_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """A part of a model: some of its layers in a row.

    Attributes:
        chunk: Its number in model order.
        chunks: How many the model is cut into.
        begin, end: Its first layer, and the one after its last.
        route: Number of the way through the model that it is on, where each part is held twice.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    route: int = 0

    @property
    def is_first(self) -> bool:
        """Return whether the rank has the operators before all layers."""
        return self.chunk == 0

    @property
    def is_last(self) -> bool:
        """Return whether the rank has the operators after all layers."""
        return self.chunk == self.chunks - 1


def layers_of_stage(recipe: Recipe, layers: int, stage: int) -> tuple[StageLayers, ...]:
    """Return the parts of a model that the ranks of a stage have."""
    if recipe.options.pp == 1:
        return (StageLayers(chunk=0, chunks=1, begin=0, end=layers),)
    placed = recipe.schedule.placed(recipe.options.pp)
    chunks = placed.model_chunks
    counts = recipe.schedule.stage_layers or chunk_layers(layers, chunks)
    ends = list(accumulate(counts))
    mine = [
        (placed.model_chunk(stage, chunk), placed.route(stage, chunk))
        for chunk in range(placed.chunks)
    ]
    return tuple(
        StageLayers(
            chunk=chunk,
            chunks=chunks,
            begin=ends[chunk] - counts[chunk],
            end=ends[chunk],
            route=route,
        )
        for chunk, route in mine
    )

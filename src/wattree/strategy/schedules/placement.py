"""Placement of model chunks on pipeline stages, and the route of a micro-batch through them.

Three ways to lay `chunks` on `stages`:

- looped: stage `s` holds the chunks `s`, `s + p`, `s + 2p`, ...; after the last stage comes the
  first one again (Narayanan et al., SC 2021). With one chunk a stage, the plain pipeline.
- folded: stage `s` holds the chunks `s` and `2p - 1 - s`, so the way goes down and up a V and
  turns on the last stage without a transfer (Qi et al. 2024, "Pipeline Parallelism with
  Controllable Memory").
- two-way: the chunks are held twice. Stage `s` holds the chunks `s` and `p - 1 - s`; the first
  half of the micro-batches goes up, the other half down (DeepSeek-V3, 2024, §3.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple


class Place(NamedTuple):
    """A chunk of a stage, by its number on the stage."""

    stage: int
    chunk: int


class Hop(NamedTuple):
    """The transfer from one place to the next.

    Attributes:
        heading: +1 to the next stage (after the last one the first), -1 to the previous one, 0
            where it stays on the stage.
    """

    place: Place
    heading: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlacement:
    """Assignment of chunks to stages.

    Attributes:
        stages: Pipeline degree.
        chunks: Chunks on each stage.
        routes: Ways through the model, each the places in model order.
        after, before: Place → where its result, and its gradient, go next; absent at the ends.
    """

    stages: int
    chunks: int
    routes: tuple[tuple[Place, ...], ...]
    headings: tuple[tuple[int, ...], ...]
    after: Mapping[Place, Hop] = field(init=False, repr=False, compare=False)
    before: Mapping[Place, Hop] = field(init=False, repr=False, compare=False)
    _at: Mapping[Place, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        after, before = {}, {}
        for route, headings in zip(self.routes, self.headings, strict=True):
            for place, target, heading in zip(route, route[1:], headings, strict=False):
                after[place] = Hop(target, heading)
                before[target] = Hop(place, -heading)
        at = {
            place: (number, position)
            for number, route in enumerate(self.routes)
            for position, place in enumerate(route)
        }
        object.__setattr__(self, "after", after)
        object.__setattr__(self, "before", before)
        object.__setattr__(self, "_at", at)

    @property
    def model_chunks(self) -> int:
        """Number of chunks of the model."""
        return len(self.routes[0])

    @property
    def copies(self) -> int:
        """Number of copies of each chunk."""
        return len(self.routes)

    def model_chunk(self, stage: int, chunk: int) -> int:
        """Return the model chunk stored at a place, numbered in model order."""
        return self._at[Place(stage, chunk)][1]

    def route(self, stage: int, chunk: int) -> int:
        """Return the number of the route through a place."""
        return self._at[Place(stage, chunk)][0]

    def micro_batches(self, place: Place, micro_batches: int) -> range:
        """Return the micro-batches that pass `place`, of `micro_batches` in a step."""
        route = self._at[place][0]
        share = -(-micro_batches // len(self.routes))
        return range(route * share, min((route + 1) * share, micro_batches))


@lru_cache(maxsize=256)  # asked for again with every strategy of a search
def looped(stages: int, chunks: int) -> ChunkPlacement:
    """Return chunks assigned to the stages round-robin."""
    route = tuple(Place(s, c) for c in range(chunks) for s in range(stages))
    return ChunkPlacement(
        stages=stages,
        chunks=chunks,
        routes=(route,),
        headings=((1 if stages > 1 else 0,) * (len(route) - 1),),
    )


@lru_cache(maxsize=256)
def folded(stages: int, chunks: int = 2) -> ChunkPlacement:
    """Return two chunks a stage, first to last stage and back."""
    del chunks
    down = tuple(Place(s, 0) for s in range(stages))
    up = tuple(Place(s, 1) for s in reversed(range(stages)))
    headings = (*(1,) * (stages - 1), 0, *(-1,) * (stages - 1))
    return ChunkPlacement(stages=stages, chunks=2, routes=(down + up,), headings=(headings,))


@lru_cache(maxsize=256)
def two_way(stages: int, chunks: int = 2) -> ChunkPlacement:
    """Return every chunk stored twice, one copy per direction."""
    del chunks
    return ChunkPlacement(
        stages=stages,
        chunks=2,
        routes=(
            tuple(Place(s, 0) for s in range(stages)),
            tuple(Place(s, 1) for s in reversed(range(stages))),
        ),
        headings=((1,) * (stages - 1), (-1,) * (stages - 1)),
    )


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Return layers per chunk in model order, as even as possible.

    Where it does not divide, the first and the last chunks are the shorter ones: they hold the
    embedding and the loss besides (as Llama 3.1 405B was cut: 126 layers on 128 slots).
    """
    base, extra = divmod(layers, chunks)
    shorter = chunks - extra
    # From the outside in, alternating ends: last, first, last but one, ...
    outside = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    short = set(outside[:shorter]) if extra else set()
    return tuple(base + (0 if not extra or index in short else 1) for index in range(chunks))


#: Name in a job file → function of (stages, chunks).
PLACEMENTS: Mapping[str, Callable[[int, int], ChunkPlacement]] = {
    "looped": looped,
    "folded": folded,
    "two-way": two_way,
}

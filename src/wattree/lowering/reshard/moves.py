"""The changes of a placement by one collective, or by work on a single rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, combinations, product

from wattree.lowering.reshard.placement import TensorPlacement

Shards = tuple[tuple[str, ...], ...]


class MoveKind(StrEnum):
    """Steps of a layout change, those first that leave less for the others to move."""

    LOCAL = "local"  # a slice, or zeros around what a rank has
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    TRANSFER = "transfer"  # every device fetches what it lacks by messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step between two placements on a mesh: its kind, and the axes that it runs over."""

    kind: MoveKind
    axes: tuple[str, ...]
    after: TensorPlacement


def moves(
    at: TensorPlacement, axes: Sequence[str], sums: frozenset[str], *, ordered: bool
) -> Iterator[Move]:
    """Yield the steps from a placement.

    Args:
        sums: Axes that may hold summands in the end.
        ordered: The parts of a dim lie in order, outermost axis first. Then only the innermost
            axes can leave a dim, and join one as its innermost. Otherwise which rank has which
            part is free, as it is to a program that chooses once for all of its tensors.
    """
    yield from _local(at, axes, sums, ordered=ordered)
    yield from _reductions(at, ordered=ordered)
    for left, rest in _removals(at.shards, ordered=ordered):
        yield Move(
            kind=MoveKind.ALL_GATHER,
            axes=left,
            after=TensorPlacement(shards=rest, partial=at.partial),
        )
        for shards in joined(rest, left, ordered=ordered, avoid=at.shards):
            after = TensorPlacement(shards=shards, partial=at.partial)
            yield Move(kind=MoveKind.ALL_TO_ALL, axes=left, after=after)


def _local(
    at: TensorPlacement, axes: Sequence[str], sums: frozenset[str], *, ordered: bool
) -> Iterator[Move]:
    """Yield slices, one axis at a time, and replicas or parts that become summands."""
    for axis in at.replicas(axes):
        for shards in joined(at.shards, (axis,), ordered=ordered):
            after = TensorPlacement(shards=shards, partial=at.partial)
            yield Move(kind=MoveKind.LOCAL, axes=(axis,), after=after)
        if axis in sums:
            after = TensorPlacement(shards=at.shards, partial=at.partial | {axis})
            yield Move(kind=MoveKind.LOCAL, axes=(axis,), after=after)
    for left, rest in _removals(at.shards, ordered=ordered):
        if set(left) <= sums:
            after = TensorPlacement(shards=rest, partial=at.partial | set(left))
            yield Move(kind=MoveKind.LOCAL, axes=left, after=after)


def _reductions(at: TensorPlacement, *, ordered: bool) -> Iterator[Move]:
    for summed in subsets(tuple(sorted(at.partial))):
        partial = at.partial - set(summed)
        after = TensorPlacement(shards=at.shards, partial=partial)
        yield Move(kind=MoveKind.ALL_REDUCE, axes=summed, after=after)
        for shards in joined(at.shards, summed, ordered=ordered):
            after = TensorPlacement(shards=shards, partial=partial)
            yield Move(kind=MoveKind.REDUCE_SCATTER, axes=summed, after=after)


def _removals(shards: Shards, *, ordered: bool) -> Iterator[tuple[tuple[str, ...], Shards]]:
    """Yield axes that can leave their dims together, and the remaining axes of the dims."""
    choices = [
        [axes[start:] for start in range(len(axes) + 1)] if ordered else [(), *subsets(axes)]
        for axes in shards
    ]
    for chosen in product(*choices):
        left = tuple(chain(*chosen))
        if left:
            yield left, tuple(tuple(a for a in axes if a not in left) for axes in shards)


def joined(
    shards: Shards, axes: tuple[str, ...], *, ordered: bool, avoid: Shards | None = None
) -> Iterator[Shards]:
    """Yield the dims with each of `axes` as a further axis of one; not of that which it left."""
    for dims in product(range(len(shards)), repeat=len(axes)):
        pairs = list(zip(axes, dims, strict=True))
        if avoid is not None and any(axis in avoid[dim] for axis, dim in pairs):
            continue
        longer = [
            (*own, *(axis for axis, to in pairs if to == dim)) for dim, own in enumerate(shards)
        ]
        yield tuple(own if ordered else tuple(sorted(own)) for own in longer)


def subsets(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the subsets that are not empty."""
    return chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1))

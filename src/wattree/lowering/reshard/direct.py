"""The fewest and smallest collectives between two layouts, whatever the degrees of their axes.

Programs of blocks are compiled before degrees are known, so the price of a change is no time: first
how often an axis moves, then what a rank receives where every degree is 2, then the collectives. As
every axis moves at least once, each goes straight to where it is wanted, and axes that move alike
go together. Reductions come first, as they leave less to move, and gathers last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from wattree.lowering.reshard.moves import Move, MoveKind, moves
from wattree.lowering.reshard.placement import TensorPlacement
from wattree.lowering.reshard.search import cheapest

#: Place of an axis that holds summands.
SUMMANDS = -1
_ReshardEdge = tuple[tuple[float, ...], tuple[MoveKind, tuple[int, ...]], TensorPlacement]


@cache
def direct_moves(
    changes: tuple[tuple[int | None, int | None], ...],
) -> tuple[tuple[MoveKind, tuple[int, ...]], ...]:
    """Return the steps of a change, and the numbers of the axes that each is over.

    Args:
        changes: Of axes that move unlike, the place before and after: a number for whatever can be
            split, `SUMMANDS`, or None for replicas.
    """
    places = sorted({p for change in changes for p in change if p is not None and p != SUMMANDS})
    names = tuple(str(number) for number in range(len(changes)))
    have, want = (_placement(names, [change[end] for change in changes], places) for end in (0, 1))

    def edges(at: TensorPlacement) -> list[_ReshardEdge]:
        return [
            (
                _price(at, move, len(at.partial - want.partial)),
                (move.kind, tuple(int(axis) for axis in move.axes)),
                move.after,
            )
            for move in moves(at, names, want.partial, ordered=False)
        ]

    def bound(at: TensorPlacement) -> tuple[float, ...]:
        away = sum(_place(at, axis) != _place(want, axis) for axis in names)
        return float(away), 0.0, 0.0, 0.0

    return cheapest(have, want, edges, bound=bound)


def _placement(
    names: Sequence[str], slots: Sequence[int | None], places: Sequence[int]
) -> TensorPlacement:
    at = list(zip(names, slots, strict=True))
    return TensorPlacement(
        shards=tuple(tuple(axis for axis, slot in at if slot == place) for place in places),
        partial=frozenset(axis for axis, slot in at if slot == SUMMANDS),
    )


def _place(at: TensorPlacement, axis: str) -> int | None:
    if axis in at.partial:
        return SUMMANDS
    return next((dim for dim, axes in enumerate(at.shards) if axis in axes), None)


def _price(at: TensorPlacement, move: Move, unsummed: int) -> tuple[float, ...]:
    """Return the number of moved axes, the received bytes per byte, and the collectives.

    Where all that is equal, summands are added before they are exchanged.
    """
    if move.kind is MoveKind.LOCAL:
        return float(len(move.axes)), 0.0, 0.0, 0.0
    gathers = move.kind is MoveKind.ALL_GATHER
    held = 0.5 ** len((move.after if gathers else at).split)
    others = 1.0 - 0.5 ** len(move.axes)
    twice = 2.0 if move.kind is MoveKind.ALL_REDUCE else 1.0
    early = unsummed if move.kind is MoveKind.ALL_TO_ALL else 0
    return float(len(move.axes)), twice * held * others, 1.0, float(early)

"""Layouts of tensors on the mesh, and the collectives that convert between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from wattree.graph import Operand, Operator
from wattree.lowering.program import CollectiveKind, LocalSize
from wattree.lowering.reshard.moves import Move, MoveKind, moves
from wattree.lowering.reshard.placement import TensorPlacement
from wattree.lowering.reshard.search import cheapest
from wattree.lowering.spread import Routed
from wattree.strategy import OWNER

#: Place of an axis that holds summands.
SUMMANDS = -1
_ReshardEdge = tuple[tuple[float, ...], tuple[MoveKind, tuple[int, ...]], TensorPlacement]


#: Axis → position of the dim it shards, PARTIAL or OWNED. Absent axes hold replicas.
Layout = Mapping[str, int]

PARTIAL = SUMMANDS
#: Whole on one rank of the axis, given by the operator's owner.
OWNED = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One collective of a layout change.

    Attributes:
        axes: Mesh axes it runs over, together.
        size: Elements of its whole buffer (nccl-tests' size).
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    size: LocalSize


def layout_of(operand: Operand, split: Mapping[str, tuple[str, ...]], *, partial: bool) -> Layout:
    """Return the layout of `operand` if its operator's dims are split as `split`.

    Args:
        operand: Tensor as the operator sees it.
        split: Iteration dim → axes.
        partial: Axes on dims that do not index the operand leave partial sums (outputs, and
            gradients of inputs); otherwise they hold replicas (inputs, gradients of outputs).
    """
    layout: dict[str, int] = {}
    for dim, axes in split.items():
        for axis in axes:
            if dim == OWNER:
                layout[axis] = OWNED
            elif dim in operand.dims:
                layout[axis] = operand.dims.index(dim)
            elif partial:
                layout[axis] = PARTIAL
    return layout


def local_part(
    operator: Operator,
    dims: Iterable[str],
    split: Mapping[str, tuple[str, ...]],
    *,
    factor: float = 1.0,
) -> LocalSize:
    """Return `factor` times the product of the dims of an operator, each split over its axes."""
    batch, seq = 0, 0
    divisors: tuple[str, ...] = ()
    for name in dims:  # one size, not one for each: called by the hundred thousand
        extent = operator.dim(name).extent
        factor *= extent.coefficient
        batch += extent.batch
        seq += extent.seq
        divisors += split.get(name, ())
    return LocalSize(factor, batch, seq, divisors)


def local_size(operator: Operator, operand: Operand, layout: Layout) -> LocalSize:
    """Return the elements of `operand` that one rank holds under `layout`, on average."""
    size = local_part(operator, operand.dims, {}, factor=operand.fraction)
    size = size.over(tuple(axis for axis, position in layout.items() if position != PARTIAL))
    return size.to_ranks(routed_by(layout, expert_position(operand)))


def routed_by(layout: Layout, experts_at: int | None) -> Routed:
    """Return by what a tensor of this layout differs from rank to rank."""
    if OWNED in layout.values():
        return "vectors"
    return "tokens" if experts_at is not None and experts_at in layout.values() else ""


def expert_position(operand: Operand) -> int | None:
    """Return the position of the expert dim in a tensor of routed tokens; None for others."""
    routed = "expert" in operand.dims and "seq" in operand.dims
    return operand.dims.index("expert") if routed else None


def conversions(
    size: LocalSize, have: Layout, want: Layout
) -> tuple[tuple[Conversion, ...], LocalSize]:
    """Return the collectives that convert `have` to `want`, and the local size afterwards.

    `reshard.direct` chooses them. Axes with the same change are converted together.
    """
    changes: dict[tuple[int | None, int | None], list[str]] = {}
    order = [*have, *(axis for axis in want if axis not in have)]
    for axis in order:
        change = have.get(axis), want.get(axis)
        if change[0] != change[1]:
            changes.setdefault(change, []).append(axis)
    steps = []
    for kind, numbers in direct_moves(tuple(changes)):
        moved = {axis for number in numbers for axis in changes[list(changes)[number]]}
        axes = tuple(axis for axis in order if axis in moved)
        gains = tuple(axis for axis in axes if _splits(have, axis) < _splits(want, axis))
        loses = tuple(axis for axis in axes if _splits(have, axis) > _splits(want, axis))
        before, size = size, size.over(gains).without(loses)
        if kind is not MoveKind.LOCAL:
            whole = size if kind is MoveKind.ALL_GATHER else before
            steps.append(Conversion(kind=CollectiveKind(kind.value), axes=axes, size=whole))
    return tuple(steps), size


def _splits(layout: Layout, axis: str) -> bool:
    """Return whether ranks along an axis hold parts of the tensor."""
    return layout.get(axis, PARTIAL) != PARTIAL


@cache
def direct_moves(
    changes: tuple[tuple[int | None, int | None], ...],
) -> tuple[tuple[MoveKind, tuple[int, ...]], ...]:
    """Return the steps of a change, and the numbers of the axes that each is over.

    Degrees are not known yet, so the price of a change is no time: first how often an axis moves,
    then what a rank receives where every degree is 2, then the collectives. As every axis moves at
    least once, each goes straight to where it is wanted, and axes that move alike go together.

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

"""Layouts of tensors on the mesh, and the collectives that convert between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.graph import Operand, Operator
from wattree.lowering.program import CollectiveKind, LocalSize
from wattree.lowering.reshard.direct import SUMMANDS, direct_moves
from wattree.lowering.reshard.moves import MoveKind
from wattree.strategy import OWNER

#: Axis → position of the dim it shards, PARTIAL or OWNED. Absent axes hold replicas.
Layout = Mapping[str, int]

PARTIAL = SUMMANDS
#: Whole on one rank of the axis, given by the operator's owner.
OWNED = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One collective of a layout change.

    Attributes:
        kind: Which collective.
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


def local_size(operator: Operator, operand: Operand, layout: Layout) -> LocalSize:
    """Return the elements of `operand` that one rank holds under `layout`, on average."""
    size = LocalSize(operand.fraction)
    for dim in operand.dims:
        size = size.times(LocalSize.of(operator.dim(dim).extent))
    size = size.over(tuple(axis for axis, position in layout.items() if position != PARTIAL))
    routed = expert_position(operand) in layout.values() or OWNED in layout.values()
    return size.to_experts(routed=routed)


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

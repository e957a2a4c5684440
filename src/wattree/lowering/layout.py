"""How a tensor lies on the mesh, and which collectives turn one layout into another.

The table (same axis, producer → consumer): partial → replicate is an all-reduce, partial → shard
a reduce-scatter, shard → replicate an all-gather, shard → shard of another dim an all-to-all,
replicate → shard a local slice. Nothing else decides about collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.graph import Operand, Operator
from wattree.lowering.program import CollectiveKind, LocalSize
from wattree.strategy import OWNER

#: Axis → position of the dim it shards, PARTIAL or OWNED. Absent axes hold replicas.
Layout = Mapping[str, int]

PARTIAL = -1
#: Whole on one rank of the axis, which one the operator's owner says.
OWNED = -2
REPLICATED: Layout = {}


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
    """Return how `operand` lies if its operator's dims are split as `split`.

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
    """Return which dim of a tensor of routed tokens is that of the experts; None for others."""
    routed = "expert" in operand.dims and "seq" in operand.dims
    return operand.dims.index("expert") if routed else None


def conversions(
    size: LocalSize, have: Layout, want: Layout
) -> tuple[tuple[Conversion, ...], LocalSize]:
    """Return the collectives that turn `have` into `want`, and the local size afterward.

    Reductions come first (they shrink or keep the tensor), then exchanges, then gathers.
    """
    kinds: dict[CollectiveKind, list[str]] = {kind: [] for kind in _ORDER}
    sliced = []
    for axis in [*have, *(axis for axis in want if axis not in have)]:
        before, after = have.get(axis), want.get(axis)
        if before == after:
            continue
        if before is None:
            sliced.append(axis)
        elif before == PARTIAL:
            kind = CollectiveKind.ALL_REDUCE if after is None else CollectiveKind.REDUCE_SCATTER
            kinds[kind].append(axis)
        else:
            kind = CollectiveKind.ALL_GATHER if after is None else CollectiveKind.ALL_TO_ALL
            kinds[kind].append(axis)
    size = size.over(tuple(sliced))
    steps = []
    for kind in _ORDER:
        axes = tuple(kinds[kind])
        if not axes:
            continue
        gathered = kind is CollectiveKind.ALL_GATHER
        steps.append(
            Conversion(kind=kind, axes=axes, size=size.without(axes) if gathered else size)
        )
        if gathered:
            size = size.without(axes)
        elif kind is CollectiveKind.REDUCE_SCATTER:
            size = size.over(axes)
    return tuple(steps), size


_ORDER = (
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.ALL_GATHER,
)

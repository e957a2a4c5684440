"""Pass 1: which iteration dims of each operator are split over which axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.errors import StrategyError
from wattree.graph import Block, DimRole, Operator, window_dims
from wattree.lowering.layout import OWNED, PARTIAL, Layout, layout_of
from wattree.strategy import OWNER, Choices

#: Iteration dim → axes it is split over, outermost first.
Split = Mapping[str, tuple[str, ...]]


def operator_splits(
    block: Block,
    choices: Sequence[Choices],
    input_layouts: Mapping[str, Layout],
    active: frozenset[str],
    where: str,
) -> tuple[Split, ...]:
    """Return the split of every operator: explicit choices first, then those of its inputs.

    Args:
        choices: One per operator.
        input_layouts: How the block's inputs lie.
        active: Axes that matter (those of degree above 1, in a single strategy).
        where: Path for messages.

    Raises:
        StrategyError: An axis is used twice by an operator, or splits an opaque dim.
    """
    layouts = dict(input_layouts)
    splits = []
    misfits: dict[str, str] = {}
    for operator, choice in zip(block.operators, choices, strict=True):
        split = _explicit(operator, choice, active, f"{where}.{operator.path}", misfits)
        _inherit(operator, split, layouts, whole=_gathered_whole(operator, choice))
        splits.append({dim: axes for dim, axes in split.items() if axes})
        for output in operator.outputs:
            layouts[output.tensor] = layout_of(output, split, partial=True)
    if misfits:
        raise StrategyError(misfits)
    return tuple(splits)


def required_layout(block: Block, splits: Sequence[Split], tensor: str) -> Layout:
    """Return how the first reader of `tensor` in `block` needs it."""
    for operator, split in zip(block.operators, splits, strict=True):
        for operand in operator.inputs:
            if operand.tensor == tensor:
                return layout_of(operand, split, partial=False)
    return {}


def _explicit(
    operator: Operator,
    choice: Choices,
    active: frozenset[str],
    path: str,
    misfits: dict[str, str],
) -> dict[str, tuple[str, ...]]:
    split: dict[str, tuple[str, ...]] = {}
    seen: dict[str, str] = {}
    for name in (*(dim.name for dim in operator.dims), OWNER):
        axes = tuple(axis for axis in choice.compute.get(name, ()) if axis in active)
        if axes and name != OWNER and operator.dim(name).role is DimRole.OPAQUE:
            misfits[path] = f"dim '{name}' cannot be split (over {', '.join(axes)})"
        for axis in axes:
            if axis in seen:
                misfits[path] = f"axis '{axis}' splits both '{seen[axis]}' and '{name}'"
            seen[axis] = name
        split[name] = axes
    return split


def _gathered_whole(operator: Operator, choice: Choices) -> frozenset[str]:
    """Return the dims that must not be split: by the strategy, or because steps are sequential.

    Nor are windows over a sequence split, whose rows no pass exchanges.
    """
    whole = {dim for dim, axes in choice.compute.items() if not axes}
    if operator.in_turn is not None:
        whole.add(operator.in_turn)
    if operator.window is not None and not window_dims(operator):
        read = operator.inputs[0].dims if operator.inputs else ()
        positions = [dim for dim in read if operator.dim(dim).extent.seq]
        whole.update(positions or read[-len(operator.window.kernel) :])
    return frozenset(whole)


def _inherit(
    operator: Operator,
    split: dict[str, tuple[str, ...]],
    layouts: Mapping[str, Layout],
    *,
    whole: frozenset[str],
) -> None:
    """Let axes without an explicit choice follow the inputs, except for dims kept `whole`."""
    used = {axis for axes in split.values() for axis in axes}
    for operand in operator.inputs:
        for axis, position in layouts.get(operand.tensor, {}).items():
            if axis in used or position in (PARTIAL, OWNED):
                continue
            dim = operand.dims[position]
            if operator.dim(dim).role is not DimRole.OPAQUE and dim not in whole:
                split[dim] = (*split[dim], axis)
                used.add(axis)

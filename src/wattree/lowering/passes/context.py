"""Pass 1b: how attention reaches keys and values of positions that other ranks hold.

And other operators what is of no use to them in parts: the ghosts of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.graph import Block, Operator, OperatorKind, TensorRole
from wattree.lowering.passes.propagate import Split
from wattree.strategy import Choices, ContextExchange, PositionOrder


def exchanges_of(
    block: Block, choices: Sequence[Choices]
) -> tuple[Mapping[str, ContextExchange], Mapping[str, PositionOrder]]:
    """Return how each tensor of keys and values is exchanged, and the layout of each attention.

    Ghosts are waited for: whatever runs alongside them stands before the product that reads them.

    Args:
        block: Whose operators.
        choices: One per operator.
    """
    exchanges: dict[str, ContextExchange] = {}
    orders: dict[str, PositionOrder] = {}
    for operator, choice in zip(block.operators, choices, strict=True):
        if operator.role is TensorRole.GHOSTS:
            exchanges[operator.inputs[0].tensor] = ContextExchange.GATHER
        if operator.kind is not OperatorKind.ATTENTION:
            continue
        orders[operator.path] = choice.context_order
        for operand in operator.inputs:
            if "kv_seq" in operand.dims and "seq" not in operand.dims:
                exchanges[operand.tensor] = choice.context
    return exchanges, orders


def skewed_axes(operator: Operator, split: Split, order: PositionOrder) -> tuple[str, ...]:
    """Return the axes over which the ranks of an attention have unequal parts of its mask.

    A window sees as many keys from anywhere, so it leaves all alike to do.
    """
    mask = operator.mask
    if order is PositionOrder.ZIGZAG or mask is None or not mask.causal or mask.window:
        return ()
    return tuple(axis for axis in split.get("seq", ()) if axis not in split.get("kv_seq", ()))

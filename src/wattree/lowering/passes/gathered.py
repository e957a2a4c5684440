"""Pass 1e: selects the gathered inputs that are saved for backward."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.graph import Block
from wattree.strategy import Choices


def saved_gathers(block: Block, choices: Sequence[Choices]) -> frozenset[str]:
    """Return the tensors that, once gathered, stay whole for the backward of who reads them.

    Args:
        block: Whose operators.
        choices: One per operator.
    """
    return frozenset(
        operand.tensor
        for operator, choice in zip(block.operators, choices, strict=True)
        if choice.save_gathered
        for operand in operator.inputs
        if operand.tensor in operator.saved
    )

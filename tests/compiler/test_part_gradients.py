"""Traffic of views that pick parts of a tensor, and of their gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.test_operator_costs import traffic_bytes
from tests.compiler.vision import conv
from wattree.graph import Operand, OperatorKind
from wattree.lowering.passes.operator_instruction import compute_instruction
from wattree.lowering.program import InstructionPhase


@pytest.mark.parametrize(("function", "passes"), [("select", 2), ("slice", 2), ("view", 0)])
def test_parts_move_only_as_their_gradients_are_put_together(function: str, passes: int) -> None:
    """Queries, keys and values of one projection: nothing moves before their gradients do."""
    dims = ("batch", "out", "height", "width")
    part = replace(
        conv("part", "x", channels=(64, 64), rows=56),
        kind=OperatorKind.COPY,
        function=function,
        inputs=(Operand(tensor="x", dims=dims, fraction=3.0),),
        outputs=(Operand(tensor="part", dims=dims),),
        parameters=(),
        saved=(),
        window=None,
        kernels=0,
    )
    *forward, gradient = (
        traffic_bytes(compute_instruction(part, {}, phase, ()), "tf32")
        for phase in (
            InstructionPhase.FORWARD,
            InstructionPhase.RECOMPUTATION,
            InstructionPhase.INPUT_GRADIENT,
        )
    )

    assert forward == [0.0, 0.0]
    assert gradient == passes * 64 * 64 * 56 * 56 * 4

"""Model FLOP of a step: what the model needs, whatever the strategy executes."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.compiler import BlockCosts, ModelProgram
from wattree.compiler.program import ComputeStep, StepPhase
from wattree.graph import OperatorKind

__all__ = ["model_flop"]


def model_flop(
    costs: Sequence[BlockCosts], program: ModelProgram, *, stage_ranks: int, micro_batches: int
) -> float:
    """Return the matrix FLOP of one step over all ranks, recomputation left out. [FLOP]

    Products count 2 per multiply-add in forward and in each gradient. Attention counts visible
    scores only, two products forward and four backward: the fifth that fused kernels execute is
    recomputation.

    Args:
        costs: Of each program, on one rank.
        program: Where each is used.
        stage_ranks: Ranks that share each block.
        micro_batches: Per step.
    """
    per_program = [_flop(block) for block in costs]
    local = sum(per_program[index] for index in program.instances)
    return local * stage_ranks * micro_batches


def _flop(costs: BlockCosts) -> float:
    """FLOP of one micro-batch through a block on one rank, forward and backward."""
    total = 0.0
    for phase in (costs.forward, costs.backward):
        for index, step in enumerate(phase.steps):
            if isinstance(step, ComputeStep):
                flop = float(phase.flop[index, 0])
                fused_backward = (
                    step.kind is OperatorKind.ATTENTION and step.phase is StepPhase.INPUT_GRADIENT
                )
                total += flop * 0.8 if fused_backward else flop
    return total

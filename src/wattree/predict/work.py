"""Model FLOP of a step: what the model needs, whatever the strategy executes."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.compiler import BlockCosts, ModelProgram
from wattree.compiler.program import ComputeStep, StepPhase
from wattree.cost.attention import BACKWARD_PRODUCTS, FORWARD_PRODUCTS
from wattree.graph import OperatorKind

__all__ = ["model_flop"]


#: Backward products that the model needs: dV, dP, dQ, dK.
_NEEDED_BACKWARD_PRODUCTS = 2 * FORWARD_PRODUCTS


def model_flop(
    costs: Sequence[BlockCosts],
    program: ModelProgram,
    *,
    stage_ranks: int,
    micro_batches: int,
    sequence: float,
    fused_attention: bool,
) -> float:
    """Return the matrix FLOP of one step over all ranks, recomputation left out. [FLOP]

    Products count 2 per multiply-add in forward and in each gradient. Attention counts visible
    scores only, two products forward and four backward: the fifth that fused kernels execute is
    recomputation, and so is what unfused kernels compute of the masked scores.

    Args:
        costs: Of each program, on one rank.
        program: Where each is used.
        stage_ranks: Ranks that share each block.
        micro_batches: Per step.
        sequence: Tokens per sample.
        fused_attention: Whether the costs are those of fused attention kernels.
    """
    per_program = [_flop(block, sequence, fused=fused_attention) for block in costs]
    local = sum(per_program[index] for index in program.instances)
    return local * stage_ranks * micro_batches


def _flop(costs: BlockCosts, sequence: float, *, fused: bool) -> float:
    """FLOP of one micro-batch through a block on one rank, forward and backward."""
    total = 0.0
    for phase in (costs.forward, costs.backward):
        for index, step in enumerate(phase.steps):
            if isinstance(step, ComputeStep):
                total += float(phase.flop[index, 0]) * _needed_share(step, sequence, fused=fused)
    return total


def _needed_share(step: ComputeStep, sequence: float, *, fused: bool) -> float:
    """Return which share of the FLOP that a step executes the model needs."""
    if step.kind is not OperatorKind.ATTENTION or step.mask is None:
        return 1.0
    if not fused:
        return step.mask.visible_share(sequence)
    if step.phase is StepPhase.INPUT_GRADIENT:
        return _NEEDED_BACKWARD_PRODUCTS / BACKWARD_PRODUCTS
    return 1.0

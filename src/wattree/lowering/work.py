"""Model FLOP of a step: those that the model needs, not those that the strategy executes."""

from __future__ import annotations

import numpy as np

from wattree.capture.moe import with_needed_tokens
from wattree.cost.attention import FORWARD_MATMULS
from wattree.graph import ModelGraph
from wattree.lowering.block import compile_model
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale
from wattree.strategy import StrategyTree

#: Backward products that the model needs: dV, dP, dQ, dK.
_BACKWARD_MATMULS = 2 * FORWARD_MATMULS


def model_flop(model: ModelGraph, *, global_batch: int, micro_batch: float, sequence: int) -> float:
    """Return the matrix FLOP of one step, recomputation and redundant work left out. [FLOP]

    Counted on the model as one device would run it. Products count 2 per multiply-add in forward
    and in each gradient. Attention counts visible scores only, two products forward and four
    backward: the fifth that fused kernels execute is recomputation. Of experts that run on every
    token it counts the tokens that are sent to them. Products of samples with samples, as in
    contrastive losses, are of the samples of one forward pass.

    Args:
        global_batch: Samples per step.
        micro_batch: Samples per forward pass of a replica.
        sequence: Tokens per sample.
    """
    program = compile_model(with_needed_tokens(model), StrategyTree(nodes={}), frozenset())
    scale = Scale(
        micro_batch=np.array([float(micro_batch)]),
        sequence=float(sequence),
        degrees={},
        batch_axes=(),
    )
    per_program = [
        sum(
            _flop(step, scale)
            for step in (*block.forward, *block.backward)
            if isinstance(step, ComputeInstruction)
        )
        for block in program.programs
    ]
    of_pass = float(sum(per_program[index] for index in program.instances))
    return of_pass * (global_batch / micro_batch)


def _flop(step: ComputeInstruction, scale: Scale) -> float:
    if step.matmul is not None:
        shape = step.matmul
        sizes = [scale.value(size) for size in (shape.m, shape.n, shape.k, shape.groups)]
        return 2.0 * float(np.prod(sizes))
    if step.mask is None:
        return 0.0
    forward = step.phase is InstructionPhase.FORWARD
    matmuls = FORWARD_MATMULS if forward else _BACKWARD_MATMULS
    pairs = [scale.value(size) for size in (step.batch, step.queries, step.heads)]
    keys = float(scale.value(step.keys)[0])
    scores = float(np.prod(pairs)) * keys * step.mask.visible_share(keys)
    return matmuls * 2.0 * scores * (step.head_dim + step.value_head_dim) / 2

"""What a model graph adds up to: kept bytes, and the FLOP of the steps that compilation derives."""

from __future__ import annotations

from math import prod

import numpy as np

from wattree.graph import Block, ModelGraph
from wattree.lowering.block import compile_model
from wattree.lowering.program import ComputeInstruction, InstructionPhase, Scale
from wattree.strategy import StrategyTree

__all__ = ["backward_flop", "kept_bytes"]


def kept_bytes(graph: ModelGraph, micro_batch: float, sequence: float) -> float:
    """Return the bytes of tensors that blocks keep for backward, with activations of four bytes."""
    kept = {name: _kept(block, micro_batch, sequence) for name, block in graph.blocks.items()}
    return sum(kept[instance.block] for instance in graph.instances)


def _kept(block: Block, micro_batch: float, sequence: float) -> float:
    sizes = {"micro_batch": micro_batch, "sequence": sequence}
    found = {
        tensor.name: 4.0 * prod(extent.value(**sizes) for extent in tensor.extents)
        for tensor in block.inputs
    }
    masks = 0.0
    for operator in block.operators:
        for output in operator.outputs:
            elements = prod(operator.dim(name).extent.value(**sizes) for name in output.dims)
            elements *= output.fraction
            found[output.tensor] = elements * (output.element_bytes or 4.0)
        masks += operator.saved_mask_bytes * found[operator.outputs[0].tensor] / 4.0
    saved = {name for operator in block.operators for name in operator.saved}
    return masks + sum(found[name] for name in saved)


def backward_flop(graph: ModelGraph, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of the backward steps; four products for attention, as PyTorch counts."""
    program = compile_model(graph, StrategyTree(nodes={}), frozenset())
    scale = Scale(micro_batch=np.array([micro_batch]), sequence=sequence, degrees={}, batch_axes=())

    def of_step(step: ComputeInstruction) -> float:
        if step.matmul is not None:
            sides = (step.matmul.m, step.matmul.n, step.matmul.k, step.matmul.groups)
            return 2.0 * float(np.prod([scale.value(side) for side in sides]))
        if step.mask is None:
            return 0.0
        assert step.phase is InstructionPhase.INPUT_GRADIENT
        sides = (step.batch, step.queries, step.heads, step.keys)
        pairs = float(np.prod([scale.value(side) for side in sides]))
        return 4.0 * pairs * (step.head_dim + step.value_head_dim)

    blocks = [
        sum(of_step(step) for step in block.backward if isinstance(step, ComputeInstruction))
        for block in program.programs
    ]
    return sum(blocks[index] for index in program.instances)

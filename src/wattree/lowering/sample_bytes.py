"""Inputs of blocks that no block writes: samples and token ids."""

from __future__ import annotations

from wattree.graph import ModelGraph
from wattree.lowering.layout import local_size
from wattree.lowering.program import Scale

#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0


def given_bytes(model: ModelGraph, scale: Scale, element_bytes: float) -> float:
    """Return the bytes of a micro-batch's samples over all replicas. [B]

    What does not grow with the batch (tables of positions, masks) stays where it is.
    """
    made = {
        f"{instance.path}.{output.tensor}"
        for instance in model.instances
        for operator in model.blocks[instance.block].operators
        for output in operator.outputs
    }
    total, seen = 0.0, set(made)
    for name, block in model.blocks.items():
        given = set(block.given) - made
        given -= {output.tensor for operator in block.operators for output in operator.outputs}
        for operator in block.operators:
            for operand in operator.inputs:
                is_sample = any(operator.dim(dim).extent.batch for dim in operand.dims)
                key = f"{name}.{operand.tensor}"
                if operand.tensor in given and key not in seen and is_sample:
                    seen.add(key)
                    elements = scale.value(local_size(operator, operand, {}))[0]
                    total += float(elements) * (operand.element_bytes or element_bytes)
    return total


def input_bytes(model: ModelGraph, scale: Scale) -> float:
    """Return the token ids of a micro-batch of one replica, for which the step waits. [B]

    Samples of other models are large, and loaders read and copy them ahead: the job says how.
    """
    if not model.own_family:
        return 0.0
    return float(scale.micro_batch[0]) * scale.sequence * _TOKEN_BYTES

"""Operators fused into convolution kernels: sums for batch norms, and neighboring operators.

cuDNN's fused kernels [1] scale, shift and rectify what a convolution loads and sum up what it
stores, `CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS`: a batch norm between two convolutions
needs no pass of its own in forward. Its runtime fusion applies element-wise work (bias, scale,
activation) to results before they are stored. Operators whose work moves into such kernels are
named after it here, `wattree.cost.memory_bound` has their passes.

References:
    [1] NVIDIA, cuDNN 8 API reference, `cudnnFusedOps_t` and fused operations of the graph API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.graph import Block, Operand, Operator, OperatorKind

#: Functions: a batch norm whose statistics a convolution made; one that the next convolution
#: applies as it loads; element-wise work on a convolution's result before it is stored.
AFTER_SUMS, IN_LOADS, IN_EPILOGUE = "norm_after_sums", "norm_in_loads", "in_epilogue"


def normed_convolutions(operators: Sequence[Operator]) -> frozenset[str]:
    """Return the paths of batch norms that read a convolution's output."""
    makers = _makers(operators)
    return frozenset(
        operator.path
        for operator in operators
        if operator.kind is OperatorKind.BATCH_NORM and _is_convolved(operator.inputs[0], makers)
    )


def absorbed(block: Block) -> Block:
    """Return a block of merged kernels with operators fused into convolutions."""
    makers = _makers(block.operators)
    readers: dict[str, list[Operator]] = {}
    for operator in block.operators:
        for operand in operator.inputs:
            readers.setdefault(operand.tensor, []).append(operator)
    renamed = (_renamed(operator, block, makers, readers) for operator in block.operators)
    return replace(block, operators=tuple(renamed))


def _renamed(
    operator: Operator,
    block: Block,
    makers: Mapping[str, Operator],
    readers: Mapping[str, Sequence[Operator]],
) -> Operator:
    activations = [operand for operand in operator.inputs if _is_activation(operator, operand)]
    if not activations or not _is_convolved(activations[0], makers):
        return operator
    alone = len(activations) == 1
    if operator.kind is OperatorKind.BATCH_NORM:
        result = operator.outputs[0].tensor
        behind = readers.get(result, ())
        loaded = alone and result not in block.outputs and all(map(_convolves, behind))
        return replace(operator, function=IN_LOADS if loaded and behind else AFTER_SUMS)
    source = activations[0].tensor
    own = len(readers[source]) == 1 and source not in block.outputs
    if operator.kind is OperatorKind.ELEMENTWISE and alone and own:
        return replace(operator, function=IN_EPILOGUE)
    return operator


def _makers(operators: Sequence[Operator]) -> dict[str, Operator]:
    return {output.tensor: operator for operator in operators for output in operator.outputs}


def _is_activation(operator: Operator, operand: Operand) -> bool:
    """Return whether an operand grows with the batch."""
    return any(operator.dim(name).extent.batch for name in operand.dims)


def _is_convolved(operand: Operand, makers: Mapping[str, Operator]) -> bool:
    return operand.tensor in makers and _convolves(makers[operand.tensor])


def _convolves(operator: Operator) -> bool:
    return operator.kind is OperatorKind.CONVOLUTION

"""Dot products of a sample's features as one kernel: products, choice of pairs, concatenation.

A module of PyTorch multiplies the features with themselves, gathers the pairs below the diagonal
and joins them to what the top network reads besides. Each step passes over memory, and a product of
few rows fills little of a tile. The kernels of NVIDIA's DLRM [1] read the features of a sample once
and write what the top network reads; backward reads both and writes the features' gradient.

References:
    [1] NVIDIA, DeepLearningExamples, PyTorch/Recommendation/DLRM, `dot_based_interact`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattree.graph import Operator, OperatorKind


def interactions_of(operators: Sequence[Operator]) -> list[list[int]]:
    """Return the operators of each kernel by index; those of an interaction are one kernel."""
    group_of = dict[int, int]()
    for index, operator in enumerate(operators):
        if not _is_interaction(operator):
            continue
        chain = _chain(operators, index)
        if any(operators[at].kind is OperatorKind.GATHER for at in chain):
            group_of |= dict.fromkeys(chain, chain[-1])
    groups: dict[int, list[int]] = {}
    for index in range(len(operators)):
        groups.setdefault(group_of.get(index, index), []).append(index)
    return [groups[last] for last in sorted(groups)]


def _is_interaction(operator: Operator) -> bool:
    """Return whether an operator multiplies each sample's features with themselves."""
    factors = {operand.tensor for operand in operator.inputs}
    is_product = operator.kind is OperatorKind.MATMUL and not operator.parameters
    return is_product and len(operator.inputs) > 1 and len(factors) == 1


def _chain(operators: Sequence[Operator], start: int) -> list[int]:
    """Return the product, what alone reads it, and what only these read, by index."""
    chain, result = [start], operators[start].outputs[0].tensor
    moves = {OperatorKind.GATHER, OperatorKind.COPY}
    while True:
        readers = [at for at, each in enumerate(operators) if _reads(each, result)]
        if len(readers) != 1 or operators[readers[0]].kind not in moves:
            break
        chain.append(readers[0])
        result = operators[readers[0]].outputs[0].tensor
    inside = set(chain)
    for at, each in enumerate(operators[: chain[-1]]):
        read = [i for i, other in enumerate(operators) if _reads(other, each.outputs[0].tensor)]
        if each.kind is OperatorKind.COPY and read and inside.issuperset(read):
            inside.add(at)
    return sorted(inside)


def _reads(operator: Operator, tensor: str) -> bool:
    return any(operand.tensor == tensor for operand in operator.inputs)

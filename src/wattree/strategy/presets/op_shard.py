"""Fully connected layers split over replicas, everything else data-parallel.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014: convolutions
have most of the work and few parameters, fully connected layers most of the parameters. So a fully
connected layer computes a part of its outputs for the samples of all replicas, which are gathered
before it, and its gradients need no reduction. Layers that say that they sum over what another has
split (`Operator.role`) are split by their inputs.
"""

from __future__ import annotations

from wattree.graph import DimRole, ModelGraph, Operator, OperatorKind, TensorRole
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import column_dim, dims_by_pattern, row_dim
from wattree.strategy.presets.data import REPLICAS
from wattree.strategy.tree import StrategyTree, TreeNode


def split_matmuls(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the splits of fully connected layers whose features divide by the replicas."""
    if not options.parallelism.op_shard:
        return StrategyTree(nodes={})
    degree = options.replicas

    nodes = {
        pattern: TreeNode(compute={"batch": (), dim: REPLICAS})
        for pattern, dim in dims_by_pattern(model, lambda o: _dim(o, degree)).items()
    }
    return StrategyTree(nodes=nodes)


def _dim(operator: Operator, degree: int) -> str | None:
    """Return the feature dim to split; None for other operators, or where it does not divide."""
    plain = operator.kind is OperatorKind.MATMUL and operator.weight is not None
    if not plain or operator.in_turn is not None or not operator.has_dim("batch"):
        return None
    name = row_dim(operator) if operator.role is TensorRole.ROW else column_dim(operator)
    if name is None or operator.dim(name).role is DimRole.OPAQUE:
        return None
    loop = operator.dim(name)
    units = loop.units if loop.units is not None else loop.extent.coefficient
    return name if units % degree == 0 else None

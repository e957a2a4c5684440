"""Spatial parallelism: rows of images sharded over ranks, with halo exchange.

Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism",
IPDPS 2019. Rows are those of the outermost dim that windows slide over: `depth` of volumes,
`height` of images, `length` of series. Layers whose rows no longer divide, that
need all rows at once (group norm, interpolation), or whose windows reach beyond the neighbour's
part get whole samples: their input is gathered, and every rank of the axis does the same.
"""

from __future__ import annotations

from wattree.graph import DimRole, ModelGraph, Operator, window_dims
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import operator_patterns
from wattree.strategy.tree import StrategyTree, TreeNode

_OUTERMOST_FIRST = ("depth", "height", "length", "width")


def spatial_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the root's split of rows, and the layers that are excluded from it."""
    dim = spatial_dim(model)
    if dim is None:
        return StrategyTree(nodes={})
    nodes = {"": TreeNode(compute={dim: ("cp",)})}
    whole = TreeNode(compute={dim: ()})

    def is_left_out(operator: Operator) -> bool:
        return operator.has_dim(dim) and not _divides(operator, dim, options.cp)

    for pattern, _ in operator_patterns(model, is_left_out):
        nodes[pattern] = whole
    return StrategyTree(nodes=nodes)


def spatial_dim(model: ModelGraph) -> str | None:
    """Return the outermost dim that windows of `model` slide over; None without one."""
    found = {name for operator in model.operators for name in window_dims(operator)}
    return next((name for name in _OUTERMOST_FIRST if name in found), None)


def _divides(operator: Operator, dim: str, degree: int) -> bool:
    loop = operator.dim(dim)
    if loop.role is DimRole.OPAQUE or operator.in_turn == dim:
        return False  # statistics over all rows, interpolation between them
    rows = loop.extent.coefficient
    if rows % degree:
        return False
    window, dims = operator.window, window_dims(operator)
    if window is None or dim not in dims:
        return True
    place = dims.index(dim)
    span = (window.kernel[place] - 1) * window.dilation[place] + 1
    beyond = span - window.stride[place]
    part = rows / degree * (1 if window.transposed else window.stride[place])
    return -(-beyond // 2) <= part

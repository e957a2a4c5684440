"""Roles of mesh axes, determined from the tree and never from axis names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

from wattree.strategy.tree import OWNER, StrategyTree

#: Dims of positions inside a sample: of tokens, and of the outermost dim of images and volumes.
POSITIONS = frozenset({"seq", "depth", "height", "width", "length"})


class AxisRole(StrEnum):
    """What differs between the ranks along an axis, named as the presets name the axis."""

    PIPELINE = "pp"  # layers: they are stages
    DATA = "dp"  # samples: they are replicas, or do the same where nothing is split
    EXPERT = "ep"  # experts; samples elsewhere
    CONTEXT = "cp"  # positions of the same samples
    TENSOR = "tp"  # parts of the same operators


def tensor_degrees(tree: StrategyTree, degrees: Mapping[str, int]) -> dict[str, int]:
    """Return tensor-parallel axis → degree."""
    roles = axis_roles(tree).items()
    return {axis: degrees.get(axis, 1) for axis, role in roles if role is AxisRole.TENSOR}


@lru_cache(maxsize=256)  # strategies of a search share their trees
def axis_roles(tree: StrategyTree) -> Mapping[str, AxisRole]:
    """Return axis → role of every axis over which the tree splits computation.

    An axis that splits samples is `DATA`, or `EXPERT` if it splits experts too; one that splits
    features is `TENSOR`, however it splits positions besides (sequence parallelism); one that
    splits positions, and perhaps heads for them (Ulysses), is `CONTEXT`. Of an axis that splits
    samples in some places and features in others, the root tells.
    """
    root = tree.nodes.get("")
    samples = () if root is None else root.compute.get("batch", ())
    dims: dict[str, set[str]] = {}
    for node in tree.nodes.values():
        for dim, axes in node.compute.items():
            for axis in axes:
                dims.setdefault(axis, set()).add(dim)
        if node.phantom is not None:
            dims.setdefault(node.phantom.axis, set()).add("phantom")
    return {axis: _role(used, is_root=axis in samples) for axis, used in dims.items()}


def _role(dims: set[str], *, is_root: bool) -> AxisRole:
    features = dims - POSITIONS - {"batch", OWNER, "expert", "heads"}
    if is_root or (dims & {"batch", OWNER} and not features):
        return AxisRole.EXPERT if "expert" in dims else AxisRole.DATA
    if features:
        return AxisRole.TENSOR
    if dims & POSITIONS:
        return AxisRole.CONTEXT
    return AxisRole.EXPERT if "expert" in dims else AxisRole.TENSOR

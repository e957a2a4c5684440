"""A strategy as plain values, as a job file writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.graph import ModelGraph
from wattree.strategy import CUSTOM, Schedule, Strategy, TreeNode

__all__ = ["describe"]


def describe(strategy: Strategy, model: ModelGraph) -> Mapping[str, object]:
    """Return a strategy as plain values, as it would be written in a job file for `model`.

    Without `preset`, which is for people, a job with it compiles to the same graph. Patterns of
    presets for operators that the model lacks are left out, and what was not chosen.
    """
    named = tuple(strategy.tree.nodes)
    used = {
        pattern for path in _telling_paths(model, named) for pattern in strategy.tree.matching(path)
    }
    axes = {axis for axis, _ in strategy.mesh.axes}
    root = strategy.tree.choices("").compute
    split = {dim for dim, names in root.items() if axes & set(names)}
    return {
        "mesh": dict(strategy.mesh.axes),
        "schedule": _schedule(strategy.schedule),
        "preset": list(strategy.preset),
        "tree": {
            pattern: described
            for pattern, node in strategy.tree.nodes.items()
            if pattern in used and (described := _node(node, axes, split))
        },
        **_overlap(strategy),
    }


def _schedule(schedule: Schedule) -> dict[str, object]:
    found: dict[str, object] = {
        "name": schedule.name,
        "micro_batches": schedule.micro_batches,
        "virtual_stages": schedule.virtual_stages,
    }
    if schedule.stage_layers is not None:
        found["stage_layers"] = list(schedule.stage_layers)
    if schedule.name == CUSTOM and schedule.order is not None:
        found["order"] = [" ".join(map(str, order)) for order in schedule.order]
        found["placement"] = schedule.placement
    return found


def _overlap(strategy: Strategy) -> dict[str, object]:
    """Return the switches that were set instead of left to the software's habit."""
    names = (
        "overlap_gradients",
        "overlap_parameters",
        "overlap_tensor",
        "reduce_every_micro_batch",
        "tensor_pieces",
    )
    found: dict[str, object] = {
        name: value for name in names if (value := getattr(strategy, name)) is not None
    }
    if (load := strategy.expert_load) is not None:
        drawn = {"spread": load.spread, "seed": load.seed}
        found["expert_imbalance"] = drawn if load.spread > 0 else load.imbalance
        if load.capacity is not None:
            found["expert_capacity"] = load.capacity
    if strategy.bucket_bytes is not None:
        found["bucket"] = f"{strategy.bucket_bytes:.17g} B"
    return found


def _telling_paths(model: ModelGraph, patterns: Sequence[str]) -> list[str]:
    """Return operator paths enough to tell which patterns match anything at all.

    One instance of each block does, and those that a pattern names without a wildcard.
    """
    seen: set[str] = set()
    chosen = []
    for instance in model.instances:
        named = any(p == instance.path or p.startswith(f"{instance.path}.") for p in patterns)
        if named or instance.block not in seen:
            seen.add(instance.block)
            chosen.append(instance)
    return [f"{i.path}.{o.path}" for i in chosen for o in model.blocks[i.block].operators]


def _node(node: TreeNode, axes: set[str], split: set[str]) -> dict[str, object]:
    """Return a node's choices without axes that the mesh lacks; empty if nothing is left.

    A dim that the root splits and this node does not stays with no axes.
    """
    compute = {
        dim: kept
        for dim, names in node.compute.items()
        if (kept := [axis for axis in names if axis in axes]) or dim in split
    }
    memory: dict[str, object] = {}
    for name in ("parameters", "gradients", "optimizer"):
        names = getattr(node.memory, name)
        if names is not None and (kept := [axis for axis in names if axis in axes]):
            memory[name] = {"shard": kept}
    for name in ("activations", "recompute_share"):
        if (value := getattr(node.memory, name)) is not None:
            memory[name] = value
    chosen: dict[str, object] = {"compute": compute, "memory": memory}
    if "cp" in axes:
        chosen |= {"context": node.context, "context_order": node.context_order}
    return {key: value for key, value in chosen.items() if value}

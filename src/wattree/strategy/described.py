"""A strategy as plain values, as a job file writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from wattree.graph import ModelGraph
from wattree.strategy import (
    AXES,
    CUSTOM,
    STAGES,
    AxisRole,
    Colocation,
    ExpertLoad,
    Mesh,
    Offload,
    Prefetch,
    Schedule,
    Strategy,
    StrategyOptions,
    Traffic,
    TreeNode,
    knobs_of,
)


def describe(strategy: Strategy, model: ModelGraph) -> Mapping[str, object]:
    """Return a strategy as plain values, as a job file for `model` would have it.

    Without `preset`, which is for people, a job with it compiles to the same graph. Patterns of
    presets for operators that the model lacks are left out, and what was not chosen.
    """
    named = tuple(strategy.tree.nodes)
    axes = {axis for mesh in strategy.meshes for axis, _ in mesh.axes}
    overridden: dict[str, set[str]] = {}  # pattern → dims that weaker ones split
    for path in _distinguishing_paths(model, named):
        weaker: set[str] = set()
        for pattern in strategy.tree.matching(path):
            overridden.setdefault(pattern, set()).update(weaker)
            compute = strategy.tree.nodes[pattern].compute
            weaker |= {dim for dim, own in compute.items() if axes & set(own)}
    nodes = strategy.tree.nodes.values()
    has_context = any(AxisRole.CONTEXT in part.roles.values() for part in strategy.parts)
    split = {dim for node in nodes for dim, names in node.compute.items() if axes & set(names)}
    if any(node.phantom is not None for node in nodes):
        # Phantom layers hand on what is split by features, under whatever name.
        split |= {dim for node in nodes for dim, names in node.compute.items() if not names}
    return {
        **_meshes(strategy.meshes),
        "schedule": _schedule(strategy.schedule, strategy.meshes[0]),
        "preset": list(strategy.preset),
        "tree": {
            pattern: described
            for pattern, node in strategy.tree.nodes.items()
            if pattern in overridden
            and (
                described := _node(node, axes, split, overridden[pattern], has_context=has_context)
            )
        },
        **_chosen(strategy),
    }


def _meshes(meshes: Sequence[Mesh]) -> dict[str, object]:
    if len(meshes) == 1:
        return {"mesh": dict(meshes[0].axes)}
    return {"meshes": {mesh.name: {"mesh": dict(mesh.axes)} for mesh in meshes}}


def describe_options(options: StrategyOptions) -> dict[str, object]:
    """Return options as the `strategy` of a job file.

    What software would decide otherwise is written even where it is the default, so that a job that
    names its software means the same.
    """
    present = options.present()
    stated = [axis for axis in AXES if present[axis] or axis == "dp"]
    stated += ["micro_batch", "sharding", "recompute"]
    stated += ["sequence_parallel"] if present["tp"] else []
    stated += ["schedule", "virtual_stages"] if present["pp"] else []
    moved = {knob.key for knob in knobs_of(Traffic).values()}
    chosen = options.chosen()
    kept = [*stated, *(key for key in chosen if key not in moved and key not in stated)]
    found = {key: _written(options.value(key)) for key in kept}
    found |= _tokens(options.expert_load) | _traffic(options.traffic)
    # Without a pipeline, software may put activations into host memory by default.
    return found if present["pp"] else {**found, "offload": found.get("offload", {})}


def _schedule(schedule: Schedule, mesh: Mesh) -> dict[str, object]:
    found: dict[str, object] = {
        "name": schedule.name,
        "micro_batches": schedule.micro_batches,
        "virtual_stages": schedule.virtual_stages,
    }
    if mesh.stage_axis != STAGES:
        found["axis"] = mesh.stage_axis
    if schedule.stage_layers is not None:
        found["stage_layers"] = list(schedule.stage_layers)
    if schedule.name == CUSTOM and schedule.order is not None:
        found["order"] = [" ".join(map(str, order)) for order in schedule.order]
        found["placement"] = schedule.placement
    return found


def _chosen(strategy: Strategy) -> dict[str, object]:
    """Return the options that were set instead of left to the software's default."""
    found: dict[str, object] = {}
    if strategy.single_process:
        found["single_process"] = True
    if strategy.colocation.is_several:
        found |= {
            knob.key: getattr(strategy.colocation, knob.name)
            for knob in knobs_of(Colocation).values()
        }
    return found | _tokens(strategy.expert_load) | _traffic(strategy.traffic)


def _tokens(load: ExpertLoad | None) -> dict[str, object]:
    """Return the settings that were chosen for the tokens of experts."""
    if load is None:
        return {}
    drawn = {"spread": load.spread, "seed": load.seed}
    found: dict[str, object] = {"expert_imbalance": drawn if load.spread > 0 else load.imbalance}
    if load.capacity is not None:
        found["expert_capacity"] = load.capacity
    return found


def _traffic(traffic: Traffic) -> dict[str, object]:
    """Return the settings that were chosen for overlap of data movement and compute."""
    found = {
        knob.key: _written(value)
        for knob in knobs_of(Traffic).values()
        if (value := getattr(traffic, knob.name)) != knob.default
    }
    sizes = {
        "gradients": traffic.gradient_bucket_bytes,
        "parameters": traffic.parameter_bucket_bytes,
    }
    if bucket := {name: f"{size:.17g} B" for name, size in sizes.items() if size is not None}:
        found["bucket"] = bucket["gradients"] if list(bucket) == ["gradients"] else bucket
    return found


def _written(value: object) -> object:
    """Return a value as written in a job file."""
    if isinstance(value, Prefetch):
        return _prefetch(value)
    if isinstance(value, Offload):
        return _offload(value)
    return list(value) if isinstance(value, tuple) else value


def _prefetch(prefetch: Prefetch) -> dict[str, object]:
    backward = "none" if prefetch.after_reductions else prefetch.backward
    depths: dict[str, object] = {"forward": prefetch.forward, "backward": backward}
    if prefetch.gathers_in_flight is not None:
        depths["gathers_in_flight"] = prefetch.gathers_in_flight
    return depths


def _offload(offload: Offload) -> dict[str, object]:
    found: dict[str, object] = {
        name: tier
        for name in ("optimizer", "parameters", "overflow")
        if (tier := getattr(offload, name)) is not None
    }
    if offload.tables is not None:
        found["tables"] = {"to": offload.tables, "cached": offload.cached, "hits": offload.hits}
    if offload.activations is not None:
        found["activations"] = {
            "layers": offload.layers,
            "to": offload.activations,
            **({"tensors": list(offload.tensors)} if offload.tensors else {}),
            "prefetch": offload.prefetch,
        }
    return found


def _distinguishing_paths(model: ModelGraph, patterns: Sequence[str]) -> list[str]:
    """Return operator paths enough to tell which patterns match anything at all.

    One instance of each block does, and those that a pattern names without a wildcard.
    """
    seen: set[str] = set()
    chosen = []
    named = {p[:end] for p in patterns for end, sign in enumerate(f"{p}.") if sign == "."}
    for instance in model.instances:
        if instance.path in named or instance.block not in seen:
            seen.add(instance.block)
            chosen.append(instance)
    return [f"{i.path}.{o.path}" for i in chosen for o in model.blocks[i.block].operators]


def _node(
    node: TreeNode, axes: set[str], split: set[str], overridden: set[str], *, has_context: bool
) -> dict[str, object]:
    """Return a node's choices without axes that the mesh lacks; empty if nothing is left.

    A dim that is to be whole stays with no axes where others split it, and one whose axes all have
    one rank where a weaker node would split it; but where a phantom layer has other dims instead.
    """
    compute = {
        dim: kept
        for dim, names in node.compute.items()
        if (kept := [axis for axis in names if axis in axes])
        or (node.phantom is None and dim in (overridden if names else split))
    }
    memory: dict[str, object] = {}
    for name in ("parameters", "gradients", "optimizer"):
        names = getattr(node.memory, name)
        if names is not None and (kept := [axis for axis in names if axis in axes]):
            memory[name] = {"shard": kept}
    for name in ("activations", "recompute_share", "gathered"):
        if (value := getattr(node.memory, name)) is not None:
            memory[name] = value
    chosen: dict[str, object] = {"compute": compute, "memory": memory}
    if has_context:
        chosen |= {"context": node.context, "context_order": node.context_order}
    if node.sync_batch_norm is not None:
        chosen["sync_batch_norm"] = node.sync_batch_norm
    if node.phantom is not None:
        chosen["phantom"] = asdict(node.phantom)
    chosen["mesh"] = node.mesh
    return {key: value for key, value in chosen.items() if value or value is False}

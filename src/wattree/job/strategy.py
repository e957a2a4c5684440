"""The `strategy` section: `auto`, a preset with degrees, or a tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattree.errors import UnknownNameError, did_you_mean
from wattree.files import read_yaml
from wattree.hardware import Cluster
from wattree.job.idle import (
    warn_of_idle_load,
    warn_of_idle_options,
    warn_of_idle_tree,
    warn_of_preset,
)
from wattree.job.job import AUTO
from wattree.job.meshes import axes_of, check_ranks, meshes_of
from wattree.job.place import Allotment
from wattree.job.problems import Problems, seen, shown, unknown_key
from wattree.job.strategy_schema import MemorySpec, NodeSpec, OptionsSpec, TreeSpec
from wattree.job.traffic import MOVEMENT_KEYS, traffic_of, warn_of_idle_traffic
from wattree.job.usual import shards_over_axis
from wattree.strategy import (
    CUSTOM,
    FIXED_GLOBAL,
    MPS,
    SCHEDULES,
    ActivationStore,
    Colocation,
    ContextExchange,
    ExpertLoad,
    GatheredStore,
    MemoryChoice,
    PhantomLayers,
    PositionOrder,
    Schedule,
    Strategy,
    StrategyOptions,
    StrategyTree,
    TreeNode,
)
from wattree.strategy.schedules import Order, Slot, read_slot

#: More pieces are no schedule that someone wrote or will read.
_MOST_PIECES = 1_000_000
#: Keys whose values are names, which are known or not whatever is wrong with other keys.
_NAMED = ("sharding", "recompute", "schedule", "context", "context_order")
_PIECE = "a piece such as F0, B0, I0 or W0, with @1 behind it on the stage's second chunk"


def chosen_strategy(
    value: object, *, cluster: Cluster | Allotment | None, folder: Path, problems: Problems
) -> Strategy | StrategyOptions | str | None:
    """Return the strategy that `value` describes, or None after recording problems.

    Args:
        value: As read from the file.
        cluster: For the number of ranks, or what the job has of one; None leaves that check out.
        folder: Where relative paths start.
    """
    if value == AUTO:
        return AUTO
    if isinstance(value, str):
        value = {"preset": value}
    if isinstance(value, Mapping) and ({"tree", "mesh", "meshes"} & set(value)):
        tree = problems.read(TreeSpec, value, "strategy")
        if tree is None:
            return None
        return _strategy(tree, cluster=cluster, folder=folder, problems=problems)
    if isinstance(value, Mapping):
        spec = problems.read(OptionsSpec, value, "strategy")
        if spec is None:
            if isinstance(name := value.get("preset"), str):
                with problems.at("strategy"):
                    _check_preset(name)
            with problems.at("strategy"):
                StrategyOptions(**{k: v for k in _NAMED if isinstance(v := value.get(k), str)})
            return None
        return _options(spec, cluster=cluster, folder=folder, problems=problems)
    problems.add(
        "strategy",
        f"{seen(value)}, expected 'auto', the name of a preset, a mapping of preset and "
        "degrees, or a mapping of mesh, schedule and tree",
    )
    return None


# ---------------------------------------------------------------- a preset with its degrees


def _options(
    spec: OptionsSpec, *, cluster: Cluster | Allotment | None, folder: Path, problems: Problems
) -> StrategyOptions | None:
    written = spec.model_dump(exclude_none=True)
    chosen = {key: value for key, value in written.items() if key not in MOVEMENT_KEYS}
    chosen.pop("preset", None)
    chosen["traffic"] = traffic_of(spec, problems=problems)
    chosen |= _as_tuples(chosen)
    _check_order_keys(chosen.get("schedule"), chosen, "strategy", problems=problems)
    if "order" in chosen:
        orders = orders_from(chosen["order"], "strategy.order", folder=folder, problems=problems)
        if orders is None:
            return None
        chosen["order"] = orders
    load = _expert_load(chosen.pop("expert_imbalance", None), chosen.pop("expert_capacity", None))
    whole = spec.preset in {None, "ddp"}  # a degree says more than a name whose state is whole
    by_axis = whole and spec.sharding is None and shards_over_axis(chosen)
    if by_axis:
        chosen["sharding"] = "hybrid"
    options = None
    with problems.at("strategy"):
        options = _of_preset(spec.preset, chosen | {"expert_load": load})
    if options is None:
        return None
    if cluster is not None:
        if "dp" not in chosen:
            options = _spread(options, cluster)
        check_ranks(options, cluster, problems=problems)
    if by_axis and options.dp == 1:  # no replicas of the shards
        options = options.changed(sharding="zero3")
    warn_of_idle_options(options, written, problems=problems)
    warn_of_preset(options, written, problems=problems)
    warn_of_idle_traffic(options, spec, problems=problems)
    return options


def _as_tuples(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(chosen[key]) for key in ("stage_layers", "phantom_layers") if key in chosen}


def _expert_load(imbalance: Mapping[str, Any] | None, capacity: float | None) -> ExpertLoad | None:
    if imbalance is None and capacity is None:
        return None
    return ExpertLoad(**(imbalance or {}), capacity=capacity)


def _of_preset(preset: str | None, chosen: Mapping[str, Any]) -> StrategyOptions:
    if preset is None:
        return StrategyOptions(**chosen)
    from wattree.strategy.presets import options_of_preset

    _check_preset(preset)
    return options_of_preset(preset, chosen)


def _check_preset(name: str) -> None:
    from wattree.strategy.presets import PRESETS, unknown_preset

    if name not in PRESETS:
        raise unknown_preset(name, AUTO)


def _spread(options: StrategyOptions, cluster: Cluster | Allotment) -> StrategyOptions:
    """Give the devices that the degrees leave over to data parallelism, if they divide.

    Every kind of sharding but hybrid uses all replicas whatever the axis is called.
    """
    replicas, rest = divmod(cluster.devices, options.ranks)
    is_hybrid = options.memory.sharding == "hybrid"
    if rest or options.dp != 1 or (options.fsdp != 1 and not is_hybrid):
        return options
    if options.fsdp != 1 or not is_hybrid:
        return options.changed(dp=replicas)
    return options.changed(
        **hybrid_degrees(replicas, options.tp * options.cp * options.ep, cluster)
    )


def hybrid_degrees(replicas: int, model_ranks: int, cluster: Cluster | Allotment) -> dict[str, int]:
    """Return the degrees of hybrid sharding, which shards in a node and replicates across nodes.

    Args:
        model_ranks: Of one replica in a node.
    """
    nodes = [cluster] if isinstance(cluster, Allotment) else cluster.pools
    node_devices = math.gcd(*(each.node.devices for each in nodes))
    fsdp = math.gcd(replicas, max(1, node_devices // model_ranks))
    return {"fsdp": fsdp, "dp": replicas // fsdp}


# ---------------------------------------------------------------- a tree


def _strategy(
    spec: TreeSpec, *, cluster: Cluster | Allotment | None, folder: Path, problems: Problems
) -> Strategy | None:
    before = len(problems.lines)
    traffic = traffic_of(spec, problems=problems)
    schedule = _schedule(spec, folder=folder, problems=problems)
    axes = tuple(axes_of(spec))
    nodes = {
        pattern: _node(node, axes=axes, place=f"strategy.tree.{pattern!r}", to=problems)
        for pattern, node in spec.tree.items()
    }
    found = meshes_of(spec, StrategyTree(nodes=nodes), problems=problems)
    if found is not None and cluster is not None:
        check_ranks(found[0], cluster, problems=problems)
    if found is None or len(problems.lines) > before:
        return None
    strategy = Strategy(
        meshes=found[0],
        schedule=schedule,
        tree=found[1],
        traffic=traffic,
        expert_load=_expert_load(spec.expert_imbalance, spec.expert_capacity),
        single_process=bool(spec.single_process),
        colocation=_colocation(spec),
    )
    warn_of_idle_tree(spec, strategy, problems=problems)
    warn_of_idle_traffic(strategy, spec, problems=problems)
    warn_of_idle_load(strategy, problems=problems)
    return strategy


def _colocation(spec: TreeSpec) -> Colocation:
    """Return the processes on each device."""
    return Colocation(
        processes=spec.processes_per_device or 1,
        batch_rule=spec.batch_rule or FIXED_GLOBAL,
        sharing=spec.device_sharing or MPS,
    )


def _schedule(spec: TreeSpec, *, folder: Path, problems: Problems) -> Schedule:
    if spec.schedule is None:
        return Schedule()
    name, layers = spec.schedule.name, spec.schedule.stage_layers
    if name not in SCHEDULES:
        with problems.at("strategy.schedule.name"):
            raise UnknownNameError(kind="schedule", name=name, known=SCHEDULES)
        return Schedule()
    place = "strategy.schedule"
    given = spec.schedule.model_dump(exclude_none=True, include={"order", "placement"})
    _check_order_keys(name, given, place, problems=problems)
    if "order" in given:
        given["order"] = orders_from(
            given["order"], f"{place}.order", folder=folder, problems=problems
        )
    schedule = Schedule(
        name=name,
        micro_batches=spec.schedule.micro_batches,
        virtual_stages=spec.schedule.virtual_stages,
        stage_layers=None if layers is None else tuple(layers),
        **given,
    )
    axes, axis = axes_of(spec), spec.schedule.axis
    if "axis" in spec.schedule.model_fields_set and axis not in axes:
        problems.add(f"{place}.axis", _unknown_axis(axis, tuple(axes)))
    own = (spec.meshes or {}).values()
    meshes = [each.mesh for each in own if each.on is None] or [spec.mesh or {}]
    chunks = schedule.placed(sum(mesh.get(axis, 1) for mesh in meshes)).model_chunks
    if layers is not None and len(layers) != chunks:
        problems.add(
            f"{place}.stage_layers",
            f"found {len(layers)} numbers, expected {chunks}: one for each chunk of the model",
        )
    return schedule


def _check_order_keys(
    name: str | None, given: Mapping[str, Any], place: str, *, problems: Problems
) -> None:
    """A custom schedule has an order; no other one has."""
    if name == CUSTOM and "order" not in given:
        problems.add(
            f"{place}.order",
            "is missing, expected what each stage does, such as ['F0 F1 B0 B1', 'F0 B0 F1 B1']",
        )
    for key in ("order", "placement"):
        if name != CUSTOM and key in given:
            problems.add(
                f"{place}.{key}", f"found with the schedule {name or '1f1b'}; it goes with {CUSTOM}"
            )


def _node(spec: NodeSpec, *, axes: tuple[str, ...], place: str, to: Problems) -> TreeNode:
    compute = {dim: tuple(names) for dim, names in (spec.compute or {}).items()}
    memory = spec.memory or MemorySpec()
    used = {f"compute.{dim}": names for dim, names in compute.items()}
    for item in ("parameters", "gradients", "optimizer"):
        used[f"memory.{item}"] = tuple(getattr(memory, item) or ())
    if spec.phantom is not None:
        used["phantom.axis"] = (spec.phantom.axis,)
    for item, names in used.items():
        for name in names:
            if name not in axes:
                to.add(f"{place}.{item}", _unknown_axis(name, axes))
        if len(set(names)) != len(names):
            to.add(f"{place}.{item}", f"found an axis twice in {list(names)}; name each once")
    return TreeNode(
        compute=compute,
        memory=_memory(memory),
        context=None if spec.context is None else ContextExchange(spec.context),
        context_order=None if spec.context_order is None else PositionOrder(spec.context_order),
        sync_batch_norm=spec.sync_batch_norm,
        phantom=None if spec.phantom is None else PhantomLayers(**spec.phantom.model_dump()),
        mesh=spec.mesh,
    )


def _memory(spec: MemorySpec) -> MemoryChoice:
    def axes(names: list[str] | None) -> tuple[str, ...] | None:
        return None if names is None else tuple(names)

    return MemoryChoice(
        parameters=axes(spec.parameters),
        gradients=axes(spec.gradients),
        optimizer=axes(spec.optimizer),
        activations=None if spec.activations is None else ActivationStore(spec.activations),
        recompute_share=spec.recompute_share,
        gathered=None if spec.gathered is None else GatheredStore(spec.gathered),
    )


def _unknown_axis(name: str, axes: tuple[str, ...]) -> str:
    hint = did_you_mean(name, axes)
    return f"found axis {shown(name)}, which the mesh does not have; {hint}it has {', '.join(axes)}"


def orders_from(
    value: object, place: str, *, folder: Path, problems: Problems
) -> tuple[Order, ...] | None:
    """Return the order of every stage, or None after recording problems.

    Args:
        value: A list with an item for each stage (text or list of pieces), or the path of a YAML
            file with such a list under `order`.
        place: Where it stands in the job file.
        folder: Where relative paths start.
    """
    if isinstance(value, str):
        path = folder / value
        found: Mapping[str, object] = {}
        before = len(problems.lines)
        with problems.at(place):
            found = read_yaml(path)
        if len(problems.lines) > before:
            return None
        for key in found:
            if key != "order":
                problems.add(place, f"{path}: {unknown_key(key, ('order',))}")
        value, place = found.get("order"), f"{place}: {path}: order"
    if not isinstance(value, list) or not value:
        problems.add(place, f"{seen(value)}, expected a list with an item for each stage")
        return None
    orders = [
        _order(item, f"{place}[{stage}]", problems=problems) for stage, item in enumerate(value)
    ]
    read = [order for order in orders if order is not None]
    return tuple(read) if len(read) == len(orders) else None


def _order(value: object, place: str, *, problems: Problems) -> Order | None:
    """Return the pieces of one stage; only the first that cannot be read is noted."""
    pieces = value.split() if isinstance(value, str) else value
    if not isinstance(pieces, list) or not pieces or len(pieces) > _MOST_PIECES:
        problems.add(place, f"{seen(value)}, expected pieces in order, such as 'F0 F1 B0 B1'")
        return None
    slots: list[Slot] = []
    for piece in pieces:
        slot = read_slot(piece) if isinstance(piece, str) else None
        if slot is None:
            problems.add(place, f"{seen(piece)}, expected {_PIECE}")
            return None
        slots.append(slot)
    return tuple(slots)

"""Settings of a job file that have no effect: warnings, because the result remains valid.

Sweeps over degrees pass through such jobs, so none is refused. A preset may set a switch in
passing; whoever writes one down expects it to matter, so only what the file itself says counts.
What depends on the model is in `lowering.idle`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattree.errors import nearest
from wattree.hardware import Cluster, Device, Fabric, Node, Pool
from wattree.hardware.names import device_names, words_of_devices
from wattree.job.cluster_schema import ClusterSpec
from wattree.job.problems import Problems
from wattree.job.strategy_schema import TreeSpec
from wattree.strategy import (
    KNOBS,
    ULYSSES,
    Colocation,
    ExpertLoad,
    Knob,
    Schedule,
    Strategy,
    StrategyOptions,
    Traffic,
    knobs_of,
)
from wattree.units import format_quantity

#: Share of rated power below which limits are doubtful. The lowest that were measured are a third
#: (Zeus), and the driver of an H100 SXM takes none below 200 of 700 W, as `nvidia-smi -q -d POWER`
#: says (printed in stackhpc/ansible-slurm-appliance#975, 2026-06), that of a B200 none below 200 of
#: 1,000 W (NVIDIA DGX B200 user guide, power capping).
_LEAST_LIMIT = 0.25
#: Schedule of several chunks → the one that takes as long with one chunk on each stage.
_WITH_ONE_CHUNK = {"interleaved": "1f1b", "breadth-first": "gpipe"}
#: Axis → presets that split nothing but over it.
_PRESETS_OF = {"tp": ("tensor",), "cp": ("spatial",)}


# ---------------------------------------------------------------- the cluster


def warn_of_idle_cluster(spec: ClusterSpec, cluster: Cluster, *, problems: Problems) -> None:
    """Warn of keys of the section `cluster` that have no effect on this hardware."""
    under = [pool for pool in cluster.pools if pool.power_limit_w is None]
    _warn_of_limit(spec.power_limit, under, "cluster.power_limit", problems=problems)
    for pool in cluster.pools:
        key = f"cluster.pools ({pool.label}).power_limit"
        _warn_of_limit(pool.power_limit_w, [pool], key, problems=problems)
    if cluster.nodes == 1 and cluster.pool.domain_devices == cluster.devices:
        alone = "one node: its devices reach each other without the network; set nodes above 1"
        if spec.slow_links:
            problems.warn("cluster.slow_links", f"has no effect with {alone}")
        if spec.fabric is not None:
            problems.warn("cluster.fabric", f"'{spec.fabric}' has no effect with {alone}")


def _warn_of_limit(
    limit_w: float | None, pools: Sequence[Pool], key: str, *, problems: Problems
) -> None:
    """Warn of a power limit above the rating of all devices under it, or far below that of any."""
    devices = {pool.node.device.name: pool.node.device.tdp_w for pool in pools}
    if limit_w is None:
        return
    if low := _far_below(limit_w, devices):
        problems.warn(key, low)
    if not all(limit_w >= tdp_w for tdp_w in devices.values()):
        return
    rated = " and ".join(f"{name} is rated at {tdp_w:g} W" for name, tdp_w in devices.items())
    what = f"{rated}; set it below that" if devices else "all pools have one of their own"
    problems.warn(key, f"{limit_w:g} W has no effect: {what}")


def idle_limits(cluster: Cluster, limits_w: Sequence[float], *, name: str) -> tuple[str, ...]:
    """Return warnings of limits above what all devices are rated at, or far below. [W]

    The rated power itself is where a sweep begins.
    """
    devices = {pool.node.device.name: pool.node.device.tdp_w for pool in cluster.pools}
    rated_w = max(devices.values())
    low = [f"{name}: {why}" for limit_w in limits_w if (why := _far_below(limit_w, devices))]
    return tuple(low) + tuple(
        f"{name}: {limit_w:g} W has no effect: the devices are rated at {rated_w:g} W; set it "
        "below that"
        for limit_w in limits_w
        if limit_w > rated_w
    )


def _far_below(limit_w: float, rated_w: Mapping[str, float]) -> str:
    """Return that a limit is far below the rated power of a device; empty if of none. [W]"""
    found = [name for name, tdp_w in rated_w.items() if limit_w < _LEAST_LIMIT * tdp_w]
    if not found:
        return ""
    return (
        f"{limit_w:g} W is below a quarter of the rated power of {' and '.join(found)}: no limit "
        "that low was measured, and drivers may refuse it (nvidia-smi -q -d POWER)"
    )


def warn_of_unknown_words(device: Device, place: str, *, problems: Problems) -> None:
    """Warn of a vendor or architecture that no device of the catalog has: a slip, or a new one.

    Profiled devices have constants of their own; so have processors, which are all profiled.
    """
    if device.name in device_names() or device.kind == "cpu":
        return
    rests = {
        "vendor": "what holds for devices of one vendor does not apply",
        "architecture": "constants of no architecture apply",
    }
    for key, rest in rests.items():
        word, known = getattr(device, key), words_of_devices(key)
        if word in known or word.startswith("sm-"):
            continue
        guess = nearest(word, known)
        hint = f"; did you mean '{guess}'?" if guess else ""
        problems.warn(
            place, f"no device of the catalog has {key} '{word}' of {device.name}: {rest}{hint}"
        )


def warn_of_fabric_kind(fabric: Fabric, *, problems: Problems) -> None:
    """Warn of a kind of fabric whose paths predictions do not have."""
    if fabric.kind in {"dragonfly", "torus"}:
        problems.warn(
            "cluster.fabric",
            f"kind {fabric.kind} of {fabric.name} has no effect on predictions: its leaf_nodes and "
            "oversubscription count as those of a fat-tree",
        )


def warn_of_port(node: Node, fabric: Fabric, *, problems: Problems) -> None:
    """Say that adapters fall back to the rate of the switch ports that they are plugged into."""
    for words in slow_ports(node, fabric):
        problems.warn("cluster.fabric", words)


def slow_ports(node: Node, fabric: Fabric) -> tuple[str, ...]:
    """Return a note on adapters that are faster than the switch ports; empty if they are not."""
    rate, port = node.nic_bandwidth_bytes_per_s, fabric.port_bytes_per_s
    if port is None or port >= rate:
        return ()
    ports, adapters = (format_quantity(8 * value, "bit/s") for value in (port, rate))
    return (
        f"ports of {fabric.name} run at {ports}, adapters of {node.name} could do {adapters}; "
        f"they are computed at {ports}",
    )


# ---------------------------------------------------------------- a preset with its degrees


def warn_of_idle_options(
    options: StrategyOptions, chosen: Mapping[str, Any], *, problems: Problems
) -> None:
    """Warn of options of the section `strategy` that have no effect at its degrees.

    Args:
        options: All of them, degrees filled in.
        chosen: Those that the file sets.
    """
    if options.traffic.offload.optimizer is not None:  # which DeepSpeed has with a stage of ZeRO
        chosen = {key: value for key, value in chosen.items() if key != "sharding"}
    _of_knobs(KNOBS, chosen, options.present(), problems=problems)
    parallelism = options.parallelism
    if "context_order" in chosen and options.cp > 1 and parallelism.context == ULYSSES:
        problems.warn(
            "strategy.context_order",
            f"'{parallelism.context_order}' has no effect with context ulysses: attention sees "
            "whole samples of some heads",
        )
    over = options.ep * (options.tp if parallelism.expert_over_tensor else 1)
    _of_load(options.expert_load, over, problems=problems)
    virtual_stages = options.pipeline.virtual_stages
    _of_pipeline("strategy", chosen, options.pp, virtual_stages, name="schedule", problems=problems)
    _of_pieces(options.traffic, options.tp, problems=problems)


def warn_of_preset(
    options: StrategyOptions, chosen: Mapping[str, Any], *, problems: Problems
) -> None:
    """Warn of a preset of which the file's other options or the cluster leave nothing.

    Args:
        options, chosen: As of `warn_of_idle_options`.
    """
    preset, sharding = str(chosen.get("preset")), options.memory.sharding
    if preset == "ddp" and options.fsdp > 1 and "sharding" not in chosen:
        problems.warn("strategy.fsdp", f"undoes preset 'ddp': the job is sharded as {sharding}")
    elif options.fsdp > 1 and sharding == "none":
        problems.warn("strategy.fsdp", "shards nothing with sharding none; set sharding: zero3")
    from wattree.strategy.presets import PRESETS

    sets = PRESETS.get(preset, {})
    own = sets.get("sharding", "none")
    if sets.keys() == {"sharding"} and own not in {"none", sharding}:
        problems.warn(
            "strategy.sharding", f"'{sharding}' undoes preset '{preset}', which is {own}; drop one"
        )
    for axis in (axis for axis, names in _PRESETS_OF.items() if preset in names):
        if options.degrees[axis] == 1:
            problems.warn(
                "strategy.preset", f"'{preset}' has no effect with {axis} 1; set {axis} above 1"
            )
    if sharding == "hybrid" and options.fsdp > 1 and options.dp == 1:
        problems.warn(
            "strategy.preset" if preset == "hsdp" else "strategy.sharding",
            "'hybrid' has no replicas with dp 1, and is zero3; use more nodes, or set fsdp lower",
        )


# ---------------------------------------------------------------- a tree


def warn_of_idle_tree(spec: TreeSpec, strategy: Strategy, *, problems: Problems) -> None:
    """Warn of settings of a tree, its mesh or its schedule that have no effect."""
    if len(strategy.meshes) > 1:  # what one mesh has no other use for, another may have
        for part in strategy.parts:
            _of_axes(part, problems=problems)
        _of_shares(spec, problems=problems)
        return
    degrees = strategy.degrees
    if spec.schedule is not None:
        given = spec.schedule.model_dump(exclude_unset=True)
        chunks = spec.schedule.virtual_stages
        _of_pipeline(
            "strategy.schedule", given, degrees["pp"], chunks, name="name", problems=problems
        )
    _of_axes(strategy, problems=problems)
    _of_shares(spec, problems=problems)
    stored = {
        axis
        for node in spec.tree.values()
        if node.memory is not None
        for axes in (node.memory.parameters, node.memory.optimizer)
        for axis in axes or ()
    }
    has = {
        "tp": degrees["tp"] > 1,
        "reductions": strategy.mesh.ranks > strategy.mesh.stages,
        "shards": any(strategy.mesh.degree(axis) > 1 for axis in stored),
        "colocation": (spec.processes_per_device or 1) > 1,
    }
    both = {**knobs_of(Traffic), **knobs_of(Colocation)}
    _of_knobs(both, spec.model_dump(exclude_unset=True), has, problems=problems)


def warn_of_idle_load(strategy: Strategy, *, problems: Problems) -> None:
    """Warn of settings of experts' tokens and traffic that have no effect in a tree."""
    if len(strategy.meshes) > 1:
        return
    _of_pieces(strategy.traffic, strategy.degrees["tp"], problems=problems)
    ranks = [
        strategy.mesh.size(node.compute.get("expert", ()) or ())
        for node in strategy.tree.nodes.values()
    ]
    _of_load(strategy.expert_load, max(ranks, default=1), problems=problems)


def _of_axes(strategy: Strategy, *, problems: Problems) -> None:
    mesh = strategy.mesh
    used = {mesh.stage_axis}
    for node in strategy.tree.nodes.values():
        stored = (node.memory.parameters, node.memory.gradients, node.memory.optimizer)
        for axes in (*node.compute.values(), *stored):
            used.update(axes or ())
    for axis, degree in mesh.axes:
        if degree > 1 and axis not in used:
            problems.warn(
                f"strategy.meshes.{mesh.name}.mesh.{axis}"
                if mesh.name
                else f"strategy.mesh.{axis}",
                f"no node of the tree splits anything over '{axis}', so its {degree} ranks all do "
                f'the same work; give a dim to it, such as "": {{compute: {{batch: {axis}}}}}',
            )


def _of_shares(spec: TreeSpec, *, problems: Problems) -> None:
    memories = {pattern: node.memory for pattern, node in spec.tree.items() if node.memory}
    if any(memory.activations == "recompute" for memory in memories.values()):
        return
    for pattern, memory in memories.items():
        if memory.recompute_share is not None:
            problems.warn(
                f"strategy.tree.{pattern!r}.memory.recompute_share",
                f"{memory.recompute_share:g} has no effect: no node recomputes; "
                "set activations: recompute",
            )


# ---------------------------------------------------------------- both


def warn_of_idle_capacity(
    load: ExpertLoad | None, *, software: str, dropless: bool, problems: Problems
) -> None:
    """Warn of a capacity of experts in software that has none."""
    if load is not None and load.capacity is not None and dropless:
        problems.warn(
            "strategy.expert_capacity",
            f"has no effect: '{software}' drops no tokens; set traits: {{moe_dropless: false}}",
        )


def _of_knobs(
    knobs: Mapping[str, Knob],
    written: Mapping[str, Any],
    has: Mapping[str, bool],
    *,
    problems: Problems,
) -> None:
    """Warn of unmet requirements of knobs; arguments as of `Knob.idle_line`."""
    for key, knob in knobs.items():
        if (line := knob.idle_line(written, has)) is not None:
            problems.warn(f"strategy.{key}", line)


def _of_load(load: ExpertLoad | None, ranks: int, *, problems: Problems) -> None:
    """Warn of uneven experts where all ranks have the same ones.

    Args:
        load: What the file says of experts' tokens.
    """
    if load is None:
        return
    if ranks == 1:
        problems.warn(
            "strategy.expert_imbalance" if load.capacity is None else "strategy.expert_capacity",
            "has no effect with ep 1: every rank holds all experts; set ep above 1",
        )
    elif load.capacity is not None and load.imbalance == 1 and load.spread == 0:
        problems.warn(
            "strategy.expert_capacity",
            "has no effect without expert_imbalance: no expert gets more tokens than the mean",
        )


def _of_pieces(traffic: Traffic, tensor: int, *, problems: Problems) -> None:
    """Warn of matmuls split into pieces where no traffic overlaps with them."""
    if traffic.tensor_pieces is None:
        return
    why = (
        "tp 1"
        if tensor == 1
        else "overlap_tensor: false"
        if traffic.overlap_tensor is False
        else "in_line: [tensor]"
        if "tensor" in traffic.in_line
        else None
    )
    if why is not None:
        problems.warn(
            "strategy.tensor_pieces", f"has no effect with {why}: there is no traffic to hide"
        )


def _of_pipeline(
    place: str,
    given: Mapping[str, Any],
    stages: int,
    chunks: int,
    *,
    name: str,
    problems: Problems,
) -> None:
    schedule = given.get(name)
    none = "has no effect with pp 1: there is no pipeline; set pp above 1"
    if stages == 1 and schedule not in {None, Schedule().name}:
        problems.warn(f"{place}.{name}", f"'{schedule}' {none}")
    elif stages > 1 and chunks == 1 and schedule in _WITH_ONE_CHUNK:
        problems.warn(
            f"{place}.{name}",
            f"'{schedule}' with one chunk on each stage gains nothing over "
            f"'{_WITH_ONE_CHUNK[schedule]}'; set virtual_stages above 1",
        )
    if stages == 1 and chunks == 1 and given.get("stage_layers") is not None:
        problems.warn(f"{place}.stage_layers", none)

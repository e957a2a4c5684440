"""Check that the strategy fits the model and the cluster: list every misfit with a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.errors import StrategyError, did_you_mean, nearest, once_each
from wattree.graph import DimRole, ModelGraph, Operator, OperatorKind
from wattree.hardware import Cluster
from wattree.lowering.mesh_parts import mesh_misfits, mesh_spans
from wattree.lowering.passes.shared_heads import with_shared_heads
from wattree.lowering.split_rules import counted_units, indivisible_units
from wattree.lowering.stages import stage_misfits
from wattree.strategy import (
    AXES,
    OWNER,
    ContextExchange,
    Mesh,
    Strategy,
    StrategyTree,
    TreeNode,
)
from wattree.units import counted


def check_fits(
    model: ModelGraph,
    strategy: Strategy,
    cluster: Cluster,
    *,
    global_batch: int,
    sequence: int,
    devices: int | None = None,
) -> None:
    """Raise a StrategyError that lists every misfit, if there is one.

    Checked: ranks against devices, axes that the tree uses, patterns of a hand-written tree that
    match nothing, heads, experts, features and positions against the degrees that split them,
    samples against replicas and micro-batches, positions against the model's longest sequence,
    layers against pipeline chunks. `devices` are those that the job has, if not the whole cluster.
    """
    found = misfits(
        model, strategy, cluster, global_batch=global_batch, sequence=sequence, devices=devices
    )
    if found:
        raise StrategyError(found)


def misfits(
    model: ModelGraph,
    strategy: Strategy,
    cluster: Cluster,
    *,
    global_batch: int,
    sequence: int,
    devices: int | None = None,
) -> dict[str, str]:
    """Return path → misfit. Arguments as of `check_fits`."""
    found = _rank_misfits(strategy, cluster) if devices is None else _own(strategy, devices)
    if len(strategy.meshes) == 1:
        found |= stage_misfits(model, strategy.mesh.stages, strategy.schedule)
        spans: tuple[range, ...] = (range(len(model.instances)),)
    else:
        found |= (misplaced := mesh_misfits(model, strategy))
        spans = () if misplaced else mesh_spans(model, strategy)
    found |= _axis_misfits(strategy)
    everywhere: list[_Target] = []
    for part, span in zip(strategy.parts, spans, strict=False):
        found |= _named(part.mesh, uneven := _batch_misfits(part, global_batch))
        shared = with_shared_heads(model, strategy.tree, dict(part.mesh.axes))
        targets = list(_targets(shared, part, span))
        samples = 0 if uneven else global_batch // strategy.schedule.micro_batches
        found |= _dim_misfits(targets, part, sequence, samples)
        everywhere += targets
    if spans:
        found |= _context_misfits(model, strategy.tree, everywhere)
    if spans and not strategy.preset:  # presets also name layers that a model may lack
        found |= _pattern_misfits(model, strategy.tree, everywhere)
    return found


def _named(mesh: Mesh, found: Mapping[str, str]) -> dict[str, str]:
    """Return misfits of one of several meshes, keyed by paths that name the mesh."""
    return {f"{path} ({mesh.name})" if mesh.name else path: why for path, why in found.items()}


# ---------------------------------------------------------------- ranks, samples, axes


def _rank_misfits(strategy: Strategy, cluster: Cluster) -> dict[str, str]:
    ranks, devices = strategy.ranks, cluster.devices
    there = counted(devices, "device")
    product = " + ".join(
        " x ".join(f"{axis} {degree}" for axis, degree in mesh.axes) or "1"
        for mesh in strategy.meshes
    )
    if ranks > devices:
        reason = f"but the cluster has {there}; use smaller degrees or more nodes"
        return {"strategy.mesh": f"{product} = {counted(ranks, 'rank')}, {reason}"}
    each = math.lcm(*(pool.node.devices for pool in cluster.pools))
    if devices % ranks and (cluster.is_mixed or (ranks > each and ranks % each)):
        # Neither part of a node nor whole ones.
        reason = f"do not divide the cluster's {there}; use degrees whose product is"
        return {"strategy.mesh": f"{product} = {counted(ranks, 'rank')} {reason} {devices}"}
    return {}


def _own(strategy: Strategy, devices: int) -> dict[str, str]:
    """Return misfits of ranks and devices where the job has its devices alone: one rank each."""
    if strategy.ranks == devices:
        return {}
    return {
        "strategy.mesh": f"found {strategy.ranks} ranks, expected {devices}, the devices of "
        "the job; name as many devices as the degrees multiply to"
    }


def _batch_misfits(strategy: Strategy, global_batch: int) -> dict[str, str]:
    axes = strategy.tree.choices("").compute.get("batch", ())
    replicas = strategy.mesh.size(axes)
    share = replicas * strategy.schedule.micro_batches
    if global_batch % share:
        return {
            "data.global_batch": f"{counted(global_batch, 'sample')} cannot be split over "
            f"{replicas} replicas x {strategy.schedule.micro_batches} micro-batches; use a "
            f"multiple of {share}"
        }
    return {}


def _axis_misfits(strategy: Strategy) -> dict[str, str]:
    """Return nodes with axes that neither the mesh nor any preset has, or that hold stages."""
    found = {}
    known = dict.fromkeys((*(axis for mesh in strategy.meshes for axis, _ in mesh.axes), *AXES))
    held = {mesh.stage_axis for mesh in strategy.meshes if mesh.stages > 1}
    for pattern, node in strategy.tree.nodes.items():
        for axis in _axes_of(node):
            if axis not in known:
                reason = f"unknown axis '{axis}'; expected one of {', '.join(known)}"
            elif axis in held:
                reason = f"axis '{axis}' holds the stages of the pipeline, which split nothing else"
            else:
                continue
            found[f"strategy.tree.{pattern!r}"] = reason
    return found


def _axes_of(node: TreeNode) -> list[str]:
    stored = (node.memory.parameters, node.memory.gradients, node.memory.optimizer)
    return [axis for axes in (*node.compute.values(), *stored) for axis in axes or ()]


# ---------------------------------------------------------------- operators and what splits them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """An operator and the patterns that apply to it, weakest first."""

    path: str
    operator: Operator
    patterns: tuple[str, ...]


def _targets(model: ModelGraph, strategy: Strategy, span: range) -> Iterator[_Target]:
    """Yield the operators of every block of a span that patterns treat differently.

    Presets treat the instances of a block alike, so one of each stands for all.
    """
    tree = strategy.tree
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for instance in model.instances[span.start : span.stop]:
        if strategy.preset and (instance.block, ()) in seen:
            continue
        seen.add((instance.block, ()))
        near = tree.matching_below(instance.path)
        if (instance.block, near) in seen:
            continue
        seen.add((instance.block, near))
        part = StrategyTree(nodes={pattern: tree.nodes[pattern] for pattern in near})
        for operator in model.blocks[instance.block].operators:
            path = f"{instance.path}.{operator.path}"
            yield _Target(path=path, operator=operator, patterns=part.matching(path))


def _dim_misfits(
    targets: Sequence[_Target], strategy: Strategy, sequence: int, samples: int
) -> dict[str, str]:
    """Return operators that cannot be split as requested; `samples` per micro-batch, 0: unknown."""
    found: dict[str, str] = {}
    for at in targets:
        compute = strategy.tree.resolve(at.patterns).compute
        used: dict[str, str] = {}
        for dim, axes in compute.items():
            degree = strategy.mesh.size(axes)
            if degree == 1 or not (dim == OWNER or at.operator.has_dim(dim)):
                continue
            owned = dim == OWNER
            reason = None if owned else _misfit(at.operator, dim, degree, axes, sequence)
            if dim == "batch" and samples % degree:
                over = ", ".join(axes)
                reason = (
                    f"{samples} samples of a micro-batch do not divide over {over} ({degree}); "
                    "use fewer micro-batches, or fewer ranks"
                )
            for axis in axes:
                if strategy.mesh.degree(axis) > 1 and axis in used:
                    reason = f"axis '{axis}' splits both '{used[axis]}' and '{dim}'; choose one"
                used[axis] = dim
            if reason:
                found.setdefault(at.path, reason)
    return once_each(found, "at {} more operators")


def _context_misfits(
    model: ModelGraph, tree: StrategyTree, targets: Sequence[_Target]
) -> dict[str, str]:
    """Return nodes that set context parallelism of attention where there is no attention."""
    asked = [p for p, node in tree.nodes.items() if node.context or node.context_order]
    met = {
        pattern
        for at in targets
        if at.operator.kind is OperatorKind.ATTENTION
        for pattern in at.patterns
    }
    if not asked or met & set(asked):
        return {}
    node = tree.nodes[asked[0]]
    return {
        f"strategy.tree.{asked[0]!r}": f"'{node.context or node.context_order}' is about attention "
        f"over positions that are split, but {model.name} has none there; leave it out"
    }


def check_domains(cluster: Cluster, rates: Sequence[Rates], *, even: bool) -> None:
    """Reject scale-up domains of unequal size where rates depend on places inside them.

    Args:
        rates: By pool.
        even: Whether all that the job uses are of one size.

    Raises:
        StrategyError: They do.
    """
    if even or not any(each.collectives.looks_at_any() for each in rates):
        return
    sizes = ", ".join(
        f"{p.domain_devices} of {p.node.name} in nodes of {p.node.devices}" for p in cluster.pools
    )
    if not cluster.is_mixed:
        sizes += f", {cluster.devices % cluster.domain_devices} in the last"
    words = (
        f"found scale-up domains of unequal size ({sizes}); expected equal ones"
        f"{', a node each' * cluster.is_mixed}, because a domain has links without a switch (such "
        "as a torus, a ring or PCIe), or collectives names an algorithm"
    )
    raise StrategyError({f"cluster.{'pools' if cluster.is_mixed else 'nodes'}": words})


def check_ring(tree: StrategyTree, software: Software) -> None:
    """Reject ring attention where the software stores whole score matrices.

    Raises:
        StrategyError: Ring attention needs a fused kernel.
    """
    misfits = {
        f"strategy.tree.{pattern!r}": f"context 'ring' computes attention block by block, but "
        f"'{software.name}' keeps the whole score matrix; use gather or ulysses, or "
        "traits: {fused_attention: true}"
        for pattern, node in tree.nodes.items()
        if node.context is ContextExchange.RING
    }
    if misfits and not software.fused_attention:
        raise StrategyError(dict([next(iter(misfits.items()))]))


def _misfit(
    operator: Operator, dim: str, degree: int, axes: tuple[str, ...], sequence: int
) -> str | None:
    loop = operator.dim(dim)
    over = f"axis '{axes[0]}'" if len(axes) == 1 else f"axes {', '.join(axes)}"
    instead = "; use tp or pp instead of cp" if dim == "seq" and "cp" in axes else ""
    if loop.role is DimRole.OPAQUE:
        may = ", ".join(d.name for d in operator.dims if d.role is not DimRole.OPAQUE)
        return f"dim '{dim}' cannot be split (over {over}, {degree}); dims that can: {may}{instead}"
    if operator.in_turn == dim:
        found = f"runs over '{dim}' step by step, so no axis can split it (found {over}, {degree})"
        return found + instead
    if operator.window is not None and dim == "seq":
        return f"slides a window over '{dim}', which is not split (found {over}, {degree}){instead}"
    units = indivisible_units(operator, dim, sequence)
    if units is None or units % degree == 0:
        return None
    what = counted_units(operator, dim) or f"units of '{dim}'"
    hint = max(d for d in range(1, degree + 1) if units % d == 0)
    other = ", or context ring or gather" if dim == "heads" and "cp" in axes else ""
    if axes == ("ep", "tp"):
        other = ", or expert_over_tensor: false, where tensor ranks split each expert"
    return (
        f"{units} {what} do not divide over {over} "
        f"({degree}); use a degree that divides {units}, such as {hint}{other}"
    )


# ---------------------------------------------------------------- patterns of a hand-written tree


def _pattern_misfits(
    model: ModelGraph, tree: StrategyTree, targets: Sequence[_Target]
) -> dict[str, str]:
    matched: dict[str, list[Operator]] = {pattern: [] for pattern in tree.nodes}
    for at in targets:
        for pattern in at.patterns:
            matched[pattern].append(at.operator)
    found = {}
    for pattern, operators in matched.items():
        place = f"strategy.tree.{pattern!r}"
        if not operators:
            found[place] = _matches_nothing(model, pattern)
        elif reason := _unknown_dims(tree.nodes[pattern].compute, operators):
            found[place] = reason
    return found


def _matches_nothing(model: ModelGraph, pattern: str) -> str:
    known: dict[str, None] = {}
    for instance in model.instances:
        for operator in model.blocks[instance.block].operators:
            segments = f"{instance.path}.{operator.path}".split(".")
            general = ["*" if segment.isdigit() else segment for segment in segments]
            for length in range(1, len(segments) + 1):
                known[".".join(general[:length])] = None
    guess = nearest(pattern, known)
    hint = f"did you mean '{guess}'?" if guess else f"parts: {', '.join(_tops(known))}"
    return f"matches no operator of {model.name}; {hint}"


def _tops(paths: Mapping[str, None]) -> list[str]:
    return [path for path in paths if path.count(".") == path.count(".*")]


def _unknown_dims(
    compute: Mapping[str, tuple[str, ...]], operators: Sequence[Operator]
) -> str | None:
    have = dict.fromkeys(dim.name for operator in operators for dim in operator.dims)
    for dim in compute:
        if dim not in have and dim != OWNER:
            hint = did_you_mean(dim, have)
            return f"no operator here has a dim '{dim}'; {hint}they have {', '.join(have)}"
    return None

"""Does the strategy fit the model and the cluster? Every misfit is found, with what would help."""

from __future__ import annotations

import math

from wattree.errors import StrategyError
from wattree.graph import ModelGraph, Operator
from wattree.hardware import Cluster
from wattree.strategy import Strategy

__all__ = ["check_fits", "misfits"]


def check_fits(
    model: ModelGraph, strategy: Strategy, cluster: Cluster, *, global_batch: int, sequence: int
) -> None:
    """Raise a StrategyError that lists every misfit, if there is one.

    Checked: ranks against devices, axes that the tree uses against the mesh, patterns that match
    nothing, heads, experts, features and positions against the degrees that split them, samples
    against replicas and micro-batches, positions against the model's longest sequence.
    """
    found = misfits(model, strategy, cluster, global_batch=global_batch, sequence=sequence)
    if found:
        raise StrategyError(found)


def misfits(
    model: ModelGraph, strategy: Strategy, cluster: Cluster, *, global_batch: int, sequence: int
) -> dict[str, str]:
    """Return path → what does not fit there."""
    found: dict[str, str] = {}
    ranks = strategy.mesh.ranks
    if ranks > cluster.devices:
        found["strategy.mesh"] = (
            f"{_product(strategy)} = {ranks} ranks, but the cluster has {cluster.devices} devices; "
            "use smaller degrees or more nodes"
        )
    elif cluster.devices % ranks:
        found["strategy.mesh"] = (
            f"{_product(strategy)} = {ranks} ranks do not divide the cluster's "
            f"{cluster.devices} devices; use degrees whose product is {cluster.devices}"
        )
    if model.max_sequence_length is not None and sequence > model.max_sequence_length:
        found["data.sequence_length"] = (
            f"{sequence} tokens, but {model.name} admits at most {model.max_sequence_length}"
        )
    found |= _batch_misfits(strategy, global_batch)
    found |= _dim_misfits(model, strategy, sequence)
    return found


def _product(strategy: Strategy) -> str:
    return " x ".join(f"{axis} {degree}" for axis, degree in strategy.mesh.axes) or "1"


def _batch_misfits(strategy: Strategy, global_batch: int) -> dict[str, str]:
    axes = strategy.tree.choices("").compute.get("batch", ())
    replicas = strategy.mesh.size(axes)
    share = replicas * strategy.schedule.micro_batches
    if global_batch % share:
        return {
            "data.global_batch": f"{global_batch} samples do not split over {replicas} replicas x "
            f"{strategy.schedule.micro_batches} micro-batches; use a multiple of {share}"
        }
    return {}


def _dim_misfits(model: ModelGraph, strategy: Strategy, sequence: int) -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[tuple[str, tuple[object, ...]]] = set()
    used: set[str] = set()
    for instance in model.instances:
        for operator in model.blocks[instance.block].operators:
            path = f"{instance.path}.{operator.path}"
            patterns = strategy.tree.matching(path) if (instance.block, ()) not in seen else ()
            if not patterns:
                continue
            used.update(patterns)
            choice = strategy.tree.resolve(patterns)
            for dim, axes in choice.compute.items():
                if operator.has_dim(dim):
                    reason = _misfit(operator, dim, strategy.mesh.size(axes), axes, sequence)
                    if reason:
                        found.setdefault(path, reason)
        seen.add((instance.block, ()))
    unknown = {
        axis
        for node in strategy.tree.nodes.values()
        for axes in node.compute.values()
        for axis in axes
    } - set(_KNOWN)
    for axis in unknown:
        found[f"strategy.tree.{axis}"] = f"unknown axis; expected one of {', '.join(_KNOWN)}"
    return found


_KNOWN = ("pp", "dp", "fsdp", "ep", "cp", "tp")


def _misfit(
    operator: Operator, dim: str, degree: int, axes: tuple[str, ...], sequence: int
) -> str | None:
    if degree == 1 or dim == "batch":
        return None
    loop = operator.dim(dim)
    units = loop.units
    if units is None:
        length = loop.extent.coefficient
        if loop.extent.seq:
            length = sequence * max(length, 1.0)
        units = round(length)
    if units % degree == 0:
        return None
    over = f"axis '{axes[0]}'" if len(axes) == 1 else f"axes {', '.join(axes)}"
    hint = math.gcd(units, degree)
    return f"{units} {_plural(dim)} do not divide over {over} ({degree}); use a degree that divides {units}, such as {hint}"


def _plural(dim: str) -> str:
    return {"seq": "positions", "out": "output units", "in": "input units", "heads": "head groups"}.get(
        dim, f"units of '{dim}'"
    )

"""The meshes of a strategy: several, each with its own stages and devices.

A mesh `on` another one is nested in it: the same ranks as another grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from math import prod

from pydantic import ValidationError

from wattree.hardware import Cluster
from wattree.job.place import Allotment, JobPlace
from wattree.job.problems import Problems, ranges, shown
from wattree.job.strategy_schema import MeshSpec, TreeSpec
from wattree.strategy import (
    STAGES,
    FineMesh,
    Mesh,
    StrategyOptions,
    StrategyTree,
    fine_mesh,
    in_line,
    on_fine_axes,
)


def axes_of(spec: TreeSpec) -> dict[str, None]:
    """Return the axes of all meshes that a strategy writes down."""
    meshes = (spec.mesh or {}, *(own.mesh for own in (spec.meshes or {}).values()))
    return dict.fromkeys(axis for mesh in meshes for axis in mesh)


def meshes_of(
    spec: TreeSpec, tree: StrategyTree, *, problems: Problems
) -> tuple[tuple[Mesh, ...], StrategyTree] | None:
    """Return the meshes of a strategy, and its tree on their axes; None after noting faults."""
    stage_axis = STAGES if spec.schedule is None else spec.schedule.axis
    if (spec.mesh is None) == (spec.meshes is None):
        found = "found neither of them" if spec.mesh is None else "found both"
        problems.add("strategy", f"{found}, expected one of mesh and meshes")
        return None
    if spec.mesh is not None:
        found_mesh = None
        with problems.at("strategy.mesh"):
            found_mesh = Mesh(axes=tuple(spec.mesh.items()), stage_axis=stage_axis)
        _check_names(spec, (), problems=problems)
        return None if found_mesh is None else ((found_mesh,), tree)
    assert spec.meshes is not None
    before = len(problems.lines)
    _check_nesting(spec.meshes, stage_axis, problems=problems)
    _check_names(spec, tuple(spec.meshes), problems=problems)
    if len(problems.lines) > before:
        return None
    fine: list[FineMesh] = []
    for name, own in spec.meshes.items():
        if own.on is None:
            with problems.at(f"strategy.meshes.{name}.mesh"):
                fine += _fine(name, own, spec.meshes, stage_axis, problems=problems)
    if len(problems.lines) > before:
        return None
    axes = {axis: parts for each in fine for axis, parts in each.axes.items() if parts != (axis,)}
    nested = {name: own.on for name, own in spec.meshes.items() if own.on is not None}
    return in_line([each.mesh for each in fine]), on_fine_axes(tree, axes, nested)


def _fine(
    name: str, own: MeshSpec, meshes: Mapping[str, MeshSpec], stage_axis: str, *, problems: Problems
) -> list[FineMesh]:
    mesh = Mesh(axes=tuple(own.mesh.items()), stage_axis=stage_axis, name=name)
    inside = {other: spec for other, spec in meshes.items() if spec.on == name}
    found = fine_mesh(mesh, [tuple(spec.mesh.items()) for spec in inside.values()])
    if found is not None:
        return [found]
    problems.add(
        f"strategy.meshes.{next(iter(inside))}.mesh",
        f"found {', '.join(inside)} on {name}, whose axes cut through each other; expected degrees "
        "whose products, outermost first, divide each other",
    )
    return []


def _check_nesting(meshes: Mapping[str, MeshSpec], stage_axis: str, *, problems: Problems) -> None:
    """Note meshes on others that are not there, or that have not as many ranks."""
    for name, own in meshes.items():
        place = f"strategy.meshes.{name}"
        if own.on is None:
            continue
        if own.on not in meshes or meshes[own.on].on is not None or own.on == name:
            others = [other for other, spec in meshes.items() if spec.on is None]
            problems.add(
                f"{place}.on",
                f"found {shown(own.on)}, expected a mesh with ranks of its own: "
                + ", ".join(others),
            )
            continue
        if own.devices is not None:
            problems.add(f"{place}.devices", f"found with on: it has the devices of {own.on}")
        base = meshes[own.on].mesh
        ranks = prod(degree for axis, degree in base.items() if axis != stage_axis)
        if prod(own.mesh.values()) != ranks:
            problems.add(
                f"{place}.mesh",
                f"found {prod(own.mesh.values())} ranks, expected {ranks}: those of a stage of "
                f"mesh {own.on}",
            )
        if twice := [axis for axis in own.mesh if axis in base]:
            problems.add(
                f"{place}.mesh",
                f"found {', '.join(twice)}, which {own.on} has too; give axes of the same ranks "
                "names of their own",
            )


def _check_names(spec: TreeSpec, known: Sequence[str], *, problems: Problems) -> None:
    """Note nodes of the tree that name a mesh which is not there."""
    for pattern, node in spec.tree.items():
        if node.mesh is not None and node.mesh not in known:
            expected = f"one of {', '.join(known)}" if known else "a key strategy.meshes"
            problems.add(
                f"strategy.tree.{pattern!r}.mesh", f"found {shown(node.mesh)}, expected {expected}"
            )


def check_ranks(
    strategy: StrategyOptions | Sequence[Mesh],
    cluster: Cluster | Allotment,
    *,
    problems: Problems,
) -> None:
    """Note a strategy, or the meshes of one, with more or fewer ranks than there are devices."""
    if isinstance(strategy, StrategyOptions):
        degrees, ranks, counts = strategy.degrees, strategy.ranks, ""
    else:
        degrees, ranks = dict(strategy[0].axes), sum(mesh.ranks for mesh in strategy)
        counts = " + ".join(f"{mesh.name} {mesh.ranks}" for mesh in strategy if mesh.name)
    devices = cluster.devices
    may_leave = isinstance(cluster, Allotment) and cluster.at_most
    if ranks == devices or (may_leave and ranks < devices):
        return
    owner = "the cluster" if isinstance(cluster, Cluster) else "its place"
    if counts:
        problems.add(
            "strategy.meshes",
            f"found {ranks} ranks ({counts}), expected {devices}, the devices of {owner}: every "
            "device is on one mesh",
        )
        return
    product = " × ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
    others = ranks // degrees.get("dp", 1)
    todo = (
        f"set dp: {devices // others}"
        if "dp" in degrees and devices % others == 0
        else f"choose degrees that multiply to {devices}"
    )
    tensor, experts = degrees.get("tp", 1), degrees.get("ep", 1)
    if tensor > 1 and ranks > devices and experts > tensor and experts % tensor == 0:
        todo += (
            f". ep multiplies with dp here, and experts spread over tp ranks too: what Megatron "
            f"calls {experts} expert-parallel ranks is ep: {experts // tensor}"
        )
    if isinstance(cluster, Cluster) and ranks < devices and not cluster.is_mixed:
        todo += f", or name the devices that it has (place.devices: {ranges(range(ranks))})"
    problems.add(
        "strategy",
        f"the degrees multiply to {ranks} ranks ({product or 'all 1'}), expected {devices}, the "
        f"devices of {owner}; {todo}",
    )


def mesh_devices(
    value: object, cluster: Cluster | None, place: JobPlace | None, *, problems: Problems
) -> tuple[int, ...] | None:
    """Return the device of each rank, in the order of the meshes; None where none is named.

    Args:
        cluster: Whose devices they are; None where it could not be read.
        place: Where the job says that it sits.
    """
    specs = _own_meshes(value)
    if place is not None and place.order is not None and len(specs) > 1:
        problems.add("place.order", "found with strategy.meshes; name the devices of each mesh")
    named = {name: spec.devices for name, spec in specs.items() if spec.devices is not None}
    if not named or cluster is None:
        return None
    allowed = range(cluster.devices) if place is None else place.devices
    used = Counter(device for devices in named.values() for device in devices)
    rest = iter([device for device in allowed if device not in used])
    found: list[int] = []
    for name, spec in specs.items():
        ranks = prod(spec.mesh.values())
        own = list(islice(rest, ranks)) if spec.devices is None else spec.devices
        if len(own) != ranks:
            problems.add(
                f"strategy.meshes.{name}.devices",
                f"found {len(own)} devices for {ranks} ranks, expected one for each",
            )
        found += own
    _check_devices(named, used, allowed, found, problems=problems)
    return tuple(found)


def _own_meshes(value: object) -> dict[str, MeshSpec]:
    """Return the meshes that have ranks of their own; none where something is wrong with one."""
    given = value.get("meshes") if isinstance(value, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    try:
        specs = {str(name): MeshSpec.model_validate(own) for name, own in given.items()}
    except ValidationError:  # noted where the strategy was read
        return {}
    return {name: spec for name, spec in specs.items() if spec.on is None}


def _check_devices(
    named: Mapping[str, Sequence[int]],
    used: Mapping[int, int],
    allowed: Sequence[int],
    found: Sequence[int],
    *,
    problems: Problems,
) -> None:
    """Note devices that are not there, that two ranks have, and that none has."""
    for name, devices in named.items():
        place = f"strategy.meshes.{name}.devices"
        if beyond := sorted({device for device in devices if device not in allowed}):
            problems.add(
                place, f"found {ranges(beyond)}, expected devices from {ranges(list(allowed))}"
            )
        own = Counter(devices)
        if twice := sorted(device for device, count in own.items() if count > 1):
            problems.add(place, f"found {ranges(twice)} more than once, expected each device once")
        shared = sorted(device for device, count in own.items() if used[device] > count)
        others = [
            other for other, theirs in named.items() if other != name and set(theirs) & set(shared)
        ]
        if shared:
            problems.add(
                place,
                f"found {ranges(shared)}, which {', '.join(others)} has too; expected devices of "
                f"its own, or 'on: {others[0]}' for another grid of the same ranks",
            )
    if missing := sorted(set(allowed) - set(found)):
        problems.add(
            "strategy.meshes", f"found devices {ranges(missing)} on no mesh, expected every device"
        )

"""Assignment of model parts to meshes, and the stage cuts of all meshes.

A strategy of several meshes is one pipeline: each mesh has stages of its own, and runs blocks that
follow each other, in the order of the meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from wattree.graph import BlockInstance, ModelGraph
from wattree.lowering.stages import chunk_starts, cut_model
from wattree.strategy import Mesh, Strategy, chunk_layers

#: What only strategies of one mesh have, by key of the strategy.
_OF_ONE: Mapping[str, Callable[[Strategy], bool]] = {
    "offload": lambda strategy: bool(strategy.traffic.offload.tiers),
    "single_process": lambda strategy: strategy.single_process,
    "processes_per_device": lambda strategy: strategy.colocation.is_several,
    "expert_imbalance": lambda strategy: strategy.expert_load is not None,
    "tree (phantom)": lambda strategy: any(n.phantom for n in strategy.tree.nodes.values()),
}


def stage_chunks(model: ModelGraph, strategy: Strategy) -> tuple[tuple[int, ...], ...]:
    """Return the block instances of each chunk of the pipeline, in model order.

    Args:
        model: What to cut; it fits.
    """
    if len(strategy.meshes) == 1:
        return cut_model(model, strategy.mesh.stages, strategy.schedule)
    starts: list[int] = []
    for mesh, span in zip(strategy.meshes, mesh_spans(model, strategy), strict=True):
        own = model.instances[span.start : span.stop]
        layers = _layers(mesh, model, span, strategy)
        starts += [span.start + start for start in chunk_starts(own, layers)]
    ends = [*starts[1:], len(model.instances)]
    return tuple(tuple(range(start, end)) for start, end in zip(starts, ends, strict=True))


def mesh_spans(model: ModelGraph, strategy: Strategy) -> tuple[range, ...]:
    """Return the block instances of each mesh; the strategy fits."""
    if len(strategy.meshes) == 1:
        return (range(len(model.instances)),)
    names = [mesh_names(model, strategy, instance)[0] for instance in model.instances]
    return tuple(
        range(names.index(mesh.name), names.index(mesh.name) + names.count(mesh.name))
        for mesh in strategy.meshes
    )


def mesh_names(
    model: ModelGraph, strategy: Strategy, instance: BlockInstance
) -> tuple[str | None, ...]:
    """Return the meshes that the tree names for the operators of a block, each once."""
    paths = (f"{instance.path}.{each.path}" for each in model.blocks[instance.block].operators)
    return tuple(dict.fromkeys(strategy.tree.mesh_of(path) for path in paths))


def _layers(mesh: Mesh, model: ModelGraph, span: range, strategy: Strategy) -> Sequence[int]:
    """Return the layers of each stage of a mesh."""
    if strategy.schedule.stage_layers is not None:
        numbers = mesh.stage_numbers
        return strategy.schedule.stage_layers[numbers.start : numbers.stop]
    layers = sum(model.instances[number].is_layer for number in span)
    return chunk_layers(layers, mesh.stages)


def mesh_misfits(model: ModelGraph, strategy: Strategy) -> dict[str, str]:
    """Return path → why the meshes cannot run the model as the tree assigns them."""
    found = {
        f"strategy.{key}": "found with several meshes; expected one mesh"
        for key, is_given in _OF_ONE.items()
        if is_given(strategy)
    }
    found |= _schedule_misfits(strategy)
    if misplaced := _misplaced(model, strategy):
        return found | misplaced
    for mesh, span in zip(strategy.meshes, mesh_spans(model, strategy), strict=True):
        counts = _layers(mesh, model, span, strategy)
        layers = sum(model.instances[number].is_layer for number in span)
        where = f"strategy.meshes.{mesh.name}"
        if strategy.schedule.stage_layers is not None and sum(counts) != layers:
            numbers = mesh.stage_numbers
            found[f"strategy.schedule.stage_layers ({mesh.name})"] = (
                f"found {sum(counts)} layers for the stages {numbers.start} to "
                f"{numbers.stop - 1} of mesh '{mesh.name}', expected {layers}, those that it runs"
            )
        elif mesh.stages > len(span) or (mesh.stages > 1 and min(counts) < 1):
            found[where] = (
                f"found {mesh.stages} stages for {layers} layers, expected a layer or more for "
                "each; use fewer"
            )
    return found


def _schedule_misfits(strategy: Strategy) -> dict[str, str]:
    schedule, stages = strategy.schedule, strategy.stages
    found = schedule.misfits(stages)
    if found:
        return found
    placement = schedule.placed(stages)
    if placement.chunks > 1 or placement.copies > 1:
        return {
            "strategy.schedule.name": f"found {schedule.name} with {placement.chunks} chunks on "
            "each stage, expected one on each where stages are on several meshes, as of 'gpipe', "
            "'1f1b' and 'zb-h1'"
        }
    given = schedule.stage_layers
    if given is not None and len(given) != stages:
        return {
            "strategy.schedule.stage_layers": f"found {len(given)} numbers, expected {stages}: one "
            "for each stage of all meshes"
        }
    return {}


def _misplaced(model: ModelGraph, strategy: Strategy) -> dict[str, str]:
    """Return blocks that are on no mesh, on several, or on one that comes too early or too late."""
    known = [mesh.name for mesh in strategy.meshes]
    homeless, split = [], {}
    homes: list[tuple[str, str]] = []
    for instance in model.instances:
        names = mesh_names(model, strategy, instance)
        homes += [(instance.path, name) for name in names[:1] if name in known]
        if len(names) > 1:
            split[instance.path] = ", ".join(str(name) for name in names)
        elif names[0] not in known:
            homeless.append(instance.path)
    found = {
        path: f"its operators are on several meshes ({names}), expected one: a block runs on one"
        for path, names in split.items()
    }
    if homeless:
        more = f" (and {len(homeless) - 1} more)" if len(homeless) > 1 else ""
        found[homeless[0]] = (
            f"is on no mesh, so no device holds it{more}; name one in the tree, such as "
            f'"{homeless[0].split(".")[0]}": {{mesh: {known[0]}}}'
        )
    if found:
        return found
    return _out_of_order(homes, known)


def _out_of_order(homes: Sequence[tuple[str, str]], known: Sequence[str]) -> dict[str, str]:
    runs = [(name, next(run)[0]) for name, run in groupby(homes, key=lambda home: home[1])]
    found = {
        f"strategy.meshes.{name}": "runs no part of the model; name it in the tree, or leave it out"
        for name in known
        if name not in {run for run, _ in runs}
    }
    order = [name for name, _ in runs]
    if not found and order != list(known):
        found["strategy.meshes"] = (
            f"found {', '.join(known)}, but the model goes through "
            + ", ".join(f"{name} (from {path})" for name, path in runs)
            + "; expected each mesh once, in the order of the model"
        )
    return found

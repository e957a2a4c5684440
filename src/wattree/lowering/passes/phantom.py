"""Pass 0a: linear layers that the strategy makes phantom layers become the operators of those.

The model's function changes, so the model's graph does, before anything is split;
`phantom_layer.py` has the operators.

Where features do not divide, the first ranks have one more (as the runtime lays them). All ranks do
the same in what is compiled: then each is as wide as the widest, which bounds the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.errors import StrategyError, once_each
from wattree.graph import (
    Block,
    BlockInstance,
    ModelGraph,
    Operator,
    OperatorKind,
    joined_parts,
)
from wattree.lowering.passes.phantom_layer import PhantomLayer
from wattree.strategy import RANK, Choices, PhantomLayers, StrategyTree
from wattree.strategy.parts import column_dim, column_dims, is_linear, row_dim, row_dims


def has_phantoms(tree: StrategyTree) -> bool:
    """Return whether a tree changes the model's function."""
    return any(node.phantom is not None for node in tree.nodes.values())


def with_phantoms(
    model: ModelGraph, tree: StrategyTree, degrees: Mapping[str, int], *, counted: bool = False
) -> tuple[ModelGraph, StrategyTree]:
    """Return the model with its phantom layers, and the tree with their split over ranks.

    Args:
        model: As it is without them.
        degrees: Axis → degree; that of the phantom layers' axis is part of the model.
        counted: The function as figures count it: the parameters that there are, and no product
            more than once. Otherwise as it is compiled: every rank is as wide as the widest, and
            where activations are exchanged, makes all ghosts itself.

    Raises:
        StrategyError: Layers cannot be phantom layers; all are listed.
    """
    if not has_phantoms(tree):
        return model, tree
    trains = model.trainable_parameters > 0
    misfits: dict[str, str] = {}
    blocks: dict[str, Block] = {}
    made: dict[tuple[object, ...], str] = {}
    instances = []
    for instance in model.instances:
        block = model.blocks[instance.block]
        near = tree.below(instance.path)
        choices = [near.choices(f"{instance.path}.{o.path}") for o in block.operators]
        key = (instance.block, tuple(choice.phantom for choice in choices))
        if key not in made:
            changed = _changed(
                block, choices, degrees, instance, misfits, counted=counted, trains=trains
            )
            made[key] = _named(changed, blocks)
            blocks[made[key]] = replace(changed, name=made[key])
        instances.append(replace(instance, block=made[key]))
    if misfits:
        raise StrategyError(once_each(misfits, "in {} more layers"))
    nodes = {
        pattern: node
        if node.phantom is None
        else replace(node, compute={**node.compute, RANK: (node.phantom.axis,)})
        for pattern, node in tree.nodes.items()
    }
    changed_model = replace(model, blocks=blocks, instances=tuple(instances))
    return changed_model, StrategyTree(nodes=nodes)


def _named(block: Block, blocks: Mapping[str, Block]) -> str:
    """Return a name of its own for a block of which there may be several forms."""
    name, number = block.name, 1
    while name in blocks:
        number += 1
        name = f"{block.name}.{number}"
    return name


def _changed(
    block: Block,
    choices: Sequence[Choices],
    degrees: Mapping[str, int],
    instance: BlockInstance,
    misfits: dict[str, str],
    *,
    counted: bool,
    trains: bool,
) -> Block:
    """Return the block with its phantom layers; errors are added to `misfits`."""
    operators: list[Operator] = []
    for operator, choice in zip(block.operators, choices, strict=True):
        how = choice.phantom
        if how is None or operator.kind is not OperatorKind.MATMUL or operator.weight is None:
            operators.append(operator)
            continue
        ranks = degrees.get(how.axis, 1)
        parts = joined_parts(operator)  # each exchanges ghosts of its own
        reasons = {
            part.path: reason
            for part in parts
            if (reason := _axis_misfit(how, degrees) or _misfit(part, how, ranks, trains=trains))
            is not None
        }
        if reasons:
            misfits.update({f"{instance.path}.{path}": why for path, why in reasons.items()})
            operators.append(operator)
            continue
        for part in parts:
            dense = part if part is operator else replace(part, path=_below(operator, part))
            operators += PhantomLayer.of(dense, how, ranks, counted=counted).operators()
    return replace(block, operators=tuple(operators))


def _below(operator: Operator, part: Operator) -> str:
    """Return a path for a projection of a joined matmul, below it, so that its choices apply."""
    whole, own = operator.path.split("."), part.path.split(".")
    while own[1:] and own[0] == whole[0]:
        whole, own = whole[1:], own[1:]
    return ".".join((operator.path, *own))


# ---------------------------------------------------------------- what cannot be one


def _axis_misfit(how: PhantomLayers, degrees: Mapping[str, int]) -> str | None:
    if degrees.get(how.axis, 1) > 1:
        return None
    return (
        f"phantom layers over axis '{how.axis}' of one rank are linear layers; give the axis 2 "
        "ranks or more"
    )


def _misfit(operator: Operator, how: PhantomLayers, ranks: int, *, trains: bool) -> str | None:
    """Return why a linear layer cannot be a phantom layer; None if it can."""
    weight = operator.weight
    assert weight is not None
    if trains and any(not parameter.trainable for parameter in operator.parameters):
        return "is frozen; a phantom layer is another function, whose weights have to be trained"
    if any(parameter.tied_to is not None for parameter in operator.parameters):
        return "shares its weight with another layer, so it cannot be a phantom layer"
    row, column = row_dim(operator), column_dim(operator)
    if not is_linear(operator):
        return (
            "is no linear layer (one input whose features are summed over, a weight of output by "
            "input features), so it cannot be a phantom layer"
        )
    assert row is not None
    assert column is not None
    rows = row_dims(operator)
    for name, features in ((row, rows), (column, column_dims(operator))):
        if reason := _width_misfit(operator, name, how, ranks, is_alone=len(features) == 1):
            return reason
    shard = round(math.prod(operator.dim(name).extent.coefficient for name in rows)) // ranks
    if how.ghosts > shard:
        return (
            f"{how.ghosts} ghosts are more than the {shard} features of its input that a rank "
            f"holds; use {shard} or fewer"
        )
    return None


def _width_misfit(
    operator: Operator, name: str, how: PhantomLayers, ranks: int, *, is_alone: bool
) -> str | None:
    """Return why a dim cannot be cut into blocks; None if it can.

    With other dims of features (not `is_alone`), each of its indices is a head.
    """
    loop = operator.dim(name)
    features = round(loop.extent.coefficient)
    heads = loop.units if is_alone or loop.units is not None else features
    if heads is not None and heads % ranks:
        return (
            f"{heads} heads of '{name}' do not divide over {ranks} ranks of '{how.axis}'; use "
            f"a degree that divides {heads}"
        )
    if features < ranks:
        return (
            f"{features} features of '{name}' are fewer than the {ranks} ranks of '{how.axis}'; "
            f"use {features} or fewer"
        )
    return None

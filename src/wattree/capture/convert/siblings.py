"""Joins parallel projections of one tensor to one matmul: queries, keys, values; gate and up.

The catalog's transformers have them so, as Megatron-LM runs them, and the constants of software
families were fitted on that form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from wattree.graph import (
    Block,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    TensorRole,
    joined_path,
)


def graph_with_joined_projections(graph: ModelGraph) -> ModelGraph:
    """Return the graph with projections side by side joined, but those that blocks share."""
    shared = {
        parameter.tied_to
        for block in graph.blocks.values()
        for operator in block.operators
        for parameter in operator.parameters
    }
    paths = {instance.block: instance.path for instance in reversed(graph.instances)}
    blocks = {
        name: with_joined_projections(block, paths[name], shared)
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def with_joined_projections(
    block: Block, path: str = "", shared: Collection[str | None] = ()
) -> Block:
    """Return the block with column-parallel projections of one tensor joined.

    Args:
        path: Of the instance that owns its parameters.
        shared: Global names of parameters that other blocks refer to; theirs are not joined.
    """
    groups: dict[object, list[Operator]] = {}
    for operator in block.operators:
        names = {f"{path}/{parameter.name}" for parameter in operator.parameters}
        if _may_join(operator) and names.isdisjoint(shared):
            groups.setdefault(_key(operator), []).append(operator)
    joined = {group[0].path: _joined(group) for group in groups.values() if len(group) > 1}
    gone = {o.path for group in groups.values() if len(group) > 1 for o in group[1:]}
    return replace(
        block,
        operators=tuple(
            joined.get(operator.path, operator)
            for operator in block.operators
            if operator.path not in gone
        ),
    )


def _may_join(operator: Operator) -> bool:
    return (
        operator.kind is OperatorKind.MATMUL
        and operator.role is TensorRole.COLUMN
        and len(operator.inputs) == len(operator.outputs) == 1
        and operator.weight is not None
        and operator.has_dim("out")
        and all(parameter.tied_to is None for parameter in operator.parameters)
        and all(name.startswith("out") for name in _features(operator))  # else a matmul by batch
    )


def _key(operator: Operator) -> object:
    """Return the common properties of matmuls that can be joined."""
    out = set(_features(operator))
    return (
        operator.inputs,
        operator.saved,
        operator.kernels,
        operator.dim("out"),
        tuple(dim for dim in operator.dims if dim.name not in out),
        tuple((p.trainable, "in" in p.dims) for p in operator.parameters),
    )


def _features(operator: Operator) -> list[str]:
    """Return the dims of the output features."""
    read = set(operator.inputs[0].dims)
    return [name for name in operator.outputs[0].dims if name not in read]


def _joined(group: Sequence[Operator]) -> Operator:
    """Return one matmul for several.

    Its features are `out`, and under it those of each in turn.
    """
    first = group[0]
    shares = [_share(operator) for operator in group]
    lead = [dim for dim in first.dims if dim.name not in _features(first)]
    most = max(len(_features(operator)) for operator in group)
    dims = (
        *lead,
        first.dim("out"),
        IterationDim(name="out_1", extent=Extent(coefficient=sum(shares)), role=DimRole.OPAQUE),
        *(
            IterationDim(name=_unit(place), extent=Extent(), role=DimRole.OPAQUE)
            for place in range(most - 2)
        ),
    )
    return replace(
        first,
        path=joined_path([operator.path for operator in group]),
        linear_layers=len(group),
        dims=dims,
        outputs=tuple(
            _output(operator, share, sum(shares))
            for operator, share in zip(group, shares, strict=True)
        ),
        parameters=tuple(
            _parameter([operator.parameters[place] for operator in group])
            for place in range(len(first.parameters))
        ),
    )


def _share(operator: Operator) -> float:
    """Return the number of features of a matmul for each index of `out`."""
    names = [name for name in _features(operator) if name != "out"]
    return prod(operator.dim(name).extent.coefficient for name in names)


def _unit(place: int) -> str:
    return "unit" if place == 0 else f"unit_{place}"


def _output(operator: Operator, share: float, total: float) -> Operand:
    output = operator.outputs[0]
    features = _features(operator)
    inner = [name for name in features if name != "out"]
    names = {"out": "out"} | {
        name: "out_1" if place == 0 else _unit(place - 1) for place, name in enumerate(inner)
    }
    fraction = output.fraction * (share / total if inner else 1.0)
    return replace(
        output, dims=tuple(names.get(name, name) for name in output.dims), fraction=fraction
    )


def _parameter(parameters: Sequence[Parameter]) -> Parameter:
    kept = tuple(name for name in parameters[0].dims if not name.startswith("out"))
    return replace(
        parameters[0],
        name=joined_path([parameter.name for parameter in parameters]),
        dims=("out", "out_1", *kept),
        elements=sum(parameter.elements for parameter in parameters),
    )

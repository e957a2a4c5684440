"""Pass 0b: parts of unequal width are all as wide as the widest, which bounds the step.

Layers of plain stacks can be split over ranks that do not divide them: the first ranks have one
feature more. What is compiled is one rank's, the same for all, so dims that are split unevenly are
lengthened to the next multiple: each part is as wide as the widest. Collectives of what is not
split keep their size. Other models are refused as before (`compiler.fits`), as the software that
runs them does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.graph import Block, IterationDim, ModelGraph, Operator, Parameter, TensorRole
from wattree.strategy import Choices, StrategyTree, tensor_degrees

#: Dims of an operator, and the ranks that each is split over.
_Longer = tuple[tuple[str, int], ...]


def with_widest_parts(
    model: ModelGraph, tree: StrategyTree, degrees: Mapping[str, int]
) -> ModelGraph:
    """Return the model as its widest rank has it; the very same where all parts are even.

    Args:
        model: With its phantom layers, if it has any.
        degrees: Axis → degree.
    """
    tensor = tensor_degrees(tree, degrees)
    if not any(
        _has_parts(operator, dim) and _extent(dim) % math.prod(tensor.values())
        for operator in model.operators
        for dim in operator.dims
    ):
        return model
    blocks: dict[str, Block] = {}
    made: dict[tuple[str, tuple[_Longer, ...]], str] = {}
    instances = []
    for instance in model.instances:
        block = model.blocks[instance.block]
        near = tree.below(instance.path)
        choices = [near.choices(f"{instance.path}.{o.path}") for o in block.operators]
        longer = _longer(block.operators, choices, tensor)
        key = instance.block, longer
        if key not in made:
            is_new = instance.block not in blocks
            name = instance.block if is_new else f"{instance.block}.{len(made)}"
            operators = tuple(
                _lengthened(operator, dict(dims))
                for operator, dims in zip(block.operators, longer, strict=True)
            )
            made[key] = name
            blocks[name] = replace(block, name=name, operators=operators)
        instances.append(replace(instance, block=made[key]))
    return replace(model, blocks=blocks, instances=tuple(instances))


def _has_parts(operator: Operator, dim: IterationDim) -> bool:
    """Return whether ranks may have parts of a dim that are of unequal width."""
    countable = dim.units is None and not (dim.extent.batch or dim.extent.seq)
    return operator.role is TensorRole.EITHER and countable


def _extent(dim: IterationDim) -> int:
    return round(dim.extent.coefficient)


def _longer(
    operators: Sequence[Operator], choices: Sequence[Choices], tensor: Mapping[str, int]
) -> tuple[_Longer, ...]:
    """Return the dims of each operator with uneven parts, and the ranks that split them."""
    return tuple(
        tuple(
            (dim.name, ranks)
            for dim in operator.dims
            if (axes := choice.compute.get(dim.name, ()))
            and set(axes) <= tensor.keys()
            and (ranks := math.prod(tensor[axis] for axis in axes)) <= dim.extent.coefficient
            and _has_parts(operator, dim)
            and _extent(dim) % ranks
        )
        for operator, choice in zip(operators, choices, strict=True)
    )


def _lengthened(operator: Operator, names: Mapping[str, int]) -> Operator:
    """Return the operator with each of some dims as long as its widest part times its ranks."""
    if not names:
        return operator
    factors: dict[str, float] = {}
    dims = []
    for dim in operator.dims:
        if dim.name in names:
            length = dim.extent.coefficient
            ranks = names[dim.name]
            padded = float(ranks * math.ceil(length / ranks))
            factors[dim.name] = padded / length
            dim = replace(dim, extent=replace(dim.extent, coefficient=padded))  # noqa: PLW2901
        dims.append(dim)
    return replace(
        operator,
        dims=tuple(dims),
        parameters=tuple(_with_more(each, factors) for each in operator.parameters),
    )


def _with_more(parameter: Parameter, factors: Mapping[str, float]) -> Parameter:
    factor = math.prod(factors.get(dim, 1.0) for dim in parameter.dims)
    return replace(parameter, elements=round(parameter.elements * factor))

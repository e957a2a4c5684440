"""Projections of one tensor that are joined in one matmul, and the individual projections.

Captured queries, keys and values, or gate and up, become one product where the software runs them
as one. What concerns each projection by itself takes such a product apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from wattree.graph.operators import Extent, Operator, Parameter

#: Between the names of projections that are one product.
_MARK = "+"
#: Dim of what all projections have of one head, or of one feature.
_INNER = "out_1"


def joined_path(paths: Sequence[str]) -> str:
    """Return one path for several: what they share in front once, the rest side by side."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(shared < len(part) - 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    front = "".join(f"{name}." for name in parts[0][:shared])
    return front + _MARK.join(path[len(front) :] for path in paths)


def joined_parts(operator: Operator) -> tuple[Operator, ...]:
    """Return the projections joined in a matmul, or the matmul itself if it is a single one."""
    paths = _apart(operator.path)
    if len(paths) == 1 or len(paths) != len(operator.outputs):
        return (operator,)
    return tuple(_part(operator, paths, place) for place in range(len(paths)))


def _apart(path: str) -> list[str]:
    """Return the paths that were joined; of those that follow, as deep as the first."""
    first, *others = path.split(_MARK)
    depth = first.split(".")
    return [
        first,
        *(".".join((*depth[: len(depth) - other.count(".") - 1], other)) for other in others),
    ]


def _part(operator: Operator, paths: Sequence[str], place: int) -> Operator:
    output = operator.outputs[place]
    has_inner = _INNER in output.dims
    inner = operator.dim(_INNER)
    share = inner.extent.coefficient * output.fraction if has_inner else 1.0
    read = {name for operand in operator.inputs for name in operand.dims}
    dims = tuple(
        replace(dim, extent=Extent(coefficient=share)) if dim.name == _INNER else dim
        for dim in operator.dims
        if dim.name in read or dim.name in output.dims
    )
    return replace(
        operator,
        path=paths[place],
        dims=dims,
        outputs=(replace(output, fraction=1.0),) if has_inner else (output,),
        parameters=tuple(
            _parameter(each, place, {dim.name for dim in dims}, share / inner.extent.coefficient)
            for each in operator.parameters
        ),
    )


def _parameter(
    parameter: Parameter, place: int, known: AbstractSet[str], share: float
) -> Parameter:
    return replace(
        parameter,
        name=_apart(parameter.name)[place],
        dims=tuple(name for name in parameter.dims if name in known),
        elements=round(parameter.elements * share),
    )

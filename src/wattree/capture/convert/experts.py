"""Experts of a mixture whose weights are one tensor: finds and names their common dim.

A router takes a softmax or the largest few over as many entries as there are experts, and products
with weights of `(experts, in, out)` iterate that dim and the tokens of each. Such a dim is called
`expert`, there and in what is done element by element between two of these products, so that
strategies can spread it; everything else of the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.graph import DimRole, Operand, Operator, OperatorKind

#: What the dim is called.
EXPERT = "expert"
_BETWEEN = (OperatorKind.ELEMENTWISE, OperatorKind.COPY)
_ROUTES = (OperatorKind.SOFTMAX, OperatorKind.SORT)


def with_experts(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators of a block, with the experts' dim called `expert`."""
    routed = {
        dim.extent
        for operator in operators
        if operator.kind in _ROUTES
        for dim in operator.dims
        if dim.role is DimRole.OPAQUE and not dim.extent.seq and not dim.extent.batch
    }
    found: dict[int, str] = {}
    for place, operator in enumerate(operators):
        dim = _leading(operator)
        if dim is not None and operator.dim(dim).extent in routed:
            found[place] = dim
    found |= _between(operators, found)
    return tuple(
        _renamed(operator, found[place]) if place in found else operator
        for place, operator in enumerate(operators)
    )


def _leading(operator: Operator) -> str | None:
    """Return the dim that weights, input and output of a matmul share; None without one."""
    if operator.kind is not OperatorKind.MATMUL or operator.weight is None:
        return None
    if not operator.inputs or not operator.outputs or not operator.has_dim("batch"):
        return None
    weights = operator.weight.dims
    shared = set(weights) & set(operator.inputs[0].dims) & set(operator.outputs[0].dims)
    is_first = bool(weights) and weights[0] in shared and len(shared) == 1
    return weights[0] if is_first and operator.dim(weights[0]).extent.coefficient > 1 else None


def _between(operators: Sequence[Operator], matmuls: dict[int, str]) -> dict[int, str]:
    """Return the elementwise nests between two matmuls of experts: place → its dim."""
    carried: dict[str, int] = {}  # tensor → position of the experts' dim
    passed: dict[int, str] = {}
    for place, operator in enumerate(operators):
        dim = matmuls.get(place)
        if dim is None and operator.kind in _BETWEEN:
            seen = {o.dims[carried[o.tensor]] for o in operator.inputs if o.tensor in carried}
            dim = passed[place] = seen.pop() if len(seen) == 1 else ""
        for output in operator.outputs if dim else ():
            if dim in output.dims:
                carried[output.tensor] = output.dims.index(dim)
    wanted: set[str] = set()
    kept: dict[int, str] = {}
    for place in reversed(range(len(operators))):
        dim = matmuls.get(place) or passed.get(place)
        writes = {output.tensor for output in operators[place].outputs}
        if place in matmuls or (dim and writes & wanted):
            wanted |= {o.tensor for o in operators[place].inputs if dim in o.dims}
            if place not in matmuls and dim:
                kept[place] = dim
    return kept


def _renamed(operator: Operator, old: str) -> Operator:
    """Return the operator with one of its dims called `expert`."""

    def names(dims: Sequence[str]) -> tuple[str, ...]:
        return tuple(EXPERT if name == old else name for name in dims)

    def operands(seen: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple(replace(operand, dims=names(operand.dims)) for operand in seen)

    return replace(
        operator,
        dims=tuple(replace(d, name=EXPERT) if d.name == old else d for d in operator.dims),
        inputs=operands(operator.inputs),
        outputs=operands(operator.outputs),
        parameters=tuple(replace(p, dims=names(p.dims)) for p in operator.parameters),
    )

"""Experts of a mixture whose weights are one tensor: finds and names their common dim.

A router takes a softmax or the largest few over as many entries as there are experts, and products
with weights of `(experts, in, out)` iterate that dim and the tokens of each. Such a dim is called
`expert`, there and in what is done element by element between two of these products, so that
strategies can spread it; everything else of the graph stays as it is.

Grouped matmuls between a dispatch and a combine have each token `top_k` times instead. With equal
loads an expert sees `top_k / experts` of the tokens, and so they get the catalog's form
(`wattree.capture.moe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from wattree.graph import (
    DimRole,
    Extent,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

#: What the dim is called.
EXPERT = "expert"
_BETWEEN = (OperatorKind.ELEMENTWISE, OperatorKind.COPY)
_ROUTES = (OperatorKind.SOFTMAX, OperatorKind.SORT)


def with_experts(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators of a block, with the experts' dim called `expert`."""
    operators = _routed(operators)
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
        operator.with_dims_named({found[place]: EXPERT}) if place in found else operator
        for place, operator in enumerate(operators)
    )


def _routed(operators: Sequence[Operator]) -> Sequence[Operator]:
    """Return the operators with an expert's tokens in the place of a token's experts."""
    ways: list[_Way] = []
    found = []
    for place, operator in enumerate(operators):
        if _permutes(operator, "dispatch"):
            ways.append(_Way.from_dispatch(operator, operators[place + 1 :]))
        way = next((each for each in reversed(ways) if each.takes(operator)), None)
        found.append(operator if way is None else way.through(operator))
    return found if all(way.is_known and way.is_whole for way in ways) else operators


def _permutes(operator: Operator, function: str) -> bool:
    return operator.kind is OperatorKind.PERMUTE and operator.function == function


@dataclass(slots=True)
class _Way:
    """The way of tokens to their experts, through their matmuls, and back.

    Attributes:
        experts: How many there are; 0: unknown.
        choices: Of them for each token, `top_k`.
        ends: Tensor that says where each expert's rows end: of equal loads, nothing to read.
        place: Of the dim of choices in tensors on the way; None where that is one.
        is_known: All on it is on the way of tokens that grow with the sequence.
        is_whole: It ends in a combine.
    """

    experts: int
    choices: int
    ends: str
    place: int | None
    carried: set[str] = field(default_factory=set)
    is_known: bool = True
    is_whole: bool = False

    @classmethod
    def from_dispatch(cls, dispatch: Operator, following: Sequence[Operator]) -> _Way:
        rows, ends = dispatch.outputs
        new = [name for name in rows.dims if name not in dispatch.inputs[0].dims]
        experts = 0
        for operator in following:
            if operator.function == "grouped_linear" and operator.weight is not None:
                experts = _shared_out(operator, operator.weight)
                break
        return cls(
            experts=experts,
            choices=round(dispatch.dim(new[0]).extent.coefficient) if new else 1,
            ends=ends.tensor,
            place=rows.dims.index(new[0]) if new else None,
        )

    def takes(self, operator: Operator) -> bool:
        """Return whether an operator is on the way: the dispatch, or what reads its rows."""
        writes = any(output.tensor == self.ends for output in operator.outputs)
        return writes or any(operand.tensor in self.carried for operand in operator.inputs)

    def through(self, operator: Operator) -> Operator:
        """Return an operator on the way with the experts' dim."""
        starts, ends = _permutes(operator, "dispatch"), _permutes(operator, "combine")
        rows = operator.outputs[:1] if starts else ()
        rows += tuple(o for o in operator.inputs if o.tensor in self.carried)
        if not ends and not starts:
            rows += operator.outputs
        self.carried |= {operand.tensor for operand in rows}
        self.is_whole |= ends
        choice = {None if self.place is None else operand.dims[self.place] for operand in rows}
        share = self.choices / max(self.experts, 1)
        moves = starts or ends

        def operand(seen: Operand) -> Operand:
            if seen not in rows:
                dims = tuple(name for name in seen.dims if name not in choice)
                kept = len(seen.dims) - len(dims)
                return replace(seen, dims=dims, fraction=seen.fraction * self.choices**kept)
            names = (EXPERT, *seen.dims) if self.place is None else seen.dims
            dims = tuple(EXPERT if name in choice else name for name in names)
            return replace(seen, dims=dims, fraction=seen.fraction * (share if moves else 1.0))

        positions = [name for o in rows for name in o.dims if operator.dim(name).extent.seq]
        self.is_known &= self.experts > 0 and len(choice) == 1 and bool(positions)
        role = DimRole.CONTRACTED if ends else DimRole.SPLITTABLE
        extent = Extent(coefficient=self.experts)
        expert = IterationDim(name=EXPERT, extent=extent, role=role, units=self.experts)
        dims = [dim for dim in operator.dims if dim.name not in choice and dim.name != "unit"]
        if not moves:
            dims = [_shortened(d, share) if d.name in positions[:1] else d for d in dims]
        return replace(
            operator,
            dims=(expert, *dims),
            inputs=tuple(operand(o) for o in operator.inputs if o.tensor != self.ends),
            outputs=tuple(operand(o) for o in operator.outputs if o.tensor != self.ends),
            parameters=tuple(
                replace(p, dims=(EXPERT, *p.dims))
                if _shared_out(operator, p) == self.experts
                else p
                for p in operator.parameters
            ),
        )


def _shared_out(operator: Operator, parameter: Parameter) -> int:
    """Return how many matrices of the loops' size a parameter holds."""
    size = prod(operator.dim(name).extent.coefficient for name in parameter.dims)
    return round(parameter.elements / size)


def _shortened(dim: IterationDim, share: float) -> IterationDim:
    extent = replace(dim.extent, coefficient=dim.extent.coefficient * share)
    return replace(dim, extent=extent)


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

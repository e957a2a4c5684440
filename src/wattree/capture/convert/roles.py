"""The role of operators in tensor parallelism.

Where a strand of dims begins in products that write it and ends in products that sum over it, the
former are split by columns and the latter by rows, and nothing in between exchanges anything
(Shoeybi et al., "Megatron-LM", 2019). Strands reach from one block into the next, so layers that
are blocks of their own are paired like those within one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Final

from wattree.capture.convert.strands import Strand, strands_of
from wattree.capture.embedding import vocabulary_units
from wattree.graph import (
    Block,
    DimRole,
    ModelGraph,
    Operator,
    OperatorKind,
    TensorRole,
)

#: Tables with fewer rows are token types and the like: no one splits those.
_LEAST_ROWS: Final = 1024
#: A product without a partner is split if, left whole, it would take longer than its neighbours
#: split over so many ranks, the devices of a usual node.
_NODE_RANKS: Final = 8
#: It must not block these degrees if its neighbours do not.
_DEGREES: Final = (2, 4, 8, 16, 32, 64)
_VOCABULARY: Final = TensorRole.VOCABULARY
_POSITIONWISE: Final = (OperatorKind.NORM, OperatorKind.ELEMENTWISE)

#: Place of an instance in the model, and of an operator in it.
_At = tuple[int, int]


def with_roles(graph: ModelGraph) -> ModelGraph:
    """Return the graph with the role of each operator that has one.

    A block whose instances play different parts becomes several.
    """
    blocks = graph.blocks
    chosen = _Chosen([blocks[instance.block] for instance in graph.instances])
    chosen.take(strands_of(graph))
    rows = _table_rows(blocks.values(), chosen.logits())
    made: dict[str, Block] = {}
    known: dict[object, str] = {}
    instances = []
    for place, instance in enumerate(graph.instances):
        roles, inside = chosen.of(place)
        key = instance.block, tuple(sorted(roles.items())), tuple(sorted(inside))
        if key not in known:
            name = known[key] = _free(instance.block, made, blocks)
            made[name] = replace(
                _with_roles(blocks[instance.block], roles, inside, rows), name=name
            )
        instances.append(replace(instance, block=known[key]))
    return replace(graph, blocks=made, instances=tuple(instances))


def _free(name: str, made: Mapping[str, Block], blocks: Mapping[str, Block]) -> str:
    """Return `name`, or if it is taken, that with the next free number."""
    if name not in made:
        return name
    stem = name.partition(":")[0]
    number = 2
    while f"{stem}:{number}" in made or f"{stem}:{number}" in blocks:
        number += 1
    return f"{stem}:{number}"


class _Chosen:
    """The split strands, and the resulting roles of each instance's operators."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks  # of each instance
        self._roles: dict[_At, TensorRole] = {}
        self._inside: set[_At] = set()

    def of(self, place: int) -> tuple[dict[int, TensorRole], set[int]]:
        """Return the roles in an instance, and the operators between its columns and rows."""
        operators = range(len(self._blocks[place].operators))
        roles = {at: self._roles[place, at] for at in operators if (place, at) in self._roles}
        return roles, {at for at in operators if (place, at) in self._inside}

    def logits(self) -> set[int]:
        """Return how many there are of each kind of logits that a loss takes."""
        found = (self._at(*at) for at, role in self._roles.items() if role is _VOCABULARY)
        return {round(_length(o, "out")) for o in found if o.has_dim("out")}

    def take(self, strands: Sequence[Strand]) -> None:
        """Choose among strands: those of logits first, then the remaining pairs in order."""
        pairs = []
        for strand in strands:
            losses = {(i, at) for i, at, _ in strand.ends if self._is_loss(i, at)}
            if not losses:
                pairs += [strand] if _is_pair(strand) else []
            elif all(_length(self._at(i, at), dim) >= _LEAST_ROWS for i, at, dim in strand.begins):
                begins = {(i, at) for i, at, _ in strand.begins}
                self._roles |= dict.fromkeys(begins | losses, TensorRole.VOCABULARY)
        split = [strand for strand in pairs if self._split(strand)]
        for strand in pairs:
            near = [one for one in split if one.matmuls & strand.matmuls]
            if strand not in split and near:
                self._split_alone(strand, near)

    def _at(self, place: int, at: int) -> Operator:
        return self._blocks[place].operators[at]

    def _is_loss(self, place: int, at: int) -> bool:
        return self._at(place, at).kind is OperatorKind.CROSS_ENTROPY

    def _split(self, strand: Strand) -> bool:
        """Split a strand, unless a matmul in it is already split by another of its dims."""
        if self._roles.keys() & strand.matmuls:
            return False
        self._roles |= {(i, at): TensorRole.COLUMN for i, at, _ in strand.begins}
        self._roles |= {(i, at): TensorRole.ROW for i, at, _ in strand.ends}
        self._inside |= {(i, at) for i, at, _ in strand.passes}
        return True

    def _split_alone(self, strand: Strand, near: Sequence[Strand]) -> None:
        """Split those matmuls of a strand whose partners in it are split with others.

        Their exchanges are their own, so it is done only where it is worth that.
        """
        weight = sum(_elements(self._at(*at)) for pair in near for at in pair.matmuls)
        units = gcd(*(_units(self._at(i, at), dim) for pair in near for i, at, dim in pair.begins))
        for at in sorted(strand.matmuls - self._roles.keys()):
            operator = self._at(*at)
            role = _role_alone(operator, units)
            if role is not None and _elements(operator) * _NODE_RANKS > weight:
                self._roles[at] = role


def _is_pair(strand: Strand) -> bool:
    """Return whether every matmul is split by its first dim: grouped heads by groups."""
    first = all(dim == "out" for *_, dim in strand.begins)
    return first and all(dim == "in" for *_, dim in strand.ends)


def _role_alone(operator: Operator, units: int) -> TensorRole | None:
    """Return the split of a matmul without a partner, for degrees that divide `units`.

    One of its sides is summed over ranks, the other gathered, which sends half as much for an
    element: the shorter side is summed.
    """
    weight, written = operator.factors[1], set(operator.outputs[0].dims)
    made = [dim for dim in weight.dims if dim in written]
    summed = [dim for dim in weight.dims if dim not in written]
    is_wider = _lengths(operator, made) >= _lengths(operator, summed)
    ways = [(TensorRole.COLUMN, "out", made), (TensorRole.ROW, "in", summed)]
    for role, name, dims in ways if is_wider else reversed(ways):
        if name in dims and operator.dim(name).role is not DimRole.OPAQUE:
            own = _units(operator, name)
            if not any(own % degree for degree in _DEGREES if units % degree == 0):
                return role
    return None


def _lengths(operator: Operator, dims: Iterable[str]) -> float:
    return prod(_length(operator, dim) for dim in dims)


def _units(operator: Operator, dim: str) -> int:
    loop = operator.dim(dim)
    return loop.units or round(loop.extent.coefficient)


def _elements(operator: Operator) -> int:
    return sum(parameter.elements for parameter in operator.parameters)


def _with_roles(
    block: Block, roles: Mapping[int, TensorRole], inside: set[int], table_rows: set[int]
) -> Block:
    """Return an instance's block with its roles, and those that are seen in the block alone."""
    found = dict(roles)
    for at, operator in enumerate(block.operators):
        is_table = _is_token_table(operator) or (
            _is_fixed_table(operator) and _rows(operator) in table_rows
        )
        if is_table or _is_plain_head(block, operator, table_rows):
            found.setdefault(at, TensorRole.VOCABULARY)
    if found:
        for at in _positionwise(block, inside):
            found.setdefault(at, TensorRole.POSITIONWISE)
    operators = tuple(
        _with_role(operator, found.get(at)) for at, operator in enumerate(block.operators)
    )
    return replace(block, operators=operators)


def _length(operator: Operator, dim: str) -> float:
    return operator.dim(dim).extent.coefficient


def _is_token_table(operator: Operator) -> bool:
    """Whether an operator looks up tokens of a sequence, in a table large enough to be split."""
    if operator.kind is not OperatorKind.EMBEDDING or not operator.has_dim("vocab"):
        return False
    return (
        operator.has_dim("batch")
        and operator.has_dim("seq")
        and _length(operator, "vocab") >= _LEAST_ROWS
    )


def _is_fixed_table(operator: Operator) -> bool:
    """Whether an operator looks up several entries of each sample, and gives a row for each."""
    if operator.kind is not OperatorKind.EMBEDDING or not operator.has_dim("vocab"):
        return False
    made = {name for output in operator.outputs for name in output.dims}
    places = made - {"batch"} - {name for p in operator.parameters for name in p.dims}
    return operator.has_dim("batch") and bool(places) and _rows(operator) >= _LEAST_ROWS


def _rows(operator: Operator) -> int:
    return round(_length(operator, "vocab"))


def _table_rows(blocks: Collection[Block], logits: set[int]) -> set[int]:
    """Return the rows of tables of tokens.

    Where the length of a sequence is fixed, those are tables with as many rows as there are logits.
    """
    operators = [operator for block in blocks for operator in block.operators]
    found = {_rows(operator) for operator in operators if _is_token_table(operator)}
    fixed = {_rows(operator) for operator in operators if _is_fixed_table(operator)}
    made = {
        round(_length(operator, "out"))
        for block in blocks
        for operator in block.operators
        if _is_plain_head(block, operator, fixed)
    }
    return found | (fixed & (made | logits))


def _is_plain_head(block: Block, operator: Operator, table_rows: set[int]) -> bool:
    """Whether an operator makes logits that the model gives as its result."""
    if block.output is not None or operator.kind is not OperatorKind.MATMUL:
        return False
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    ends = not read & {output.tensor for output in operator.outputs}
    return ends and operator.has_dim("out") and _length(operator, "out") in table_rows


def _positionwise(block: Block, inside: set[int]) -> Iterable[int]:
    """Return the operators on whole hidden states: in no strand, and with positions."""
    for at, operator in enumerate(block.operators):
        written = {output.tensor for output in operator.outputs}
        if (
            operator.kind in _POSITIONWISE
            and at not in inside
            and operator.kernels
            and operator.has_dim("seq")
            and operator.dim("seq").role is DimRole.SPLITTABLE
            and not written & set(block.given)
        ):
            yield at


def _with_role(operator: Operator, role: TensorRole | None) -> Operator:
    if role is not TensorRole.VOCABULARY:
        return replace(operator, role=role)
    # Frameworks pad what they split, so whether a degree divides it is asked of the padded rows.
    name = "out" if operator.kind is OperatorKind.MATMUL else "vocab"
    dims = tuple(
        replace(dim, units=vocabulary_units(round(dim.extent.coefficient)))
        if dim.name == name
        else dim
        for dim in operator.dims
    )
    kept = None if operator.kind is OperatorKind.CROSS_ENTROPY else role
    return replace(operator, dims=dims, role=kept)

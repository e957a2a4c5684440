"""What part operators play in tensor parallelism, found by following dims through a block.

Positions of tensors that operators walk by one loop hang together. Where such a *strand* begins in
products that write it and ends in products that sum over it, the former are split by columns and
the latter by rows, and nothing in between exchanges anything (Shoeybi et al., "Megatron-LM", 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from wattree.capture.embedding import vocabulary_units
from wattree.graph import Block, DimRole, IterationDim, Operator, OperatorKind, TensorRole

__all__ = ["with_roles"]

#: Tables with fewer rows are token types and the like: nobody splits those.
_LEAST_ROWS: Final = 1024
_POSITIONWISE: Final = (OperatorKind.NORM, OperatorKind.ELEMENTWISE)


def with_roles(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Return the blocks with the role of each operator that has one."""
    rows = {
        round(operator.dim("vocab").extent.coefficient)
        for block in blocks.values()
        for operator in block.operators
        if _is_token_table(operator)
    }
    return {name: _with_roles(block, rows) for name, block in blocks.items()}


@dataclass(slots=True)
class _Strand:
    """Loops of operators that one split would split: (operator, dim), by what they do to it."""

    begins: set[tuple[int, str]] = field(default_factory=set)
    ends: set[tuple[int, str]] = field(default_factory=set)
    passes: set[tuple[int, str]] = field(default_factory=set)
    is_loose: bool = False  # it leaves the block, or something in it cannot be split


def _with_roles(block: Block, table_rows: set[int]) -> Block:
    roles: dict[int, TensorRole] = {}
    inside: set[int] = set()
    for strand in _strands(block):
        losses = {at for at, _ in strand.ends if _is(block, at, OperatorKind.CROSS_ENTROPY)}
        if strand.is_loose or not strand.begins or not strand.ends:
            continue
        if losses:
            if all(_rows(block.operators[at], dim) >= _LEAST_ROWS for at, dim in strand.begins):
                begins = {at for at, _ in strand.begins}
                roles |= dict.fromkeys(begins | losses, TensorRole.VOCABULARY)
            continue
        columns = {at for at, dim in strand.begins if dim == "out"}
        rows = {at for at, dim in strand.ends if dim == "in"}
        # Every product is split by its first dim: of grouped heads, by groups.
        if len(columns) < len(strand.begins) or len(rows) < len(strand.ends):
            continue
        roles |= dict.fromkeys(columns, TensorRole.COLUMN)
        roles |= dict.fromkeys(rows, TensorRole.ROW)
        inside |= {at for at, _ in strand.passes}
    for at, operator in enumerate(block.operators):
        if _is_token_table(operator) or _is_plain_head(block, operator, table_rows):
            roles.setdefault(at, TensorRole.VOCABULARY)
    if roles:
        for at in _positionwise(block, inside):
            roles.setdefault(at, TensorRole.POSITIONWISE)
    operators = tuple(
        _with_role(operator, roles.get(at)) for at, operator in enumerate(block.operators)
    )
    return replace(block, operators=operators)


def _is(block: Block, at: int, kind: OperatorKind) -> bool:
    return block.operators[at].kind is kind


def _rows(operator: Operator, dim: str) -> float:
    return operator.dim(dim).extent.coefficient


def _is_token_table(operator: Operator) -> bool:
    """Whether an operator looks up tokens of a sequence, in a table large enough to be split."""
    if operator.kind is not OperatorKind.EMBEDDING or not operator.has_dim("vocab"):
        return False
    return (
        operator.has_dim("batch")
        and operator.has_dim("seq")
        and _rows(operator, "vocab") >= _LEAST_ROWS
    )


def _is_plain_head(block: Block, operator: Operator, table_rows: set[int]) -> bool:
    """Whether an operator makes logits that the model gives as its result."""
    if block.output is not None or operator.kind is not OperatorKind.MATMUL:
        return False
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    ends = not read & {output.tensor for output in operator.outputs}
    return ends and operator.has_dim("out") and _rows(operator, "out") in table_rows


def _positionwise(block: Block, inside: set[int]) -> Iterable[int]:
    """Return the operators on whole hidden states: what lies in no strand and has positions."""
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


def _strands(block: Block) -> list[_Strand]:
    """Return the strands of a block."""
    join = _Joined()
    for at, operator in enumerate(block.operators):
        for operand in (*operator.inputs, *operator.outputs):
            if operand.tensor in block.given:
                continue
            for place, dim in enumerate(operand.dims):
                join.join((at, dim), (operand.tensor, place))
    strands: dict[object, _Strand] = {}
    outside = {tensor.name for tensor in block.inputs}.union(block.outputs)
    for at, operator in enumerate(block.operators):
        for operand in (*operator.inputs, *operator.outputs):
            for place in range(len(operand.dims) if operand.tensor in outside else 0):
                strands.setdefault(join.root((operand.tensor, place)), _Strand()).is_loose = True
        for loop in operator.dims:
            strand = strands.setdefault(join.root((at, loop.name)), _Strand())
            _enter(strand, at, operator, loop)
    return list(strands.values())


def _enter(strand: _Strand, at: int, operator: Operator, loop: IterationDim) -> None:
    """Note what an operator does to a strand with one of its loops."""
    read = {name for operand in operator.inputs for name in operand.dims}
    written = {name for operand in operator.outputs for name in operand.dims}
    is_product = operator.kind is OperatorKind.MATMUL and bool(operator.parameters)
    own = set(operator.parameters[0].dims) if is_product else set()
    is_loss = operator.kind is OperatorKind.CROSS_ENTROPY and loop.name == "vocab"
    if loop.name in own & written - read:
        strand.begins.add((at, loop.name))
    elif is_loss or loop.name in own & read - written:
        strand.ends.add((at, loop.name))
    elif loop.role is DimRole.SPLITTABLE and loop.name in read & written:
        strand.passes.add((at, loop.name))
    elif loop.role is DimRole.SPLITTABLE and loop.name in written and not is_product:
        pass  # made of parameters alone: biases of heads, of which each rank reads its own
    else:
        strand.is_loose = True


class _Joined:
    """A union-find over loops of operators and positions of tensors."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def root(self, item: object) -> object:
        """Return what stands for all that hangs together with `item`."""
        while (parent := self._parents.setdefault(item, item)) != item:
            item = parent
        return item

    def join(self, one: object, other: object) -> None:
        """Let two hang together."""
        self._parents[self.root(one)] = self.root(other)

"""An operator and its split → the instruction that runs it, or its gradient, on one rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from wattree.cost.memory_bound import PARTS
from wattree.graph import Block, Operand, Operator, OperatorKind, Parameter, TensorRole
from wattree.lowering.layout import expert_position, local_part
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import ComputeInstruction, InstructionPhase, LocalSize, Matmul
from wattree.lowering.spread import Routed
from wattree.strategy import OWNER, Choices, ContextExchange, PositionOrder

#: Operators whose work is a matmul, plain or implicit.
MATMULS = frozenset({OperatorKind.MATMUL, OperatorKind.CONVOLUTION})
#: Bytes of a stored element from which on it has 8 bits, and fewer below.
IN_8_BITS = 1.0


def compute_instruction(
    operator: Operator,
    split: Split,
    phase: InstructionPhase,
    depends: tuple[int, ...],
    *,
    share: float = 1.0,
    given: bool = False,
    order: PositionOrder = PositionOrder.ZIGZAG,
    second_factor: bool = False,
    wide: Collection[str] = (),
) -> ComputeInstruction:
    """Return the instruction that runs `operator`, or its gradient, on one rank.

    `second_factor`: of a product of two activations, the gradient of the second. `wide`: tensors
    that autocast leaves in fp32.
    """
    outputs, reads, writes = _operands(operator, split, phase)
    weights = tuple(_local(operator, parameter, split) for parameter in operator.parameters)
    is_table = operator.kind is OperatorKind.EMBEDDING  # moved only as far as it is looked up
    attention = operator.kind is OperatorKind.ATTENTION
    stored_bytes = 0.0 if operator.weight is None else operator.weight.stored_bytes
    return ComputeInstruction(
        path=operator.path,
        kind=operator.kind,
        function=operator.function,
        phase=phase,
        traffic=(*reads, *writes, *(() if is_table else weights)),
        fixed_traffic=tuple(_fixed_traffic(operator, split)),
        reads=reads,
        writes=writes,
        wide_reads=_among(wide, operator, operator.inputs, split),
        wide_writes=_among(wide, operator, operator.outputs, split),
        weights=weights,
        trains=any(parameter.trainable for parameter in operator.parameters),
        row=_row(operator, split) if is_table else LocalSize(),
        lookups=_lookups(operator, split) if is_table else LocalSize(),
        window=operator.window,
        in_turn=local_part(operator, (operator.in_turn,), split) if operator.in_turn else None,
        matmul=matmul_of(operator, split, second_factor=second_factor),
        batch=together(operator, split, "batch", "window") if attention else LocalSize(),
        queries=together(operator, split, "seq") if attention else LocalSize(),
        keys=together(operator, {}, "kv_seq") if attention else LocalSize(),
        heads=_heads(operator, split) if attention else LocalSize(),
        mask=operator.mask,
        head_dim=operator.head_dim,
        value_head_dim=operator.value_head_dim,
        skewed_axes=skewed_axes(operator, split, order),
        kernels=operator.kernels,
        linear_layers=operator.linear_layers,
        stored_bytes=stored_bytes,
        owners=split.get(OWNER, ()),
        depends=tuple(sorted({each for each in depends if each >= 0})),
        reads_block_input=given,
        share=share,
        transient=(*outputs, *(weights if stored_bytes else ())),
        cached=_cached(operator, split),
    )


def _operands(
    operator: Operator, split: Split, phase: InstructionPhase
) -> tuple[tuple[LocalSize, ...], tuple[LocalSize, ...], tuple[LocalSize, ...]]:
    """Return the outputs of an operator, and what it reads and writes at its own widths."""
    outputs = tuple(_local(operator, output, split) for output in operator.outputs)
    reads, writes = (_at_width(operator, x, split) for x in (operator.inputs, operator.outputs))
    if operator.kernels > 0:
        return outputs, reads, writes
    # Another look at what is there; gradients of parts are put together.
    gathers = operator.function in PARTS and phase is InstructionPhase.INPUT_GRADIENT
    return (), (), writes if gathers else ()


def _fixed_traffic(operator: Operator, split: Split) -> Iterator[tuple[LocalSize, float]]:
    for operand in (*operator.inputs, *operator.outputs):
        if operand.element_bytes is not None and operator.kernels > 0:
            yield _local(operator, operand, split), operand.element_bytes


def cache_size(operator: Operator, split: Split, positions: float) -> LocalSize:
    """Return the elements of a number of cached positions of a micro-batch on one rank."""
    assert operator.cache is not None
    size = together(operator, split, "batch").scaled(positions * operator.cache.elements)
    return size.over(split.get("heads", ())) if operator.cache.by_heads else size


def _cached(operator: Operator, split: Split) -> LocalSize | None:
    if operator.cache is None or not operator.cache.is_read:
        return None
    return cache_size(operator, split, operator.dim("kv_seq").extent.coefficient)


def together(operator: Operator, split: Split, *stems: str) -> LocalSize:
    """Return the product of the dims that are named `stem`, `stem_1`, …."""
    found = []
    for dim in operator.dims:
        name, _, number = dim.name.rpartition("_")
        if dim.name in stems or (name in stems and number.isdigit()):
            found.append(dim.name)
    return local_part(operator, found, split)


def _heads(operator: Operator, split: Split) -> LocalSize:
    return LocalSize(float(operator.query_heads)).over(split.get("heads", ()))


def _local(operator: Operator, operand: Operand | Parameter, split: Split) -> LocalSize:
    fraction = operand.fraction if isinstance(operand, Operand) else 1.0
    size = local_part(operator, operand.dims, split, factor=fraction)
    asks = operator.kind is OperatorKind.EMBEDDING and operand in operator.inputs[:1]
    if asks:  # only for the rows that this rank has
        size = size.over(_row_axes(operator, split))
    if isinstance(operand, Operand) and expert_position(operand) is not None:
        size = size.to_ranks("tokens" if split.get("expert") else "")
    if owners := split.get(OWNER, ()):
        of_operand: Routed = "tokens" if asks else "vectors"
        size = size.over(owners).to_ranks("held" if isinstance(operand, Parameter) else of_operand)
    return size


def _row_axes(operator: Operator, split: Split) -> tuple[str, ...]:
    """Return the axes that split the rows of a table: a rank has an even share of the lookups."""
    kept = {name for output in operator.outputs for name in output.dims}
    names = operator.parameters[0].dims if operator.parameters else ()
    return tuple(axis for name in names if name not in kept for axis in split.get(name, ()))


def _lookups(operator: Operator, split: Split) -> LocalSize:
    """Rows of a table that are read: one for each index."""
    if operator.inputs and operator.parameters:
        return _local(operator, operator.inputs[0], split)
    return _local(operator, operator.outputs[0], split)


def _row(operator: Operator, split: Split) -> LocalSize:
    """Elements of a row of a table: of dims that index both the table and the result."""
    found = {name for output in operator.outputs for name in output.dims}
    table = operator.parameters[0].dims if operator.parameters else ()
    return local_part(operator, (name for name in table if name in found), split)


def _at_width(
    operator: Operator, operands: Sequence[Operand], split: Split
) -> tuple[LocalSize, ...]:
    """Elements of the operands that are as wide as activations are."""
    return tuple(
        _local(operator, operand, split) for operand in operands if operand.element_bytes is None
    )


def _among(
    names: Collection[str], operator: Operator, operands: Sequence[Operand], split: Split
) -> tuple[LocalSize, ...]:
    """Return the elements of the operands of some names; none of what only looks at them."""
    found = [each for each in operands if each.tensor in names]
    return _at_width(operator, found, split) if found and operator.kernels else ()


#: Who indexes a dim (moving operand, output, weight) → which side of a product it is on.
_SIDES = {
    (True, True, True): "groups",
    (True, True, False): "m",
    (False, True, True): "n",
    (True, False, True): "k",
    (False, False, True): "n",  # which of several projections side by side it is
}


def _part(operator: Operator, indexed_by: tuple[bool, bool, bool]) -> str | None:
    """Return the side of a matmul that a dim is on, None for a dim that adds no work."""
    if operator.window is not None:
        if indexed_by == (False, False, True):  # taps, each of which meets another position
            return "n" if operator.window.transposed else "k"
        return _SIDES.get(indexed_by, "m")  # positions that a reshape of one side has cut finer
    return _SIDES.get(indexed_by)


def matmul_of(operator: Operator, split: Split, *, second_factor: bool) -> Matmul | None:
    """Sort the iteration dims into rows, columns, contraction and groups by who indexes them.

    None for operators of other kinds. The gradient of a product's second factor is, in the terms of
    the first's, a product whose parts have gone round by one.
    """
    if operator.kind not in MATMULS:
        return None
    moving, weight = operator.factors
    in_x, in_y, in_w = set(moving.dims), set(operator.outputs[0].dims), set(weight.dims)
    dims: dict[str, list[str]] = {"m": [], "n": [], "k": [], "groups": []}
    for dim in operator.dims:
        part = _part(operator, (dim.name in in_x, dim.name in in_y, dim.name in in_w))
        if part is not None:
            dims[part].append(dim.name)
    parts = {part: local_part(operator, names, split) for part, names in dims.items()}
    if isinstance(moving, Operand) and expert_position(moving) is not None:
        parts["m"] = parts["m"].to_ranks("tokens" if split.get("expert") else "")
    if owners := split.get(OWNER, ()):
        parts["m"] = parts["m"].over(owners).to_ranks("tokens")
    if second_factor:
        m, n, k = (parts[role] for role in "mnk")
        parts |= {"m": k, "n": m, "k": n}
    return Matmul(**parts, experts=operator.has_dim("expert"))


def exchanges_of(
    block: Block, choices: Sequence[Choices]
) -> tuple[Mapping[str, ContextExchange], Mapping[str, PositionOrder]]:
    """Return how each tensor of keys and values is exchanged, and the layout of each attention.

    Ghosts are waited for: whatever runs alongside them stands before the product that reads them.

    Args:
        choices: One per operator.
    """
    exchanges: dict[str, ContextExchange] = {}
    orders: dict[str, PositionOrder] = {}
    for operator, choice in zip(block.operators, choices, strict=True):
        if operator.role is TensorRole.GHOSTS:
            exchanges[operator.inputs[0].tensor] = ContextExchange.GATHER
        if operator.kind is not OperatorKind.ATTENTION:
            continue
        orders[operator.path] = choice.context_order
        for operand in operator.inputs:
            if "kv_seq" in operand.dims and "seq" not in operand.dims:
                exchanges[operand.tensor] = choice.context
    return exchanges, orders


def skewed_axes(operator: Operator, split: Split, order: PositionOrder) -> tuple[str, ...]:
    """Return the axes over which the ranks of an attention have unequal parts of its mask.

    A window sees as many keys from anywhere, so it leaves all alike to do.
    """
    mask = operator.mask
    if order is PositionOrder.ZIGZAG or mask is None or not mask.causal or mask.window:
        return ()
    return tuple(axis for axis in split.get("seq", ()) if axis not in split.get("kv_seq", ()))

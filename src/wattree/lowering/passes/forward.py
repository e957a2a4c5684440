"""Pass 2: forward instructions of a block, with the collectives that layout changes need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.graph import UNROUTED, Block, Operand, Operator, OperatorKind, TokenRouting
from wattree.lowering.layout import PARTIAL, Layout, expert_position, layout_of, local_size
from wattree.lowering.passes.instruction_list import InstructionList, Placed
from wattree.lowering.passes.operator_instruction import MATMULS, compute_instruction
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import InstructionPhase
from wattree.strategy import ContextExchange, PositionOrder
from wattree.strategy.parts import is_sample_table


def forward_instructions(
    block: Block,
    splits: Sequence[Split],
    inputs: Mapping[str, Placed],
    *,
    phase: InstructionPhase = InstructionPhase.FORWARD,
    shares: Sequence[float] | None = None,
    boundary_layouts: Mapping[str, Layout | None] | None = None,
    exchanges: Mapping[str, ContextExchange] | None = None,
    orders: Mapping[str, PositionOrder] | None = None,
    synced: Mapping[str, tuple[str, ...]] | None = None,
    saved_names: frozenset[str] = frozenset(),
    made_again: frozenset[str] = frozenset(),
    wide: frozenset[str] = frozenset(),
) -> InstructionList:
    """Return the instructions of `block`'s forward pass, or of its recomputed part.

    Args:
        splits: One per operator.
        inputs: How the block's inputs lie.
        phase: FORWARD or RECOMPUTATION.
        shares: Share of each operator's work to do; 0 leaves it out and takes its outputs as
            given. None does everything.
        boundary_layouts: Layouts of the block's outputs; None: as computed, with partial sums
            added up.
        exchanges, orders: From `passes.context`.
        synced: From `passes.statistics`.
        saved_names: From `passes.gathered`.
        made_again: Of these, those that are made again, so that they are gathered again, whether
            or not what reads them runs again.
        wide: From `passes.autocast`.
    """
    instructions = InstructionList(
        phase=phase,
        tensors=dict(inputs),
        exchanges=exchanges or {},
        orders=orders or {},
        statistics=synced or {},
        tables=looked_up_tensors(block),
        saved_names=saved_names,
        wide=wide,
    )
    for index, (operator, split) in enumerate(zip(block.operators, splits, strict=True)):
        share = 1.0 if shares is None else shares[index]
        if share == 0:
            _exchange_again(operator, split, instructions, made_again)
        instruction = _run(operator, split, instructions, share=share) if share > 0 else -1
        for output in operator.outputs:
            layout = {**layout_of(output, split, partial=True), **_summands(operator, instructions)}
            instructions.tensors[output.tensor] = Placed(
                layout=layout,
                size=local_size(operator, output, layout),
                instruction=instruction,
                experts_at=expert_position(output),
            )
        if phase is InstructionPhase.FORWARD and _is_result(operator, block):
            _complete(operator, instructions)
    _reach_boundary(instructions, boundary_layouts or {})
    return instructions


def _reach_boundary(
    instructions: InstructionList, boundary_layouts: Mapping[str, Layout | None]
) -> None:
    """Bring the outputs of a block into the layouts in which they leave it.

    Recomputation adds up what it made partial sums of, and moves nothing else.
    """
    for name, wanted in boundary_layouts.items():
        made = instructions.tensors[name]
        is_partial = made.instruction >= 0 and PARTIAL in made.layout.values()
        if is_partial or instructions.phase is InstructionPhase.FORWARD:
            want = _whole(made.layout) if wanted is None else wanted
            instructions.tensors[name] = instructions.in_layout(name, want)


def _exchange_again(
    operator: Operator, split: Split, instructions: InstructionList, made_again: frozenset[str]
) -> None:
    """Repeat the exchanges of what an operator reads, which does not run again itself.

    They belong to what makes it: its partial sums are added up, and what is saved is gathered.
    """
    for operand in operator.inputs:
        made = instructions.tensors.get(operand.tensor)
        if made is None or made.instruction < 0:
            continue
        is_saved = operand.tensor in made_again and operand.tensor in operator.saved
        if is_saved or (PARTIAL in made.layout.values() and not operator.passes_sums):
            instructions.in_layout(operand.tensor, layout_of(operand, split, partial=False))


def _run(operator: Operator, split: Split, instructions: InstructionList, *, share: float) -> int:
    """Add the instruction of an operator, after those of its inputs; return its index."""
    depends = []
    given = False
    for operand in operator.inputs:
        if operand.tensor not in instructions.tensors or is_sample_table(operator):
            continue  # token ids: nothing computes them, loaders bring them
        want = {**layout_of(operand, split, partial=False), **_summands(operator, instructions)}
        routing = routing_of(operator, operand)
        placed = instructions.in_layout(operand.tensor, want, routing=routing)
        depends.append(placed.instruction)
        given = given or placed.instruction < 0
    depends += instructions.edges_of(operator, split)
    instruction = compute_instruction(
        operator,
        split,
        instructions.phase,
        tuple(depends),
        share=share,
        given=given,
        order=instructions.order_of(operator),
        wide=instructions.wide,
    )
    return instructions.add_compute(operator, split, instruction)


def _summands(operator: Operator, instructions: InstructionList) -> Layout:
    """Return the axes of partial sums that pass through an operator, inputs to outputs."""
    if not operator.passes_sums:
        return {}
    read = [instructions.tensors[each.tensor].layout for each in operator.inputs]
    return {axis: at for layout in read for axis, at in layout.items() if at == PARTIAL}


def _is_result(operator: Operator, block: Block) -> bool:
    """Return whether an operator's output is a result of the model that must be whole.

    Sums over samples are left to whoever prints them. Forward passes alone have no loss.
    """
    if operator.kind is OperatorKind.CROSS_ENTROPY:
        return operator.kernels > 0
    if block.output is not None or operator.kind not in MATMULS:
        return False
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    return not read & {output.tensor for output in operator.outputs}


def _complete(operator: Operator, instructions: InstructionList) -> None:
    """Add up partial results: ranks that split a summed loop each have part of every row."""
    for output in operator.outputs:
        whole = _whole(instructions.tensors[output.tensor].layout)
        instructions.tensors[output.tensor] = instructions.in_layout(output.tensor, whole)


def _whole(layout: Layout) -> Layout:
    """Return a layout with partial sums added up."""
    return {axis: position for axis, position in layout.items() if position != PARTIAL}


def looked_up_tensors(block: Block) -> tuple[str, ...]:
    """Return the output tensors of tables of samples."""
    return tuple(o.outputs[0].tensor for o in block.operators if is_sample_table(o))


def routing_of(operator: Operator, operand: Operand) -> TokenRouting:
    """Return how the tokens of a routed tensor choose experts."""
    if "expert" not in operand.dims or "seq" not in operand.dims:
        return UNROUTED
    experts = operator.dim("expert").extent.coefficient
    copies = experts * operator.dim("seq").extent.coefficient * operand.fraction
    return TokenRouting(copies, *operator.expert_groups)

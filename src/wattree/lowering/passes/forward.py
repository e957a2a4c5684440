"""Pass 2: the forward steps of a block, with the collectives that layout changes call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.graph import Block, Operand, Operator, OperatorKind
from wattree.lowering.layout import PARTIAL, Layout, expert_position, layout_of, local_size
from wattree.lowering.passes.operator_step import MATMULS, compute_step
from wattree.lowering.passes.propagate import Split
from wattree.lowering.passes.step_list import Placed, StepList
from wattree.lowering.program import StepPhase
from wattree.strategy import ContextExchange, PositionOrder
from wattree.strategy.parts import is_sample_table


def forward_steps(
    block: Block,
    splits: Sequence[Split],
    inputs: Mapping[str, Placed],
    *,
    phase: StepPhase = StepPhase.FORWARD,
    shares: Sequence[float] | None = None,
    boundary_layouts: Mapping[str, Layout | None] | None = None,
    exchanges: Mapping[str, ContextExchange] | None = None,
    orders: Mapping[str, PositionOrder] | None = None,
    synced: Mapping[str, tuple[str, ...]] | None = None,
    saved_names: frozenset[str] = frozenset(),
) -> StepList:
    """Return the steps of `block`'s forward pass (or of what is recomputed of it).

    Args:
        block: Whose operators.
        splits: One per operator.
        inputs: How the block's inputs lie.
        phase: FORWARD or RECOMPUTATION.
        shares: Share of each operator's work to do; 0 leaves it out and takes its outputs as
            given. None does everything.
        boundary_layouts: Layouts in which the block's outputs are handed on; None: as they lie,
            added up.
        exchanges, orders: From `passes.context`.
        synced: From `passes.statistics`.
        saved_names: From `passes.gathered`.
    """
    steps = StepList(
        phase=phase,
        tensors=dict(inputs),
        exchanges=exchanges or {},
        orders=orders or {},
        statistics=synced or {},
        tables=looked_up_tensors(block),
        saved_names=saved_names,
    )
    for index, (operator, split) in enumerate(zip(block.operators, splits, strict=True)):
        share = 1.0 if shares is None else shares[index]
        step = _run(operator, split, steps, share=share) if share > 0 else -1
        for output in operator.outputs:
            layout = layout_of(output, split, partial=True)
            steps.tensors[output.tensor] = Placed(
                layout=layout,
                size=local_size(operator, output, layout),
                step=step,
                experts_at=expert_position(output),
            )
        if phase is StepPhase.FORWARD and _is_result(operator, block):
            _complete(operator, steps)
    if phase is StepPhase.FORWARD:
        for name, wanted in (boundary_layouts or {}).items():
            want = _whole(steps.tensors[name].layout) if wanted is None else wanted
            steps.tensors[name] = steps.in_layout(name, want)
    return steps


def _run(operator: Operator, split: Split, steps: StepList, *, share: float) -> int:
    """Add the step of an operator, after what brings its inputs to it; return its index."""
    depends = []
    given = False
    for operand in operator.inputs:
        if operand.tensor not in steps.tensors or is_sample_table(operator):
            continue  # token ids: nothing computes them, loaders bring them
        want = layout_of(operand, split, partial=False)
        copies = routed_copies(operator, operand)
        placed = steps.in_layout(operand.tensor, want, copies=copies)
        depends.append(placed.step)
        given = given or placed.step < 0
    depends += steps.edges_of(operator, split)
    step = compute_step(
        operator,
        split,
        steps.phase,
        tuple(depends),
        share=share,
        given=given,
        order=steps.order_of(operator),
    )
    return steps.add_compute(operator, split, step)


def _is_result(operator: Operator, block: Block) -> bool:
    """Whether the model ends in what an operator makes, to be had whole: losses, and products.

    Sums over samples are left to whoever prints them.
    """
    if operator.kind is OperatorKind.CROSS_ENTROPY:
        return True
    if block.output is not None or operator.kind not in MATMULS:
        return False
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    return not read & {output.tensor for output in operator.outputs}


def _complete(operator: Operator, steps: StepList) -> None:
    """Add up partial results: ranks that share what is summed over each see part of every row."""
    for output in operator.outputs:
        whole = _whole(steps.tensors[output.tensor].layout)
        steps.tensors[output.tensor] = steps.in_layout(output.tensor, whole)


def _whole(layout: Layout) -> Layout:
    """Return a layout with partial sums added up."""
    return {axis: position for axis, position in layout.items() if position != PARTIAL}


def looked_up_tensors(block: Block) -> tuple[str, ...]:
    """Return the tensors that tables of samples give."""
    return tuple(o.outputs[0].tensor for o in block.operators if is_sample_table(o))


def routed_copies(operator: Operator, operand: Operand) -> float:
    """Return copies per token of a routed tensor (top-k), 1 for any other tensor."""
    if "expert" not in operand.dims or "seq" not in operand.dims:
        return 1.0
    experts = operator.dim("expert").extent.coefficient
    return experts * operator.dim("seq").extent.coefficient * operand.fraction

"""Pass 3: input and weight gradients of a block, with their collectives.

The gradient of a tensor lies as its producer needs it; the gradient that a consumer makes is
partial over axes that split the consumer along a dim the tensor lacks. The same conversion
table as in forward then yields Megatron's conjugate pairs, sequence parallelism's gathers and
the return exchange of experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.graph import Block, Operand, Operator, OperatorKind, Parameter
from wattree.lowering.layout import Layout, expert_position, layout_of, local_size
from wattree.lowering.passes.forward import routing_of
from wattree.lowering.passes.instruction_list import InstructionList, Placed, halo_size, like
from wattree.lowering.passes.operator_instruction import MATMULS, compute_instruction
from wattree.lowering.passes.propagate import Split
from wattree.lowering.passes.window import halos_of
from wattree.lowering.program import ComputeInstruction, InstructionPhase
from wattree.strategy.parts import is_sample_table


def backward_instructions(
    block: Block,
    splits: Sequence[Split],
    forward: InstructionList,
    inputs: Mapping[str, Placed],
    *,
    boundary_layouts: Mapping[str, Layout],
    input_gradient: bool,
) -> tuple[InstructionList, int]:
    """Return the instructions of `block`'s backward pass, and the one that completes its result.

    Args:
        splits: One per operator.
        forward: The forward pass, for the layouts of its tensors.
        inputs: How the block's inputs lie; their gradients leave in the same layout.
        boundary_layouts: Layouts in which gradients of the block's outputs arrive; none for a loss.
        input_gradient: Whether anything before this block is trained.
    """
    instructions = InstructionList(
        phase=InstructionPhase.INPUT_GRADIENT,
        exchanges=forward.exchanges,
        orders=forward.orders,
        statistics=forward.statistics,
        wide=forward.wide,
    )
    found: dict[str, list[Placed]] = {}
    for name, layout in boundary_layouts.items():
        size = forward.tensors[name].size
        found[name] = [Placed(layout=layout, size=size, instruction=-1)]
    wanted = _tensors_to_train(block, inputs, input_gradient=input_gradient)
    for operator, split in zip(reversed(block.operators), reversed(splits), strict=True):
        given = any(found.get(output.tensor) for output in operator.outputs)
        if not given and not _is_end(operator, block):
            continue
        if is_sample_table(operator):
            _exchange_gradients(block, splits, found, instructions)
        depends, given = _arrived(operator, split, found, instructions)
        _add_gradients(
            operator,
            split,
            instructions,
            wanted=wanted,
            forward=forward,
            inputs=inputs,
            found=found,
            depends=depends,
            given=given,
        )
    last = -1
    for name, placed in inputs.items():
        for gradient in found.get(name, ()):
            moved = instructions.convert(f"{name}.gradient", gradient, placed.layout)
            last = max(last, moved.instruction)
    return instructions, last


def _exchange_gradients(
    block: Block,
    splits: Sequence[Split],
    found: dict[str, list[Placed]],
    instructions: InstructionList,
) -> None:
    """Send the gradients of tables' outputs in one exchange, as many as exist by now."""
    alike: list[tuple[Layout, dict[str, Placed]]] = []
    for operator, split in zip(block.operators, splits, strict=True):
        if not is_sample_table(operator):
            continue
        for output in operator.outputs:
            gradients = found.get(output.tensor, [])
            want = layout_of(output, split, partial=False)
            if len(gradients) != 1 or gradients[0].layout == want:
                continue
            for wanted, group in alike:
                if wanted == want and like(gradients[0], next(iter(group.values()))):
                    group[output.tensor] = gradients[0]
                    break
            else:
                alike.append((want, {output.tensor: gradients[0]}))
    for want, group in alike:
        for name, placed in instructions.convert_together("tables.gradient", group, want).items():
            found[name] = [placed]


def _is_end(operator: Operator, block: Block) -> bool:
    """Whether backward starts here: a loss, or whatever else a model ends in."""
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    written = {output.tensor for output in operator.outputs}
    if written <= set(block.given):
        return False
    return operator.kind is OperatorKind.CROSS_ENTROPY or (not block.outputs and not written & read)


def _tensors_to_train(
    block: Block, inputs: Mapping[str, Placed], *, input_gradient: bool
) -> set[str]:
    """Tensors with a needed gradient: they depend on a trained parameter or a block input."""
    reached = set(inputs) if input_gradient else set()
    for operator in block.operators:
        trained = any(parameter.trainable for parameter in operator.parameters)
        if trained or any(operand.tensor in reached for operand in operator.inputs):
            reached.update(output.tensor for output in operator.outputs)
            reached.difference_update(block.given)
    return reached


def _arrived(
    operator: Operator, split: Split, found: dict[str, list[Placed]], instructions: InstructionList
) -> tuple[list[int], bool]:
    """Bring the gradients of the operator's outputs into the layout it needs."""
    depends: list[int] = []
    given = False
    for output in operator.outputs:
        want = layout_of(output, split, partial=False)
        alike: dict[tuple[tuple[str, int], ...], list[Placed]] = {}
        for gradient in found.get(output.tensor, ()):
            alike.setdefault(tuple(sorted(gradient.layout.items())), []).append(gradient)
        for same in alike.values():  # contributions that lie alike are summed before they move
            last = max(same, key=lambda placed: placed.instruction)
            placed = instructions.convert(
                f"{output.tensor}.gradient",
                last,
                want,
                routing=routing_of(operator, output),
                tensor=output.tensor,
            )
            depends += [placed.instruction, *(other.instruction for other in same)]
            given = given or placed.instruction < 0
    return depends, given


def _add_gradients(
    operator: Operator,
    split: Split,
    instructions: InstructionList,
    *,
    wanted: set[str],
    forward: InstructionList,
    inputs: Mapping[str, Placed],
    found: dict[str, list[Placed]],
    depends: list[int],
    given: bool,
) -> None:
    reads = [operand for operand in operator.inputs if operand.tensor in wanted]
    trained = any(parameter.trainable for parameter in operator.parameters)
    # What is only added to a product has the product's own gradient.
    made = dict.fromkeys((operand.tensor for operand in reads), max(depends, default=-1))
    if operator.kind in MATMULS:
        factors = _factors(operator, wanted)
        # A product's saved input serves its weight's gradient only.
        needed = any(isinstance(factor, Parameter) for factor in factors.values())
        gathered = _gather_again(operator, split, forward, inputs, instructions) if needed else []
        for place, factor in factors.items():
            is_weight = isinstance(factor, Parameter)
            waits = tuple(depends + gathered if is_weight else depends)
            wide = instructions.wide
            instruction = _factor_instruction(operator, split, place, waits, wide, given=given)
            number = instructions.add_compute(operator, split, instruction)
            if isinstance(factor, Operand):
                made[factor.tensor] = number
    elif reads or trained:
        # Others' (attention) saved inputs serve every gradient.
        gathered = _gather_again(operator, split, forward, inputs, instructions)
        phase = InstructionPhase.INPUT_GRADIENT if reads else InstructionPhase.WEIGHT_GRADIENT
        waits = tuple(depends + gathered)
        order = instructions.order_of(operator)
        instruction = compute_instruction(
            operator, split, phase, waits, given=given, order=order, wide=instructions.wide
        )
        number = instructions.add_compute(operator, split, instruction)
        made = dict.fromkeys(made, number)
    for operand in reads:
        layout = layout_of(operand, split, partial=True)
        whole = made[operand.tensor]
        if operand is operator.inputs[0]:  # what belongs to neighbours goes back, and is added
            for halo in halos_of(operator, split):
                size = halo_size(operator, split, halo)
                whole = instructions.add_edges(
                    f"{operand.tensor}.gradient.edges", halo, size, whole
                )
        found.setdefault(operand.tensor, []).append(
            Placed(
                layout=layout,
                size=local_size(operator, operand, layout),
                instruction=whole,
                experts_at=expert_position(operand),
            )
        )


def _factors(operator: Operator, wanted: set[str]) -> dict[int, Operand | Parameter]:
    """Return the factors of a matmul with a gradient, by place: each needs a matmul."""
    return {
        place: factor
        for place, factor in enumerate(operator.factors)
        if (factor.trainable if isinstance(factor, Parameter) else factor.tensor in wanted)
    }


def _factor_instruction(
    operator: Operator,
    split: Split,
    place: int,
    waits: tuple[int, ...],
    wide: frozenset[str],
    *,
    given: bool,
) -> ComputeInstruction:
    """Return the instruction that computes the gradient of a matmul's factor.

    Only parameters can wait for their gradients. A convolution's second factor is derived by the
    kernels for weights, also where it is computed.
    """
    factor = operator.factors[place]
    as_weight = isinstance(factor, Parameter) or operator.kind is OperatorKind.CONVOLUTION
    is_second = place == 1
    return compute_instruction(
        operator,
        split,
        InstructionPhase.WEIGHT_GRADIENT
        if is_second and as_weight
        else InstructionPhase.INPUT_GRADIENT,
        waits,
        given=given,
        second_factor=is_second and not as_weight,
        wide=wide,
    )


def _gather_again(
    operator: Operator,
    split: Split,
    forward: InstructionList,
    inputs: Mapping[str, Placed],
    instructions: InstructionList,
) -> list[int]:
    """Gather a saved input again if forward gathered it: only the shard was saved."""
    again = []
    for operand in operator.inputs:
        if operand.tensor not in operator.saved or is_sample_table(operator):
            continue  # indices are not sent
        saved_names = forward.tensors.get(operand.tensor) or inputs.get(operand.tensor)
        want = layout_of(operand, split, partial=False)
        if operand.tensor in forward.saved_names:
            continue
        if saved_names is None or not _only_gathers(saved_names.layout, want):
            continue
        placed = instructions.convert(
            f"{operand.tensor}.again",
            replace(saved_names, instruction=-1),
            want,
            tensor=operand.tensor,
        )
        again.append(placed.instruction)
    return again


def _only_gathers(have: Layout, want: Layout) -> bool:
    changed = [axis for axis in {*have, *want} if have.get(axis) != want.get(axis)]
    return bool(changed) and all(
        axis in have and have[axis] >= 0 and axis not in want for axis in changed
    )

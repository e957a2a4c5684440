"""Pass 5a: a block's backward as two pieces, so that a schedule can put off the weight gradients.

Only matmuls of weights wait, as in zero-bubble training: their operands, the saved input
and the gradient that arrived, are kept until then. Everything else runs with the gradient of the
input: small parameters' gradients (norms, biases, tables) come out of the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from wattree.graph import OperatorKind
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import ComputeInstruction, Instruction, InstructionPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBackward:
    """The two pieces.

    Attributes:
        inputs: Costs of what the stage before waits for, recomputation left out.
        weights: Costs of what can wait.
        inputs_exit: Step of `inputs` that completes the gradient of the block's input, or -1.
        contents: Step of `weights` → all-gathers among `inputs` whose result it reads again.
    """

    inputs: PhaseCosts
    weights: PhaseCosts
    inputs_exit: int
    contents: dict[int, tuple[int, ...]]


def deferred_instructions(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Return the deferrable instructions of backward: weight gradients and their only inputs.

    A block that has nothing but such instructions runs them at once, since nothing would be left.
    """
    late = {
        index
        for index, instruction in enumerate(instructions)
        if isinstance(instruction, ComputeInstruction)
        and instruction.phase is InstructionPhase.WEIGHT_GRADIENT
        and instruction.kind is OperatorKind.MATMUL
    }
    soon = {
        i
        for i, instruction in enumerate(instructions)
        if isinstance(instruction, ComputeInstruction) and i not in late
    }
    if not soon:
        return frozenset()
    needed_late, needed_soon = _needed(instructions, late), _needed(instructions, soon)
    return frozenset(late | (needed_late - needed_soon))


def _needed(instructions: Sequence[Instruction], of: set[int]) -> set[int]:
    """Return the collectives that `of` wait for, one through another."""
    found: set[int] = set()
    open_ends = [before for index in of for before in instructions[index].depends]
    while open_ends:
        index = open_ends.pop()
        if index not in found and not isinstance(instructions[index], ComputeInstruction):
            found.add(index)
            open_ends += instructions[index].depends
    return found


def split_backward(costs: PhaseCosts, exit_instruction: int) -> SplitBackward:
    """Return the pieces of a backward pass.

    Args:
        costs: Of the whole backward.
        exit_instruction: Its instruction that completes the gradient of the block's input, or -1.
    """
    late = deferred_instructions(costs.instructions)
    if exit_instruction >= 0:
        # The gradient of the input may take a collective that no operator here reads.
        late -= {exit_instruction} | _needed(costs.instructions, {exit_instruction})
    soon = [index for index in range(len(costs.instructions)) if index not in late]
    later = sorted(late)
    place = {index: at for at, index in enumerate(soon)}
    contents = {
        at: tuple(
            place[before]
            for before in costs.instructions[index].depends
            if before in place and not isinstance(costs.instructions[before], ComputeInstruction)
        )
        for at, index in enumerate(later)
        if isinstance(costs.instructions[index], ComputeInstruction)
    }
    return SplitBackward(
        inputs=_taken(costs, soon),
        weights=_taken(costs, later),
        inputs_exit=place.get(exit_instruction, -1),
        contents=contents,
    )


def _taken(costs: PhaseCosts, chosen: Sequence[int]) -> PhaseCosts:
    """Return the `chosen` instructions, renumbered; those they waited for elsewhere are done."""
    place = {index: at for at, index in enumerate(chosen)}
    instructions = tuple(
        replace(
            costs.instructions[index],
            depends=tuple(place[b] for b in costs.instructions[index].depends if b in place),
        )
        for index in chosen
    )
    rows = np.array(chosen, dtype=np.int64)
    arrays = (each.name for each in fields(PhaseCosts) if each.name != "instructions")
    return PhaseCosts(
        instructions=instructions, **{name: getattr(costs, name)[rows] for name in arrays}
    )

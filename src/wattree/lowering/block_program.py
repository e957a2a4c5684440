"""Compile the program of one block under its choices, cached by everything it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from wattree.graph import Block, BlockInstance, Extent
from wattree.lowering.layout import PARTIAL, Layout
from wattree.lowering.passes.autocast import wide_tensors
from wattree.lowering.passes.backward import backward_instructions
from wattree.lowering.passes.forward import forward_instructions
from wattree.lowering.passes.instruction_list import InstructionList, Placed, statistics_axes
from wattree.lowering.passes.memory import KnownInputs, saved_tensors
from wattree.lowering.passes.operator_instruction import cache_size, exchanges_of
from wattree.lowering.passes.parameters import parameter_groups, trained_weights
from wattree.lowering.passes.propagate import Split, operator_splits
from wattree.lowering.passes.window import window_parts
from wattree.lowering.program import (
    BlockProgram,
    CollectiveInstruction,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
    LocalSize,
)
from wattree.lowering.spread import ExpertPlace, OwnedOperator
from wattree.strategy import OWNER, AxisRole, Choices
from wattree.strategy.parts import is_sample_table, looked_up, returned

_Made = TypeVar("_Made")
#: Stands for the maker of what a block is given.
_GIVEN = -1


def frozen(layouts: Mapping[str, Layout | None]) -> tuple[object, ...]:
    """Return layouts as part of a key."""
    return tuple(
        (name, None if layout is None else tuple(sorted(layout.items())))
        for name, layout in layouts.items()
    )


class _Passes(NamedTuple):
    """A block's forward and backward passes, and the recomputation instructions.

    Attributes:
        inputs: Layouts of the inputs.
        lies: Layouts of the outputs.
        forward: With the tensors that it makes.
        steps, backward: The instructions of both, whose axes have roles.
        backward_exit: The one that completes the gradient of the input.
        again: Shares of operators that are recomputed, and tensors that are made again → the
            instructions.
        names_place: Whether the program contains the position of the block.
    """

    splits: Sequence[Split]
    inputs: Mapping[str, Placed]
    lies: Mapping[str, Layout]
    forward: InstructionList
    steps: tuple[Instruction, ...]
    backward: tuple[Instruction, ...]
    backward_exit: int
    again: Callable[[tuple[float, ...], frozenset[str]], tuple[Instruction, ...]]
    names_place: bool


class CompiledBlock(NamedTuple):
    """A block's program without its parameters, the layouts of its outputs, and its splits."""

    program: BlockProgram
    lies: Mapping[str, Layout]
    splits: Sequence[Split]


@dataclass(frozen=True, slots=True)
class _Computation(Generic[_Made]):
    """A computation and its key; `make` holds references to objects the key names by id."""

    key: tuple[object, ...]
    make: Callable[[], _Made] = field(compare=False)


class LatestResults(Generic[_Made]):
    """The results of the computations that were asked for last, by everything they depend on."""

    def __init__(self, most: int) -> None:
        self._found = lru_cache(maxsize=most)(lambda computation: computation.make())

    def of(self, key: tuple[object, ...], make: Callable[[], _Made]) -> _Made:
        """Return the result for a key, made where it is not known; it may name objects by id."""
        found: _Made = self._found(_Computation(key, make))
        return found


# What is recomputed changes neither forward nor backward; strategies differ in what few of their
# blocks see.
_PASSES: LatestResults[_Passes] = LatestResults(1024)
_COMPILED: LatestResults[CompiledBlock] = LatestResults(1024)
_WITH_PARAMETERS: LatestResults[BlockProgram] = LatestResults(1024)


def compiled_block(
    block: Block,
    choices: Sequence[Choices],
    active: frozenset[str],
    alone: frozenset[str],
    *,
    given: Mapping[str, Layout],
    boundary_layouts: Mapping[str, Layout | None],
    entering: KnownInputs,
    instance: BlockInstance,
    input_gradient: bool,
    roles: Mapping[str, AxisRole],
) -> CompiledBlock:
    """Return the program of a block but for its parameters.

    Neither axes that no loop is split over nor where parameters are stored change its instructions;
    recomputation changes neither forward nor backward.

    Args:
        active: Axes over which ranks exchange activations.
        alone: Those of replicas, which exchange the statistics of synchronized norms alone.
    """
    active = frozenset(a for c in choices for axes in c.compute.values() for a in axes) & active
    layouts = frozen(given), frozen(boundary_layouts), input_gradient
    known_roles = tuple((axis, roles.get(axis)) for axis in sorted(active))
    synced = alone if any(choice.sync_batch_norm for choice in choices) else frozenset[str]()
    key = (id(block), compute_key(choices), active, synced, known_roles, layouts, entering.wide)
    passes = _PASSES.of(
        key,
        lambda: _block_passes(
            block,
            choices,
            active,
            synced,
            given=given,
            boundary_layouts=boundary_layouts,
            where=instance.path,
            input_gradient=input_gradient,
            entering=entering.wide,
            roles=roles,
        ),
    )
    where = instance.path if passes.names_place else ""
    return _COMPILED.of(
        (id(passes), recompute_key(choices), entering, where),
        lambda: _block_instructions(block, choices, passes, entering, where),
    )


def block_program(
    compiled: CompiledBlock, block: Block, choices: Sequence[Choices], alone: frozenset[str]
) -> BlockProgram:
    """Return the program of a compiled block, with its parameters; replicas over `alone`."""
    stored = tuple((c.parameters, c.gradients, c.optimizer) for c in choices)
    return _WITH_PARAMETERS.of(
        (id(compiled), stored, alone),
        lambda: replace(
            compiled.program,
            parameters=parameter_groups(block, compiled.splits, choices, compiled.lies, alone),
        ),
    )


def recompute_key(choices: Sequence[Choices]) -> tuple[object, ...]:
    """Return the part of a cache key that recomputation depends on."""
    return tuple((each.recompute, each.inside_region, each.save_output) for each in choices)


def compute_key(choices: Sequence[Choices]) -> tuple[object, ...]:
    """Return the part of a cache key that forward and backward of operators depend on."""
    keys = {id(each): _compute_key(each) for each in choices}
    return tuple(keys[id(each)] for each in choices)


def _compute_key(choice: Choices) -> tuple[object, ...]:
    return (
        tuple(choice.compute.items()),
        choice.context,
        choice.context_order,
        choice.sync_batch_norm,
        choice.phantom,
        choice.save_gathered,
    )


def _block_passes(
    block: Block,
    choices: Sequence[Choices],
    active: frozenset[str],
    synced: frozenset[str],
    *,
    given: Mapping[str, Layout],
    boundary_layouts: Mapping[str, Layout | None],
    where: str,
    input_gradient: bool,
    entering: frozenset[str],
    roles: Mapping[str, AxisRole],
) -> _Passes:
    """Return the passes of a block."""
    inputs = {t.name: _placed(t.extents, given[t.name]) for t in block.inputs}
    layouts = {name: placed.layout for name, placed in inputs.items()}
    splits = operator_splits(block, choices, layouts, active, where)
    exchanges, orders = exchanges_of(block, choices)
    run = partial(
        forward_instructions,
        block,
        splits,
        inputs,
        exchanges=exchanges,
        orders=orders,
        synced=statistics_axes(block.operators, splits, choices, synced),
        saved_names=saved_gathers(block, choices),
        boundary_layouts=boundary_layouts,
        wide=wide_tensors(block, entering),
    )
    forward = run()
    lies = {name: forward.tensors[name].layout for name in boundary_layouts}
    backward, backward_exit = backward_instructions(
        block, splits, forward, inputs, boundary_layouts=lies, input_gradient=input_gradient
    )

    @cache
    def again(shares: tuple[float, ...], made: frozenset[str]) -> tuple[Instruction, ...]:
        if not any(shares):
            return ()
        found = run(phase=InstructionPhase.RECOMPUTATION, shares=shares, made_again=made)
        return _making_again(block, _with_roles(found, roles))

    return _Passes(
        splits=splits,
        inputs=inputs,
        lies=lies,
        forward=forward,
        steps=_with_waiting(block, forward, _with_roles(forward, roles), backward, inputs),
        backward=_with_roles(backward, roles),
        backward_exit=backward_exit,
        again=again,
        names_place=bool(
            window_parts(block.operators, splits, where) or _owned(block, splits, where)
        ),
    )


def _making_again(block: Block, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Return recomputation without temporary outputs where backward needs them anyway.

    What a block makes again for backward is there from the start of recomputation.
    """
    saved = {name for operator in block.operators for name in operator.saved}
    kept = {
        operator.path: len(operator.outputs)
        for operator in block.operators
        if saved.issuperset(output.tensor for output in operator.outputs)
    }
    return tuple(
        replace(i, transient=i.transient[kept[i.path] :])
        if isinstance(i, ComputeInstruction) and i.path in kept
        else i
        for i in instructions
    )


def _with_roles(
    instructions: InstructionList, roles: Mapping[str, AxisRole]
) -> tuple[Instruction, ...]:
    """Return instructions with the roles of mesh axes set in their collectives."""
    return tuple(
        replace(i, roles=frozenset(roles.get(axis, AxisRole.DATA) for axis in i.axes))
        if isinstance(i, CollectiveInstruction)
        else i
        for i in instructions.instructions
    )


def _with_waiting(
    block: Block,
    forward: InstructionList,
    steps: tuple[Instruction, ...],
    backward: InstructionList,
    inputs: Mapping[str, Placed],
) -> tuple[Instruction, ...]:
    """Return forward's steps with what operators without gradients make for a later one.

    It is not saved for backward, so it lives to its last reader, through those that only look at
    it, as does what a block without any is given. With gradients, most of what is read is saved.
    """
    differentiated = {each.path for each in backward.instructions}
    savers = (each for each in block.operators if each.path in differentiated)
    saved = {name for operator in savers for name in operator.saved}
    kept = {forward.tensors[name].instruction for name in saved if name in forward.tensors}
    outputs = {operator.path: len(operator.outputs) for operator in block.operators}
    last: dict[int, int] = {}
    for at, instruction in reversed([*enumerate(steps)]):
        looks = isinstance(instruction, ComputeInstruction) and instruction.kernels == 0
        end = last.get(at, at) if looks else at
        for maker in (*instruction.depends, *(_GIVEN,) * instruction.reads_block_input):
            last[maker] = max(last.get(maker, 0), end)
    made: dict[int, tuple[LocalSize, ...]] = {}
    if not differentiated and _GIVEN in last:
        made[_GIVEN] = tuple(placed.size for placed in inputs.values())
    found: list[Instruction] = []
    for at, step in enumerate(steps):
        made = {maker: sizes for maker, sizes in made.items() if last[maker] >= at}
        waiting = tuple(chain.from_iterable(made.values()))
        if not isinstance(step, ComputeInstruction):
            found.append(step)
            continue
        found.append(replace(step, transient=(*step.transient, *waiting)) if waiting else step)
        if at in last and at not in kept and step.path not in differentiated:
            made[at] = step.transient[: outputs[step.path]]  # without what it alone needs
    return tuple(found)


def _block_instructions(
    block: Block,
    choices: Sequence[Choices],
    passes: _Passes,
    entering: KnownInputs,
    where: str,
) -> CompiledBlock:
    """Return the instructions of a block, parameters left out."""
    forward, splits, inputs = passes.forward, passes.splits, passes.inputs
    made = [forward.tensors[name] for name in block.outputs]
    saved = saved_tensors(block, splits, choices, forward, inputs, entering=entering)
    again = forward.saved_names.intersection(each.name for each in saved if each.recomputed)
    program = BlockProgram(
        block=block.name,
        forward=passes.steps,
        recomputation=passes.again(tuple(choice.recompute for choice in choices), again),
        backward=passes.backward,
        saved=saved,
        parameters=(),
        weights=trained_weights(block, splits),
        boundary_tensors=tuple((name, p.size) for name, p in zip(block.outputs, made, strict=True)),
        forward_exit=max((p.instruction for p in made), default=len(passes.steps) - 1),
        backward_exit=passes.backward_exit,
        expert_places=_expert_places(block, splits),
        window_parts=window_parts(block.operators, splits, where),
        owned=_owned(block, splits, where),
        cache=tuple(
            cache_size(operator, split, operator.cache.positions)
            for operator, split in zip(block.operators, splits, strict=True)
            if operator.cache is not None
        ),
    )
    return CompiledBlock(program, passes.lies, splits)


def _owned(block: Block, splits: Sequence[Split], where: str) -> tuple[OwnedOperator, ...]:
    return tuple(
        OwnedOperator(
            path=f"{where}.{operator.path}",
            axes=split[OWNER],
            elements=float(sum(parameter.elements for parameter in operator.parameters)),
            lookups=looked_up(operator) if is_sample_table(operator) else 1.0,
            vectors=returned(operator) if is_sample_table(operator) else 1.0,
            shared_out=is_sample_table(operator),
        )
        for operator, split in zip(block.operators, splits, strict=True)
        if split.get(OWNER)
    )


def _expert_places(block: Block, splits: Sequence[Split]) -> tuple[ExpertPlace, ...]:
    found: dict[ExpertPlace, None] = {}
    for operator, split in zip(block.operators, splits, strict=True):
        if split.get("expert"):
            experts = round(operator.dim("expert").extent.coefficient)
            found[ExpertPlace(experts=experts, axes=split["expert"])] = None
    return tuple(found)


def _placed(extents: Sequence[Extent], layout: Layout) -> Placed:
    size = LocalSize()
    for extent in extents:
        size = size.times(LocalSize.of(extent))
    axes = tuple(axis for axis, position in layout.items() if position != PARTIAL)
    return Placed(layout=layout, size=size.over(axes), instruction=-1)


def saved_gathers(block: Block, choices: Sequence[Choices]) -> frozenset[str]:
    """Return the tensors that, once gathered, stay whole for the backward of who reads them.

    Args:
        choices: One per operator.
    """
    return frozenset(
        operand.tensor
        for operator, choice in zip(block.operators, choices, strict=True)
        if choice.save_gathered
        for operand in operator.inputs
        if operand.tensor in operator.saved
    )

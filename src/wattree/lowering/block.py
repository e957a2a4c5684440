"""One block and its choices → its program: the passes in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattree.graph import Block, BlockInstance, Extent, Handed, Made, ModelGraph
from wattree.lowering.layout import PARTIAL, Layout
from wattree.lowering.passes.backward import backward_steps
from wattree.lowering.passes.context import exchanges_of
from wattree.lowering.passes.forward import forward_steps
from wattree.lowering.passes.gathered import kept_gathers
from wattree.lowering.passes.memory import parameter_groups, saved_tensors
from wattree.lowering.passes.propagate import Split, operator_splits, required_layout
from wattree.lowering.passes.statistics import statistics_axes
from wattree.lowering.passes.step_list import Placed, StepList
from wattree.lowering.passes.window import window_parts
from wattree.lowering.program import BlockProgram, LocalSize, Scale, StepPhase, TokenLoad
from wattree.lowering.spread import ExpertPlace, OwnedOperator
from wattree.strategy import OWNER, Choices, StrategyTree
from wattree.strategy.parts import is_sample_table, looked_up

__all__ = ["ModelProgram", "compile_model", "is_trained"]

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgram:
    """Programs of a model's blocks and where each is used.

    Attributes:
        model: What was compiled.
        programs: Distinct programs.
        instances: Index of each block instance's program, in forward order.
        batch_axes: Axes over which samples are spread.
    """

    model: ModelGraph
    programs: tuple[BlockProgram, ...]
    instances: tuple[int, ...]
    batch_axes: tuple[str, ...]

    def scale(
        self,
        degrees: Mapping[str, NDArray[np.float64]],
        micro_batch: NDArray[np.float64],
        *,
        sequence: int,
        load: TokenLoad | None = None,
    ) -> Scale:
        """Return the numbers that fill in the symbols of the programs.

        Args:
            degrees: Axis → degrees, of one strategy or of many.
            micro_batch: Samples of each.
            sequence: Tokens per sample.
            load: Tokens of their experts; None where all ranks have as many.
        """
        return Scale(
            micro_batch=micro_batch,
            sequence=float(sequence),
            degrees=degrees,
            batch_axes=self.batch_axes,
            load=load,
        )

    @property
    def owned(self) -> tuple[OwnedOperator, ...]:
        """Operators that are whole on one rank, of all instances in forward order."""
        return tuple(each for number in self.instances for each in self.programs[number].owned)

    @property
    def expert_places(self) -> tuple[ExpertPlace, ...]:
        """The ways in which its blocks spread experts over ranks."""
        return tuple(dict.fromkeys(at for p in self.programs for at in p.expert_places))


def compile_model(model: ModelGraph, tree: StrategyTree, active: frozenset[str]) -> ModelProgram:
    """Return the programs of every block of `model` under `tree`.

    Identical blocks with identical choices are compiled once, however often they occur.

    Args:
        model: What to compile.
        tree: Choices.
        active: Axes to respect; those left out count as degree 1.

    Raises:
        StrategyError: The tree does not fit the model.
    """
    choices = _choices_by_instance(model, tree)
    handed = Handed(model)
    layouts = _layouts(model, handed, choices, active)
    kept: set[Made] = set()
    programs: dict[tuple[object, ...], int] = {}
    compiled: list[BlockProgram] = []
    made_in: list[Mapping[str, Layout]] = []
    instances = []
    trained_before = False
    for index, instance in enumerate(model.instances):
        block = model.blocks[instance.block]
        names = [tensor.name for tensor in block.inputs]
        sources = dict(zip(names, handed.sources[index], strict=True))
        given = {name: layouts[made] or {} for name, made in sources.items()}
        is_end = index + 1 == len(model.instances)
        handed_on = {
            name: layouts.get(Made(index, name), {})
            for name in block.outputs
            if is_end or Made(index, name) in layouts
        }
        # What was carried past the block before is kept where it was kept first.
        elsewhere = frozenset(n for n, m in sources.items() if m in kept and m.instance < index - 1)
        key = (
            instance.block,
            id(choices[index]),
            _frozen(given),
            _frozen(handed_on),
            elsewhere,
            trained_before,
        )
        if key not in programs:
            programs[key] = len(compiled)
            program, made = _compile_block(
                block,
                choices[index],
                active,
                given=given,
                handed_on=handed_on,
                elsewhere=elsewhere,
                instance=instance,
                input_gradient=trained_before,
            )
            compiled.append(program)
            made_in.append(made)
        instances.append(programs[key])
        layouts |= {Made(index, name): lies for name, lies in made_in[programs[key]].items()}
        sources |= {name: Made(index, name) for name in block.outputs}
        saved = compiled[programs[key]].saved
        kept |= {sources[t.name] for t in saved if t.name in sources and not t.recomputed}
        trained_before = trained_before or is_trained(block)
    root = tree.choices("")
    return ModelProgram(
        model=model,
        programs=tuple(compiled),
        instances=tuple(instances),
        batch_axes=tuple(axis for axis in root.compute.get("batch", ()) if axis in active),
    )


def is_trained(block: Block) -> bool:
    """Whether a block has parameters that are updated."""
    return any(p.trainable for operator in block.operators for p in operator.parameters)


def _frozen(layouts: Mapping[str, Layout | None]) -> tuple[object, ...]:
    return tuple(
        (name, None if layout is None else tuple(sorted(layout.items())))
        for name, layout in layouts.items()
    )


def _choices_by_instance(model: ModelGraph, tree: StrategyTree) -> list[tuple[Choices, ...]]:
    """Resolve the tree for every operator; instances that match alike share one tuple."""
    resolved: dict[tuple[object, ...], tuple[Choices, ...]] = {}
    by_patterns: dict[tuple[str, ...], Choices] = {}
    result = []
    relevant: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], ...]] = {}
    for instance in model.instances:
        heads = tree.reaching(instance.path)
        key = (instance.block, heads)
        if key not in relevant:
            part = StrategyTree(nodes={p: tree.nodes[p] for p in heads})
            operators = model.blocks[instance.block].operators
            relevant[key] = tuple(part.matching(f"{instance.path}.{o.path}") for o in operators)
        matched = relevant[key]
        if (instance.block, matched) not in resolved:
            for patterns in matched:
                if patterns not in by_patterns:
                    by_patterns[patterns] = tree.resolve(patterns)
            resolved[instance.block, matched] = tuple(by_patterns[p] for p in matched)
        result.append(resolved[instance.block, matched])
    return result


def _layouts(
    model: ModelGraph,
    handed: Handed,
    choices: Sequence[Sequence[Choices]],
    active: frozenset[str],
) -> dict[Made, Layout | None]:
    """Return the layout in which each tensor that is read by later instances is handed on.

    What the next instance reads lies as that needs it, so it changes layout where it is made. What
    is only carried past it stays as it was made, and every reader converts it for itself: None.
    """
    known: dict[tuple[object, ...], tuple[Layout, ...]] = {}
    layouts: dict[Made, Layout | None] = {}
    both = zip(model.instances, choices, handed.sources, strict=True)
    for number, (instance, chosen, sources) in enumerate(both):
        block = model.blocks[instance.block]
        key = (instance.block, id(chosen))
        if key not in known:
            splits = (
                operator_splits(block, chosen, {}, active, instance.path) if block.inputs else ()
            )
            known[key] = tuple(required_layout(block, splits, t.name) for t in block.inputs)
        for made, layout in zip(sources, known[key], strict=True):
            is_next = made.instance in {number - 1, -1}
            layouts.setdefault(made, layout if is_next else None)
    return layouts


class _Compiled(NamedTuple):
    """A block's program without its parameters, how what it hands on lies, and its splits."""

    program: BlockProgram
    lies: Mapping[str, Layout]
    splits: Sequence[Split]


@dataclass(frozen=True, slots=True)
class _Asked(Generic[_Made]):
    """Something to make, known by what it depends on; what the key names by id, `make` holds."""

    key: tuple[object, ...]
    make: Callable[[], _Made] = field(compare=False)


@lru_cache(maxsize=1024)  # strategies differ in what few of their blocks see
def _compiled(asked: _Asked[_Compiled]) -> _Compiled:
    return asked.make()


@lru_cache(maxsize=1024)
def _with_parameters(asked: _Asked[BlockProgram]) -> BlockProgram:
    return asked.make()


def _compile_block(
    block: Block,
    choices: Sequence[Choices],
    active: frozenset[str],
    *,
    given: Mapping[str, Layout],
    handed_on: Mapping[str, Layout | None],
    elsewhere: frozenset[str],
    instance: BlockInstance,
    input_gradient: bool,
) -> tuple[BlockProgram, Mapping[str, Layout]]:
    """Return the program of a block, and how the tensors lie that it hands on.

    Neither axes that no loop is split over nor where parameters are stored change its steps.
    """
    told = {id(choice): _told(choice) for choice in choices}
    active = frozenset(a for c in choices for axes in c.compute.values() for a in axes) & active
    layouts = _frozen(given), _frozen(handed_on), elsewhere, input_gradient
    key = (id(block), tuple(told[id(c)] for c in choices), active, layouts, instance.path)
    compiled = _compiled(
        _Asked(
            key,
            lambda: _block_steps(
                block,
                choices,
                active,
                given=given,
                handed_on=handed_on,
                elsewhere=elsewhere,
                where=instance.path,
                input_gradient=input_gradient,
            ),
        )
    )
    _, lies, splits = compiled
    stored = tuple((c.parameters, c.gradients, c.optimizer) for c in choices)
    program = _with_parameters(
        _Asked(
            (id(compiled), stored),
            lambda: replace(
                compiled.program, parameters=parameter_groups(block, splits, choices, lies)
            ),
        )
    )
    return program, lies


def _told(choice: Choices) -> tuple[object, ...]:
    """Return what the steps of an operator depend on: all but where its parameters are stored."""
    return (
        tuple(choice.compute.items()),
        choice.recompute,
        choice.inside_region,
        choice.context,
        choice.context_order,
        choice.sync_batch_norm,
        choice.phantom,
        choice.keep_gathered,
    )


def _block_steps(
    block: Block,
    choices: Sequence[Choices],
    active: frozenset[str],
    *,
    given: Mapping[str, Layout],
    handed_on: Mapping[str, Layout | None],
    elsewhere: frozenset[str],
    where: str,
    input_gradient: bool,
) -> _Compiled:
    """Return what a block does, parameters left out."""
    inputs = {t.name: _placed(t.extents, given[t.name]) for t in block.inputs}
    layouts = {name: placed.layout for name, placed in inputs.items()}
    splits = operator_splits(block, choices, layouts, active, where)
    exchanges, orders = exchanges_of(block, choices)
    synced = statistics_axes(block.operators, splits, choices)
    kept = kept_gathers(block, choices)
    forward = forward_steps(
        block,
        splits,
        inputs,
        handed_on=handed_on,
        exchanges=exchanges,
        orders=orders,
        synced=synced,
        kept=kept,
    )
    shares = [choice.recompute for choice in choices]
    again = StepList(phase=StepPhase.RECOMPUTATION)
    if any(shares):
        again = forward_steps(
            block,
            splits,
            inputs,
            phase=StepPhase.RECOMPUTATION,
            shares=shares,
            exchanges=exchanges,
            orders=orders,
            synced=synced,
            kept=kept,
        )
    lies = {name: forward.tensors[name].layout for name in handed_on}
    backward, backward_exit = backward_steps(
        block, splits, forward, inputs, handed_on=lies, input_gradient=input_gradient
    )
    made = [forward.tensors[name] for name in block.outputs]
    own = {name: placed for name, placed in inputs.items() if name not in elsewhere}
    program = BlockProgram(
        block=block.name,
        forward=tuple(forward.steps),
        recomputation=tuple(again.steps),
        backward=tuple(backward.steps),
        saved=saved_tensors(block, splits, choices, forward, own),
        parameters=(),
        handed=tuple((name, p.size) for name, p in zip(block.outputs, made, strict=True)),
        forward_exit=max((p.step for p in made), default=len(forward.steps) - 1),
        backward_exit=backward_exit,
        expert_places=_expert_places(block, splits),
        window_parts=window_parts(block.operators, splits, where),
        owned=_owned(block, splits, where),
    )
    return _Compiled(program, lies, splits)


def _owned(block: Block, splits: Sequence[Split], where: str) -> tuple[OwnedOperator, ...]:
    return tuple(
        OwnedOperator(
            path=f"{where}.{operator.path}",
            axes=split[OWNER],
            elements=float(sum(parameter.elements for parameter in operator.parameters)),
            lookups=looked_up(operator) if is_sample_table(operator) else 1.0,
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
    return Placed(layout=layout, size=size.over(axes), step=-1)

"""Compile blocks and their strategy choices to programs: runs the passes in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wattree.arrays import Flags, Floats
from wattree.graph import Block, BlockDataflow, Made, ModelGraph
from wattree.lowering.autograd import Autograd
from wattree.lowering.block_program import (
    CompiledBlock,
    LatestResults,
    block_program,
    compiled_block,
    compute_key,
    frozen,
    recompute_key,
)
from wattree.lowering.layout import Layout
from wattree.lowering.passes.autocast import wide_outputs
from wattree.lowering.passes.memory import KnownInputs
from wattree.lowering.passes.propagate import operator_splits, required_layout
from wattree.lowering.program import BlockProgram, Scale
from wattree.lowering.spread import ExpertPlace, OwnedOperator, TokenLoad
from wattree.strategy import AxisRole, Choices, StrategyTree, axis_roles, replica_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgram:
    """Programs of a model's blocks and the block instances that use each.

    Attributes:
        instances: Index of each block instance's program, in forward order.
        batch_axes: Axes that split samples.
        replica_axes: Those whose ranks compute as if alone; no program names them but for
            parameters and the statistics of synchronized norms.
        context_axes: Axes that split positions.
        layouts: Of each program, the layouts of the tensors that it produces for later blocks, on
            the other axes.
    """

    model: ModelGraph
    programs: tuple[BlockProgram, ...]
    instances: tuple[int, ...]
    batch_axes: tuple[str, ...]
    context_axes: tuple[str, ...] = ()
    replica_axes: frozenset[str] = frozenset()
    layouts: tuple[Mapping[str, Layout], ...] = ()

    @property
    def shards_gradients(self) -> bool:
        """Whether replicas store shards of any gradients."""
        groups = (group for each in self.programs for group in each.parameters if group.trainable)
        return any(group.gradient_axes or group.parameter_axes for group in groups)

    def scale(
        self,
        degrees: Mapping[str, Floats],
        micro_batch: Floats,
        *,
        sequence: int,
        load: TokenLoad | None = None,
        several: Flags | bool = False,
    ) -> Scale:
        """Return the numbers that fill in the symbols of the programs.

        Args:
            degrees: Axis → degrees, of one strategy or of many.
            micro_batch: Samples of each.
            sequence: Tokens per sample.
            load: Tokens per rank's experts; None where routing is even.
            several: Whether a step has more than one micro-batch.
        """
        return Scale(
            micro_batch=micro_batch,
            sequence=float(sequence),
            degrees=degrees,
            batch_axes=self.batch_axes,
            context_axes=self.context_axes,
            replica_axes=self.replica_axes,
            load=load,
            several=several,
        )

    def only(self, span: range) -> ModelProgram:
        """Return the program of ranks that run some of the block instances."""
        own = {self.instances[number] for number in span}
        if len(own) == len(self.programs):
            return self
        programs = (
            program if number in own else program.boundary
            for number, program in enumerate(self.programs)
        )
        return replace(self, programs=tuple(programs))

    @property
    def owned(self) -> tuple[OwnedOperator, ...]:
        """Return operators that one rank runs whole, of all instances in forward order."""
        return tuple(each for number in self.instances for each in self.programs[number].owned)

    @property
    def expert_places(self) -> tuple[ExpertPlace, ...]:
        """Return the placements of experts over ranks that its blocks use."""
        return tuple(dict.fromkeys(at for p in self.programs for at in p.expert_places))


# Strategies often differ in degrees and micro-batches alone.
_PROGRAMS: LatestResults[ModelProgram] = LatestResults(256)
_DATAFLOWS: LatestResults[BlockDataflow] = LatestResults(8)


def dataflow_of(model: ModelGraph) -> BlockDataflow:
    """Return the dataflow between the blocks of a model, cached."""
    return _DATAFLOWS.of((id(model),), lambda: BlockDataflow(model))


def compile_model(
    model: ModelGraph,
    tree: StrategyTree,
    active: frozenset[str],
    *,
    autograd: Autograd | None = None,
) -> ModelProgram:
    """Return the programs of every block of `model` under `tree`.

    Identical blocks with identical choices are compiled once, however often they occur.

    Args:
        active: Axes to respect; those left out count as degree 1.
        autograd: Of the software; None: nothing beyond what the tree says.

    Raises:
        StrategyError: The tree does not fit the model.
    """
    autograd = autograd or Autograd()
    key = (id(model), tuple(tree.nodes), tree, active, autograd)
    return _PROGRAMS.of(key, lambda: _compiled_model(model, tree, active, autograd))


def _compiled_model(
    model: ModelGraph, tree: StrategyTree, active: frozenset[str], autograd: Autograd
) -> ModelProgram:
    choices = _choices_by_instance(model, tree, active, autograd)
    roles = axis_roles(tree)
    distinct = {id(chosen): chosen for chosen in choices}
    place = {key: number for number, key in enumerate(distinct)}
    alone = replica_axes(tree) & active
    key = (
        *(id(model), active, alone, tuple(sorted(roles.items()))),
        tuple(place[id(chosen)] for chosen in choices),
        *((compute_key(chosen), recompute_key(chosen)) for chosen in distinct.values()),
    )
    blocks, used = _BLOCKS.of(
        key, lambda: _compiled_blocks(model, choices, active - alone, alone, roles)
    )
    # Choices that match other patterns may give the same program.
    numbers: dict[int, int] = {}
    programs: list[BlockProgram] = []
    layouts: list[Mapping[str, Layout]] = []
    own: list[int] = []  # place in `programs` of each of `blocks`
    for compiled, index in blocks:
        block = model.blocks[model.instances[index].block]
        program = block_program(compiled, block, choices[index], alone)
        if numbers.setdefault(id(program), len(programs)) == len(programs):
            programs.append(program)
            layouts.append(compiled.lies)
        own.append(numbers[id(program)])
    root = tree.choices("")
    return ModelProgram(
        model=model,
        programs=tuple(programs),
        instances=tuple(own[number] for number in used),
        batch_axes=tuple(axis for axis in root.compute.get("batch", ()) if axis in active),
        context_axes=tuple(
            axis for axis, role in roles.items() if role is AxisRole.CONTEXT and axis in active
        ),
        replica_axes=alone,
        layouts=tuple(layouts),
    )


class _CompiledBlocks(NamedTuple):
    """Blocks of a model but for their parameters, whose storage changes nothing else.

    Attributes:
        blocks: Each with the first instance that uses it.
        instances: Place in `blocks` of each instance's.
    """

    blocks: Sequence[tuple[CompiledBlock, int]]
    instances: Sequence[int]


_BLOCKS: LatestResults[_CompiledBlocks] = LatestResults(256)
#: Inputs of each instance that autocast leaves in fp32.
_WIDE: LatestResults[list[frozenset[str]]] = LatestResults(64)


def _compiled_blocks(
    model: ModelGraph,
    choices: Sequence[tuple[Choices, ...]],
    active: frozenset[str],
    alone: frozenset[str],
    roles: Mapping[str, AxisRole],
) -> _CompiledBlocks:
    """Return the compiled blocks under the choices of each instance.

    Args:
        active: Axes over which ranks exchange activations.
        alone: Those over which they do not.
    """
    dataflow = dataflow_of(model)
    layouts = _layouts(model, dataflow, choices, active)
    wide = _WIDE.of((id(model),), lambda: _wide_inputs(model, dataflow))
    saved_names: set[Made] = set()
    known: dict[tuple[object, ...], int] = {}
    blocks: list[tuple[CompiledBlock, int]] = []
    instances = []
    first_trained = trained_from(model)
    for index, instance in enumerate(model.instances):
        block = model.blocks[instance.block]
        sources = dict(zip((t.name for t in block.inputs), dataflow.sources[index], strict=True))
        given = {name: layouts[made] or {} for name, made in sources.items()}
        is_end = index + 1 == len(model.instances)
        makes = {name: Made(index, name) for name in block.outputs}
        boundary_layouts = {
            n: layouts.get(m, {}) for n, m in makes.items() if is_end or m in layouts
        }
        # A tensor that passed by the previous block stays saved where it was first saved.
        passed = (n for n, m in sources.items() if m in saved_names and m.instance < index - 1)
        entering = KnownInputs(elsewhere=frozenset(passed), wide=wide[index])
        seen = frozen(given), frozen(boundary_layouts), entering, index > first_trained
        key = (instance.block, id(choices[index]), seen)
        if key not in known:
            compiled = compiled_block(
                block,
                choices[index],
                active,
                alone,
                given=given,
                boundary_layouts=boundary_layouts,
                entering=entering,
                instance=instance,
                input_gradient=index > first_trained,
                roles=roles,
            )
            known[key] = len(blocks)
            blocks.append((compiled, index))
        instances.append(known[key])
        program, lies, _ = blocks[known[key]][0]
        layouts |= {Made(index, name): layout for name, layout in lies.items()}
        sources |= makes
        saved = program.saved
        saved_names |= {sources[t.name] for t in saved if t.name in sources and not t.recomputed}
    return _CompiledBlocks(blocks, instances)


def _wide_inputs(model: ModelGraph, dataflow: BlockDataflow) -> list[frozenset[str]]:
    """Return the inputs of each instance that autocast leaves in fp32."""
    found, wide = [], set[Made]()
    outputs: dict[tuple[str, frozenset[str]], frozenset[str]] = {}
    for index, instance in enumerate(model.instances):
        block = model.blocks[instance.block]
        pairs = zip(block.inputs, dataflow.sources[index], strict=True)
        entering = frozenset(tensor.name for tensor, made in pairs if made in wide)
        key = instance.block, entering
        if key not in outputs:
            outputs[key] = wide_outputs(block, entering)
        wide |= {Made(index, name) for name in outputs[key]}
        found.append(entering)
    return found


def trained_from(model: ModelGraph) -> int:
    """Return the number of the first block instance with parameters that are updated."""
    blocks = (model.blocks[instance.block] for instance in model.instances)
    trained = (any(p.trainable for o in block.operators for p in o.parameters) for block in blocks)
    return next((number for number, own in enumerate(trained) if own), len(model.instances))


def _choices_by_instance(
    model: ModelGraph, tree: StrategyTree, active: frozenset[str], autograd: Autograd
) -> list[tuple[Choices, ...]]:
    """Resolve the tree for every operator; instances with the same matches share one tuple."""
    key = id(model), tuple(tree.nodes)
    matches = _MATCHES.of(key, lambda: _matches(model, tree))
    distinct = {id(matched): matched for matched in matches}
    patterns = dict.fromkeys(each for matched in distinct.values() for each in matched)
    by_patterns = {each: tree.resolve(each) for each in patterns}
    resolved = {
        number: tuple(by_patterns[each] for each in matched) for number, matched in distinct.items()
    }
    for number, instance in dict(zip(map(id, matches), model.instances, strict=True)).items():
        operators = model.blocks[instance.block].operators
        resolved[number] = autograd.applied(operators, resolved[number], active)
    return [resolved[id(matched)] for matched in matches]


#: The patterns that apply to each operator of a block instance, weakest first.
_Matched = tuple[tuple[str, ...], ...]
_MATCHES: LatestResults[list[_Matched]] = LatestResults(64)  # trees of a search share patterns


def _matches(model: ModelGraph, tree: StrategyTree) -> list[_Matched]:
    """Return what applies to each instance; equal ones of a block are one object."""
    relevant: dict[tuple[str, tuple[str, ...]], _Matched] = {}
    known: dict[tuple[str, _Matched], _Matched] = {}
    result = []
    for instance in model.instances:
        heads = tree.matching_below(instance.path)
        key = (instance.block, heads)
        if key not in relevant:
            part = StrategyTree(nodes={p: tree.nodes[p] for p in heads})
            operators = model.blocks[instance.block].operators
            matched = tuple(part.matching(f"{instance.path}.{o.path}") for o in operators)
            relevant[key] = known.setdefault((instance.block, matched), matched)
        result.append(relevant[key])
    return result


def _layouts(
    model: ModelGraph,
    dataflow: BlockDataflow,
    choices: Sequence[Sequence[Choices]],
    active: frozenset[str],
) -> dict[Made, Layout | None]:
    """Return the layout in which each tensor read by later instances leaves its block.

    A tensor read by the next instance is converted by its producer to the layout needed. A tensor
    that only passes by keeps its layout, and each reader converts it: None.
    """
    known: dict[tuple[object, ...], tuple[Layout, ...]] = {}
    layouts: dict[Made, Layout | None] = {}
    both = zip(model.instances, choices, dataflow.sources, strict=True)
    for number, (instance, chosen, sources) in enumerate(both):
        block = model.blocks[instance.block]
        key = (instance.block, id(chosen))
        if key not in known:
            known[key] = _required(block, chosen, active, instance.path)
        for made, layout in zip(sources, known[key], strict=True):
            is_next = made.instance in {number - 1, -1}
            layouts.setdefault(made, layout if is_next else None)
    return layouts


# Strategies that differ in what they store need the same.
_LAYOUTS: LatestResults[tuple[Layout, ...]] = LatestResults(1024)


def _required(
    block: Block, choices: Sequence[Choices], active: frozenset[str], where: str
) -> tuple[Layout, ...]:
    """Return the layouts that a block needs of its inputs."""

    def layouts() -> tuple[Layout, ...]:
        splits = operator_splits(block, choices, {}, active, where)
        return tuple(required_layout(block, splits, tensor.name) for tensor in block.inputs)

    if not block.inputs:
        return ()
    return _LAYOUTS.of((id(block), compute_key(choices), active), layouts)

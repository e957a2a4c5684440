"""Models of which only a part is trained: frozen parameters and low-rank adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod

from wattree.capture.linear_layers import library_names
from wattree.capture.operator_names import OperatorNames, matches, operator_names, refuse_unmatched
from wattree.errors import ModelError
from wattree.graph import (
    Block,
    BlockInstance,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)


def with_lora(graph: ModelGraph, *, rank: int, targets: Sequence[str]) -> ModelGraph:
    """Return the graph with low-rank adapters on some projections, all else frozen.

    In addition to each target `y = W x`, `y + B (A x)` runs, `A` of `rank x in`, `B` of `out x
    rank` [1], as operators `<path>.lora_a`, `<path>.lora_b` and `<path>.lora_add`. A fused
    projection gets one pair for its whole output; experts get a pair each.

    Args:
        graph: Any model.
        rank: Width of the adapters, `r`.
        targets: Patterns of operators: of the path inside a block, such as `attention.*` or
            `mlp.down`; of the path in the model, such as `layers.0.attention.q_proj`; or, without
            a wildcard, the last names of either, such as `q_proj`.

    Raises:
        ModelError: The rank is below 1 or above a side of a target's matrix, or a pattern matches
            no projection.

    References:
        [1] E. Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022,
            arXiv:2106.09685, section 4.1.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ModelError(f"{graph.name}: lora.rank: found {rank!r}, expected a whole number from 1")
    names = {
        (instance.path, op.path): operator_names(instance, op)
        for instance in graph.instances
        for op in graph.blocks[instance.block].operators
        if _adapts(op)
    }
    known = {name for each in names.values() for name in (*each.whole, *each.parts)}
    refuse_unmatched(
        graph.name,
        targets,
        known,
        what="lora.targets",
        kind="projection",
        named=matches,
        usual=library_names(graph),
    )
    chosen = [
        frozenset(
            op.path
            for op in graph.blocks[instance.block].operators
            if _adapts(op) and names[instance.path, op.path].match(targets)
        )
        for instance in graph.instances
    ]
    both = zip(graph.instances, chosen, strict=True)
    wide = [o for i, paths in both for o in graph.blocks[i.block].operators if o.path in paths]
    _refuse_wide(graph, rank, wide)
    warnings = _whole_matmuls([each for each in names.values() if each.match(targets)], targets)
    frozen = replace(all_frozen(graph), warnings=(*graph.warnings, *warnings))

    def adapted(block: Block, paths: frozenset[str], name: str) -> Block:
        return replace(
            block, name=name, operators=tuple(_with_adapters(block.operators, rank, paths))
        )

    return _in_variants(frozen, chosen, adapted, word="adapted", renames_all=False)


def freeze(graph: ModelGraph, patterns: Sequence[str]) -> ModelGraph:
    """Return the graph with the parameters of some operators frozen.

    Instances of a block that are frozen differently become blocks of their own. A parameter
    tied to another is frozen with it.

    Args:
        graph: Any model.
        patterns: Matched against `<instance path>.<operator path>`, such as `layers.0.*`, and
            `<block>.<operator path>`, such as `layer.attention.*`.

    Raises:
        ModelError: A pattern matches no operator, or nothing is left to train.
    """
    names = {
        f"{place}.{op.path}"
        for instance in graph.instances
        for op in graph.blocks[instance.block].operators
        for place in (instance.path, instance.block)
    }
    refuse_unmatched(graph.name, patterns, names, what="freeze", kind="operator")
    chosen = [_frozen_paths(i, graph.blocks[i.block], patterns) for i in graph.instances]
    frozen_graph = _tied_follow(
        _in_variants(graph, chosen, _with_frozen, word="frozen", renames_all=True)
    )
    if not frozen_graph.trainable_parameters:
        raise ModelError(
            f"{graph.name}: freeze: the patterns leave no parameter to train, found "
            f"{', '.join(repr(pattern) for pattern in patterns)}; freeze fewer operators"
        )
    return frozen_graph


def _refuse_wide(graph: ModelGraph, rank: int, targets: Sequence[Operator]) -> None:
    """Refuse a rank at which `B A` is larger than its target's matrix."""
    sides = {op.path: round(min(_size(side) for side in _parts(op)[1:])) for op in targets}
    path = min(sides, key=lambda path: sides[path])
    if rank > sides[path]:
        raise ModelError(
            f"{graph.name}: lora.rank: found {rank}, expected at most {sides[path]}, the shorter "
            f"side of the matrix of '{path}'; use a lower rank, or leave it out of lora.targets"
        )


# --- blocks whose instances come to differ -------------------------------------------------------


def _in_variants(
    graph: ModelGraph,
    chosen: Sequence[frozenset[str]],
    changed: Callable[[Block, frozenset[str], str], Block],
    *,
    word: str,
    renames_all: bool,
) -> ModelGraph:
    """Return the graph with a block for each set of operators that is chosen in its instances.

    Args:
        graph: Any model.
        chosen: Paths of operators, instance by instance.
        changed: Block, paths and new name → the block with these operators changed.
        word: Begins the names of changed blocks.
        renames_all: Also where all instances of a block are changed alike.
    """
    alike: dict[str, set[frozenset[str]]] = {}
    for instance, paths in zip(graph.instances, chosen, strict=True):
        alike.setdefault(instance.block, set()).add(paths)
    blocks: dict[str, Block] = {}
    named: dict[tuple[str, frozenset[str]], str] = {}
    instances = []
    for instance, paths in zip(graph.instances, chosen, strict=True):
        block = graph.blocks[instance.block]
        key = (block.name, paths)
        if key not in named:
            keeps = not paths or not (renames_all or len(alike[block.name]) > 1)
            name = block.name if keeps else _variant_name(graph, block, word, taken=blocks)
            named[key] = name
            blocks[name] = changed(block, paths, name)
        instances.append(replace(instance, block=named[key]))
    return replace(graph, blocks=blocks, instances=tuple(instances))


def _variant_name(graph: ModelGraph, block: Block, word: str, *, taken: Mapping[str, Block]) -> str:
    name, number = f"{word}_{block.name}", 1
    while name in taken or name in graph.blocks:
        number += 1
        name = f"{word}_{block.name}_{number}"
    return name


# --- frozen parameters ---------------------------------------------------------------------------


def _frozen_paths(instance: BlockInstance, block: Block, patterns: Sequence[str]) -> frozenset[str]:
    return frozenset(
        op.path
        for op in block.operators
        if op.parameters
        and any(
            fnmatchcase(f"{place}.{op.path}", pattern)
            for place in (instance.path, block.name)
            for pattern in patterns
        )
    )


def _with_frozen(block: Block, frozen: frozenset[str], name: str) -> Block:
    operators = (_frozen(op) if op.path in frozen else op for op in block.operators)
    return replace(block, name=name, operators=tuple(operators))


def _frozen(operator: Operator) -> Operator:
    """Return the operator without gradients for its parameters.

    A matmul then keeps nothing: the gradient of its input needs the weight only.
    """
    parameters = tuple(replace(p, trainable=False) for p in operator.parameters)
    keeps = () if operator.kind is OperatorKind.MATMUL else operator.saved
    return replace(operator, parameters=parameters, saved=keeps)


def all_frozen(graph: ModelGraph) -> ModelGraph:
    """Return the graph with no parameter to train: one of which only forward passes are run."""
    blocks = {
        name: _with_frozen(
            block, frozenset(op.path for op in block.operators if op.parameters), name
        )
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def _tied_follow(graph: ModelGraph) -> ModelGraph:
    """Return the graph with every tied parameter as trainable as the one it is tied to."""
    trainable = {
        f"{instance.path}/{parameter.name}": parameter.trainable
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        for parameter in operator.parameters
    }

    def followed(operator: Operator) -> Operator:
        parameters = tuple(
            replace(p, trainable=trainable.get(p.tied_to, p.trainable)) if p.tied_to else p
            for p in operator.parameters
        )
        return (
            operator
            if parameters == operator.parameters
            else replace(operator, parameters=parameters)
        )

    blocks = {
        name: replace(block, operators=tuple(followed(op) for op in block.operators))
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


# --- low-rank adapters ---------------------------------------------------------------------------


def _adapts(operator: Operator) -> bool:
    """Return whether the operator can have an adapter: a projection with a weight."""
    return (
        operator.kind is OperatorKind.MATMUL
        and len(operator.inputs) == 1
        and bool(operator.parameters)
    )


def _with_adapters(
    operators: Sequence[Operator], rank: int, paths: frozenset[str]
) -> list[Operator]:
    adapted: list[Operator] = []
    for operator in operators:
        adapted += _adapted(operator, rank) if operator.path in paths else [operator]
    return adapted


def _whole_matmuls(found: Sequence[OperatorNames], targets: Sequence[str]) -> tuple[str, ...]:
    """Return the warning about joined matmuls of which only some modules are targets."""
    partial = [n for n in found if not n.match_whole(targets) and not n.match_all(targets)]
    if not partial:
        return ()
    return (
        f"lora.targets: {partial[0].whole[0]} is one product, of which some modules are no target: "
        "its adapter is as wide as all of them",
    )


def _adapted(base: Operator, rank: int) -> list[Operator]:
    """Return the frozen projection, its adapter, and the sum under the projection's old names."""
    lead, out, into = _parts(base)
    read_dims = base.inputs[0].dims
    shared = tuple(dim for dim in lead if dim.name in read_dims)  # those of what lies between
    names = tuple(dim.name for dim in shared)
    groups = tuple(
        dim for dim in lead if dim.name in base.parameters[0].dims
    )  # experts: each has its own pair
    low = f"{base.path}.lora_a"
    return [
        replace(base, outputs=tuple(_renamed(output, "base") for output in base.outputs)),
        _adapter(
            low,
            shared,
            groups,
            into=into,
            out=(_rank_dim(rank, DimRole.SPLITTABLE),),
            reads=base.inputs[0],
            outputs=(Operand(tensor=low, dims=(*names, "rank")),),
        ),
        _adapter(
            f"{base.path}.lora_b",
            lead,
            groups,
            into=(_rank_dim(rank, DimRole.CONTRACTED),),
            out=out,
            reads=Operand(tensor=low, dims=(*names, "rank")),
            outputs=tuple(_renamed(output, "delta") for output in base.outputs),
        ),
        Operator(
            path=f"{base.path}.lora_add",
            kind=OperatorKind.ELEMENTWISE,
            function="scale_add",
            dims=(*lead, *out),
            inputs=tuple(
                _renamed(output, suffix) for output in base.outputs for suffix in ("base", "delta")
            ),
            outputs=base.outputs,
            kernels=2,
        ),
    ]


def _parts(
    operator: Operator,
) -> tuple[list[IterationDim], list[IterationDim], list[IterationDim]]:
    """Return the dims of a projection that it keeps, adds, and sums over.

    Those of a captured model may be several each, such as heads and the features of a head.
    """
    weights = {name for parameter in operator.parameters for name in parameter.dims}
    read = set(operator.inputs[0].dims)
    written = {name for output in operator.outputs for name in output.dims}
    out = [dim for dim in operator.dims if dim.name in weights - read]
    into = [dim for dim in operator.dims if dim.name in weights & read - written]
    lead = [dim for dim in operator.dims if dim not in out and dim not in into]
    return lead, out, into


def _size(dims: Iterable[IterationDim]) -> float:
    return prod(dim.extent.coefficient for dim in dims)


def _rank_dim(rank: int, role: DimRole) -> IterationDim:
    return IterationDim(name="rank", extent=Extent(coefficient=rank), role=role)


def _renamed(operand: Operand, suffix: str) -> Operand:
    return replace(operand, tensor=f"{operand.tensor}.{suffix}")


def _adapter(
    path: str,
    lead: Sequence[IterationDim],
    groups: Sequence[IterationDim],
    *,
    into: Sequence[IterationDim],
    out: Sequence[IterationDim],
    reads: Operand,
    outputs: tuple[Operand, ...],
) -> Operator:
    elements = _size(into) * _size(out) * _size(groups)
    return Operator(
        path=path,
        kind=OperatorKind.MATMUL,
        function="grouped_linear" if groups else "linear",
        dims=(*lead, *out, *into),
        inputs=(reads,),
        outputs=outputs,
        parameters=(
            Parameter(
                name=f"{path}.weight",
                dims=tuple(dim.name for dim in (*groups, *out, *into)),
                elements=round(elements),
            ),
        ),
        saved=(reads.tensor,),
    )

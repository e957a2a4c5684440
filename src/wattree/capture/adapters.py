"""Low-rank adapters on projections of a model that is frozen otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from wattree.capture.frozen import all_frozen, in_variants
from wattree.capture.linear_layers import layer_targets, library_names, partial_targets
from wattree.capture.operator_names import OperatorNames, matches, operator_names, refuse_unmatched
from wattree.errors import ModelError
from wattree.graph import (
    Block,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

#: Dim of the features that joined projections have for each index of the others.
_INNER = "out_1"


def with_lora(
    graph: ModelGraph, *, rank: int, targets: Sequence[str], joint: bool = False
) -> ModelGraph:
    """Return the graph with low-rank adapters on some projections, all else frozen.

    In addition to each target `y = W x`, `y + B (A x)` runs, `A` of `rank x in`, `B` of `out x
    rank` [1], as operators `<path>.lora_a`, `<path>.lora_b` and `<path>.lora_add`. Where an
    operator does the work of several linear layers, such as queries, keys and values, each has its
    own pair: `lora_a` makes all their low-rank features, and each part of the output is made of its
    own. Experts get a pair each.

    Args:
        graph: Any model.
        rank: Width of the adapters, `r`.
        targets: Patterns of operators: of the path inside a block, such as `attention.*` or
            `mlp.down`; of the path in the model, such as `layers.0.attention.q_proj`; or, without
            a wildcard, the last names of either, such as `q_proj`. And what `layer_targets` knows.
        joint: The software computes all that an operator does as one layer, with one pair.

    Raises:
        ModelError: The rank is below 1 or above a side of a target's matrix, or a pattern matches
            no projection.

    References:
        [1] E. Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022,
            arXiv:2106.09685, section 4.1.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ModelError(f"{graph.name}: lora.rank: found {rank!r}, expected a whole number from 1")
    chosen, partial = _chosen(graph, targets)
    pairs = {
        (name, op.path): _pairs(block, op, None if joint else partial.get(op.path), joint=joint)
        for name, block in graph.blocks.items()
        for op in block.operators
        if _adapts(op)
    }
    wide = {
        op.path: pairs[i.block, op.path]
        for i, paths in zip(graph.instances, chosen, strict=True)
        for op in graph.blocks[i.block].operators
        if op.path in paths
    }
    _refuse_wide(graph, rank, wide)
    warnings = [_joint_line(path) for path in partial if joint]
    frozen = replace(all_frozen(graph), warnings=(*graph.warnings, *warnings))

    def adapted(block: Block, paths: frozenset[str], name: str) -> Block:
        operators: list[Operator] = []
        for op in block.operators:
            is_target = op.path in paths
            operators += _adapted(op, rank, pairs[block.name, op.path]) if is_target else [op]
        return replace(block, name=name, operators=tuple(operators))

    return in_variants(frozen, chosen, adapted, word="adapted", renames_all=False)


def _chosen(
    graph: ModelGraph, targets: Sequence[str]
) -> tuple[list[frozenset[str]], dict[str, tuple[int, ...]]]:
    """Return the paths of targets, instance by instance, and `partial_targets` of any model."""
    patterns = layer_targets(graph, targets)
    names = {
        (instance.path, op.path): operator_names(instance, op)
        for instance in graph.instances
        for op in graph.blocks[instance.block].operators
        if _adapts(op)
    }
    refuse_unmatched(
        graph.name,
        patterns,
        {name for each in names.values() for name in (*each.whole, *each.parts)},
        what="lora.targets",
        kind="projection",
        named=matches,
        usual=library_names(graph),
    )
    chosen = [
        frozenset(
            op.path
            for op in graph.blocks[instance.block].operators
            if _adapts(op) and names[instance.path, op.path].match(patterns)
        )
        for instance in graph.instances
    ]
    return chosen, partial_targets(graph, targets) | _partial(names, patterns)


def _adapts(operator: Operator) -> bool:
    """Return whether the operator can have an adapter: a projection with a weight."""
    return (
        operator.kind is OperatorKind.MATMUL
        and len(operator.inputs) == 1
        and bool(operator.parameters)
    )


def _partial(
    names: Mapping[tuple[str, str], OperatorNames], patterns: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return operator → places of its parts that patterns name in any layer, if not of all."""
    found: dict[str, set[int]] = {}
    for (_, path), each in names.items():
        if each.parts and each.match(patterns):
            found.setdefault(path, set()).update(each.places(patterns))
    of_all = {path: len(each.parts) // 2 for (_, path), each in names.items()}
    return {path: tuple(sorted(some)) for path, some in found.items() if len(some) < of_all[path]}


def _joint_line(path: str) -> str:
    return (
        f"lora.targets: {path} is one layer of the software, of which some modules are no target: "
        "its adapter is as wide as all of them"
    )


# --- the pairs of an operator --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """The adapters of an operator.

    Attributes:
        sides: Shorter side of the matrix of each.
        shares: Output → the part of it that they add to.
    """

    sides: tuple[float, ...]
    shares: tuple[float, ...]


def _pairs(
    block: Block, operator: Operator, places: Sequence[int] | None, *, joint: bool
) -> _Pairs:
    """Return the adapters of an operator; `places`: of its layers that have one, None for all."""
    _, out, into = _parts(operator)
    layers = () if joint else _layers(block, operator)
    if not layers:
        return _Pairs(sides=(min(_size(out), _size(into)),), shares=(1.0,) * len(operator.outputs))
    chosen = [layers[place] for place in places] if places is not None else layers
    sizes = [_output_size(operator, output) for output in operator.outputs]
    shares = [0.0] * len(sizes)
    for output, share in chosen:
        shares[output] += share
    sides = (min(sizes[output] * share, _size(into)) for output, share in chosen)
    return _Pairs(sides=tuple(sides), shares=tuple(shares))


def _layers(block: Block, operator: Operator) -> list[tuple[int, float]]:
    """Return output and share of it for each of several linear layers; nothing for a single one.

    Keys and values are one output, and so are gates and what they are multiplied with. All experts
    are one tensor in the library.
    """
    outputs, count = len(operator.outputs), operator.linear_layers
    if count < max(outputs, 2) or operator.function == "grouped_linear":
        return []
    rest = count - outputs + 1
    shares = [1.0 / rest] * rest
    module = operator.path.partition(".")[0]
    cores = [o for o in block.operators if o.kind is OperatorKind.ATTENTION]
    core = next((o for o in cores if o.path.startswith(f"{module}.")), None)
    if rest > 1 and core is not None:  # keys and values
        key_share = core.head_dim / (core.head_dim + core.value_head_dim)
        shares = [key_share, 1.0 - key_share]
    return [*((place, 1.0) for place in range(outputs - 1)), *((outputs - 1, s) for s in shares)]


def _output_size(operator: Operator, output: Operand) -> float:
    """Return the features of an output."""
    own = [operator.dim(name) for name in output.dims if name not in operator.inputs[0].dims]
    return _size(own) * output.fraction


def _refuse_wide(graph: ModelGraph, rank: int, pairs: Mapping[str, _Pairs]) -> None:
    """Refuse a rank at which `B A` is larger than its target's matrix."""
    sides = {path: round(min(each.sides)) for path, each in pairs.items()}
    path = min(sides, key=lambda path: sides[path])
    if rank > sides[path]:
        raise ModelError(
            f"{graph.name}: lora.rank: found {rank}, expected at most {sides[path]}, the shorter "
            f"side of the matrix of '{path}'; use a lower rank, or leave it out of lora.targets"
        )


# --- its operators -------------------------------------------------------------------------------


def _adapted(base: Operator, rank: int, pairs: _Pairs) -> list[Operator]:
    """Return the frozen projection, its adapters, and the sum under the projection's old names."""
    lead, out, into = _parts(base)
    read_dims, count = base.inputs[0].dims, len(pairs.sides)
    shared = tuple(dim for dim in lead if dim.name in read_dims)  # those of what lies between
    names = tuple(dim.name for dim in shared)
    groups = tuple(
        dim for dim in lead if dim.name in base.parameters[0].dims
    )  # experts: each has its own pair
    low = f"{base.path}.lora_a"
    touched = [(o, share) for o, share in zip(base.outputs, pairs.shares, strict=True) if share]
    added = sum(share * _output_size(base, output) for output, share in touched)
    part = added / sum(_output_size(base, output) for output in base.outputs)
    inner = _INNER if any(dim.name == _INNER for dim in out) else out[-1].name
    plain = {output.tensor for output, _ in touched}
    return [
        replace(
            base,
            outputs=tuple(_renamed(o, "base") if o.tensor in plain else o for o in base.outputs),
        ),
        _adapter(
            low,
            shared,
            groups,
            into=into,
            out=(_rank_dim(rank * count, DimRole.SPLITTABLE),),
            reads=base.inputs[0],
            outputs=(Operand(tensor=low, dims=(*names, "rank")),),
            layers=count,
        ),
        _adapter(
            f"{base.path}.lora_b",
            lead,
            groups,
            into=(_rank_dim(rank, DimRole.CONTRACTED),),
            out=[_scaled(dim, part) if dim.name == inner else dim for dim in out],
            # Each layer's features are made of its own `rank`.
            reads=Operand(tensor=low, dims=(*names, "rank"), fraction=float(count)),
            outputs=tuple(
                _delta(output, share / part if inner in output.dims else 1.0)
                for output, share in touched
            ),
            layers=count,
        ),
        Operator(
            path=f"{base.path}.lora_add",
            kind=OperatorKind.ELEMENTWISE,
            function="scale_add",
            dims=(*lead, *out),
            inputs=tuple(
                each
                for output, share in touched
                for each in (_renamed(output, "base"), _delta(output, share))
            ),
            outputs=tuple(output for output, _ in touched),
            kernels=2 * count,
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


def _scaled(dim: IterationDim, share: float) -> IterationDim:
    return replace(dim, extent=Extent(coefficient=dim.extent.coefficient * share))


def _renamed(operand: Operand, suffix: str) -> Operand:
    return replace(operand, tensor=f"{operand.tensor}.{suffix}")


def _delta(output: Operand, share: float) -> Operand:
    return replace(_renamed(output, "delta"), fraction=output.fraction * share)


def _adapter(
    path: str,
    lead: Sequence[IterationDim],
    groups: Sequence[IterationDim],
    *,
    into: Sequence[IterationDim],
    out: Sequence[IterationDim],
    reads: Operand,
    outputs: tuple[Operand, ...],
    layers: int,
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
        linear_layers=layers,
    )

"""Pass 0c: key-value heads that are fewer than the ranks are copied, so that every rank has one.

Where tensor parallelism is wider than a model has key-value heads, the ranks of one head each hold
its weights, compute it and keep it. A step is lowered from the model with as many heads as ranks:
parameters, work and memory of a rank are those that software with copies has. The all-reduce of the
gradients of copies is left out: it is as small as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattree.graph import Block, IterationDim, ModelGraph, Operator, OperatorKind
from wattree.strategy import StrategyTree, tensor_degrees


@dataclass(frozen=True, slots=True)
class _Attention:
    """One attention operator and who make its queries, and its keys and values.

    Attributes:
        queries, keys: Each who makes it and the tensor, from attention back to the projection.
    """

    core: Operator
    queries: list[tuple[str, str]]
    keys: list[tuple[str, str]]

    @property
    def projection(self) -> str:
        """Path of the operator that makes keys and values."""
        return self.keys[-1][0]

    def copies(self, ranks: int) -> bool:
        """Return whether each of a number of ranks gets a copy of one head."""
        heads = self.core.kv_heads
        return ranks > heads and ranks % heads == 0 and self.core.query_heads % ranks == 0


def with_shared_heads(
    model: ModelGraph, tree: StrategyTree, degrees: Mapping[str, int]
) -> ModelGraph:
    """Return the model with a key-value head for each tensor rank; the same one where it has.

    Heads are copied where the ranks are a multiple of them and divide the query heads; anything
    else is left as it is, and refused by `legality`.

    Args:
        model: The job's, or changed before.
        degrees: Axis → degree.
    """
    tensor = tensor_degrees(tree, degrees)
    if math.prod(tensor.values()) <= fewest_heads(model):
        return model
    blocks: dict[str, Block] = {}
    instances = []
    for instance in model.instances:
        block = model.blocks[instance.block]
        near = tree.below(instance.path)
        for attention in _all(block):
            # What splits the projection of keys and values splits attention.
            compute = near.choices(f"{instance.path}.{attention.projection}").compute
            ranks = math.prod(tensor.get(axis, 0) for axis in compute.get("out", ()))
            if attention.copies(ranks):
                block = _with_copies(block, attention, ranks)
        blocks.setdefault(block.name, block)
        instances.append(replace(instance, block=block.name))
    return replace(model, blocks=blocks, instances=tuple(instances))


def fewest_heads(model: ModelGraph) -> float:
    """Return the key-value heads of the attention that has the fewest; infinity without any."""
    found = (each.core.kv_heads for block in model.blocks.values() for each in _all(block))
    return min(found, default=math.inf)


def _all(block: Block) -> Iterator[_Attention]:
    """Yield attention whose heads are counted as a whole, after plain projections."""
    for core in block.operators:
        if core.kind is not OperatorKind.ATTENTION or not core.has_dim("heads"):
            continue
        if core.kv_heads and core.dim("heads").units == core.kv_heads:
            queries, keys = (_chain(block.operators, each.tensor) for each in core.inputs[:2])
            if queries and keys:
                yield _Attention(core, queries, keys)


def _chain(operators: Sequence[Operator], tensor: str) -> list[tuple[str, str]]:
    """Return the writers of a tensor, and their shares, back to a projection; empty without one."""
    made = {
        operand.tensor: (operator, number)
        for operator in operators
        for number, operand in enumerate(operator.outputs)
    }
    found = []
    while tensor in made:
        operator, number = made[tensor]
        found.append((operator.path, tensor))
        if operator.kind is OperatorKind.MATMUL:
            return found
        # What rotates queries and keys at once returns them in the order of its inputs.
        tensor = operator.inputs[number if len(operator.outputs) > 1 else 0].tensor
    return []


def _with_copies(block: Block, attention: _Attention, ranks: int) -> Block:
    """Return a block where attention has a key-value head for each rank."""
    heads = attention.core.kv_heads
    copied = {tensor for _, tensor in attention.keys}
    changed = {attention.core.path, *(maker for maker, _ in (*attention.queries, *attention.keys))}
    operators = tuple(
        _copied(each, copied, heads=heads, ranks=ranks) if each.path in changed else each
        for each in block.operators
    )
    return replace(block, name=f"{block.name}.kv{ranks}", operators=operators)


def _copied(operator: Operator, copied: set[str], *, heads: int, ranks: int) -> Operator:
    """Return an operator on copied heads.

    Args:
        operator: A projection, what rotates or norms its output, or attention.
        copied: Tensors of keys and values.
        ranks: As many heads as there are then.
    """
    factor = ranks / heads
    inputs, outputs = (
        tuple(
            replace(each, fraction=each.fraction * factor) if each.tensor in copied else each
            for each in operands
        )
        for operands in (operator.inputs, operator.outputs)
    )
    dims = tuple(replace(d, units=ranks) if d.units == heads else d for d in operator.dims)
    operator = replace(operator, dims=dims, inputs=inputs, outputs=outputs)
    if operator.kind is OperatorKind.ATTENTION:
        cache = operator.cache
        if cache is not None:
            cache = replace(cache, elements=cache.elements * factor)
        return replace(operator, kv_heads=ranks, cache=cache)
    return _widened(operator) if operator.kind is OperatorKind.MATMUL else operator


def _widened(projection: Operator) -> Operator:
    """Return a projection as wide as all its outputs, whose shares add up to one again."""
    wider = sum(each.fraction for each in projection.outputs)
    last = projection.outputs[0].dims[-1]
    return replace(
        projection,
        dims=tuple(_longer(dim, wider) if dim.name == last else dim for dim in projection.dims),
        outputs=tuple(replace(each, fraction=each.fraction / wider) for each in projection.outputs),
        parameters=tuple(
            replace(each, elements=round(each.elements * wider)) if last in each.dims else each
            for each in projection.parameters
        ),
    )


def _longer(dim: IterationDim, factor: float) -> IterationDim:
    length = dim.extent.coefficient * factor
    return replace(dim, extent=replace(dim.extent, coefficient=length))

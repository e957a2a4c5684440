"""Facts about a model that presets need: layers, roles of operators, embedding tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from wattree.graph import (
    BlockInstance,
    DimRole,
    ModelGraph,
    Operator,
    OperatorKind,
    TensorRole,
)

#: Paths of layers of our own families: of a plain stack, of encoder and decoder, and of modules
#: that predict further tokens.
_OWN_LAYERS = ("layers.*", "encoder.layers.*", "decoder.layers.*", "prediction.*.layers.*")


def has_roles(model: ModelGraph) -> bool:
    """Return whether the model declares the roles of its operators in tensor parallelism."""
    return any(o.role is not None for o in model.operators)


def has_stack(model: ModelGraph) -> bool:
    """Return whether strategies decide which of the model's layers form pairs."""
    return any(operator.role is TensorRole.EITHER for operator in model.operators)


def has_whole_states(model: ModelGraph) -> bool:
    """Return whether any operator works on whole hidden states, so sequence parallelism applies."""
    return model.own_family or any(is_positionwise(operator) for operator in model.operators)


def is_positionwise(operator: Operator) -> bool:
    """Return whether an operator is declared to work on each position's hidden state alone."""
    return operator.role is TensorRole.POSITIONWISE and operator.has_dim("seq")


def layer_paths(model: ModelGraph) -> tuple[str, ...]:
    """Return the paths of its layers, in forward order."""
    return tuple(instance.path for instance in model.instances if instance.is_layer)


def layer_patterns(model: ModelGraph) -> tuple[str, ...]:
    """Return patterns of its layers, by built-in family or by module name.

    A number in a path stands for any number where nothing but layers is called so.
    """
    if model.own_family:
        return _OWN_LAYERS
    others = {_general(i.path) for i in model.instances if not i.is_layer}
    found: dict[str, None] = {}
    for path in layer_paths(model):
        found[path if _general(path) in others else _general(path)] = None
    return tuple(found)


def operator_patterns(
    model: ModelGraph,
    chosen: Callable[[Operator], bool],
    named: Callable[[str, Operator], bool] | None = None,
) -> tuple[tuple[str, Operator], ...]:
    """Return patterns of the `chosen` operators, each with the first operator that it matches.

    Paths that differ in the number of a layer share a pattern, if all that it matches is chosen.

    Args:
        chosen: Whether one is chosen, wherever it stands.
        named: Whether one of that whole path is; None for all.
    """
    matches: dict[str, bool] = {}
    first: dict[str, Operator] = {}
    paths: dict[str, list[tuple[str, Operator]]] = {}
    everywhere = {
        name: [(operator, chosen(operator)) for operator in block.operators]
        for name, block in model.blocks.items()
    }
    for instance in model.instances:
        general = _general(instance.path)
        for operator, is_chosen in everywhere[instance.block]:
            pattern = f"{general}.{operator.path}"
            path = f"{instance.path}.{operator.path}"
            if not is_chosen or not (named is None or named(path, operator)):
                matches[pattern] = False
                continue
            matches.setdefault(pattern, True)
            first.setdefault(pattern, operator)
            paths.setdefault(pattern, []).append((path, operator))
    found: list[tuple[str, Operator]] = []
    for pattern, operator in first.items():
        found += [(pattern, operator)] if matches[pattern] else paths[pattern]
    return tuple(found)


def dims_by_pattern(model: ModelGraph, dim_of: Callable[[Operator], str | None]) -> dict[str, str]:
    """Return pattern → the dim that `dim_of` gives for all operators that it matches.

    Layers of one name need not be split alike: of two linear layers, one by columns, one by rows.
    """
    dims = dict.fromkeys(
        dim for operator in model.operators if (dim := dim_of(operator)) is not None
    )
    return {
        pattern: dim
        for dim in dims
        for pattern, _ in operator_patterns(model, lambda o, dim=dim: dim_of(o) == dim)  # type: ignore[misc]
    }


def column_dim(operator: Operator) -> str | None:
    """Return the output features of a matmul: the dims that its weight and output share.

    Of several, that called `out`: in a fused projection the heads, not which of q, k and v.
    """
    return _first(operator, "out", inside=True)


def row_dim(operator: Operator) -> str | None:
    """Return the dim that a matmul sums over, or that indexes the rows of a table."""
    return _first(operator, "in", inside=False)


def column_dims(operator: Operator) -> tuple[str, ...]:
    """Return all dims of a matmul's output features: heads and head dim, or a single dim."""
    written = {name for operand in operator.outputs for name in operand.dims}
    return tuple(name for name in _weight_dims(operator) if name in written)


def row_dims(operator: Operator) -> tuple[str, ...]:
    """Return all dims that a matmul sums over: heads and head dim, or a single dim."""
    written = {name for operand in operator.outputs for name in operand.dims}
    return tuple(name for name in _weight_dims(operator) if name not in written)


def _weight_dims(operator: Operator) -> tuple[str, ...]:
    return operator.parameters[0].dims if operator.parameters else ()


def _first(operator: Operator, wanted: str, *, inside: bool) -> str | None:
    if not operator.parameters:
        return None
    indexed = {name for operand in operator.outputs for name in operand.dims}
    found = [
        name
        for name in operator.parameters[0].dims
        if operator.dim(name).role is not DimRole.OPAQUE and (name in indexed) is inside
    ]
    return wanted if wanted in found else next(iter(found), None)


def is_linear(operator: Operator) -> bool:
    """Return whether a matmul multiplies one input's features by a weight of features alone.

    Features may have several dims, as captured models have heads and what each head has.
    """
    rows, columns = set(row_dims(operator)), set(column_dims(operator))
    read, written = operator.inputs[:1], operator.outputs
    return (
        operator.kind is OperatorKind.MATMUL
        and operator.weight is not None
        and row_dim(operator) is not None
        and column_dim(operator) is not None
        and len(operator.inputs) == 1
        and rows <= set(read[0].dims)
        and not columns & set(read[0].dims)
        and all(set(each.dims) - columns == set(read[0].dims) - rows for each in written)
        and all(columns <= set(each.dims) for each in written)
        and all(set(parameter.dims) == columns for parameter in operator.parameters[1:])
        and operator.in_turn is None
    )


def is_plain_linear(operator: Operator) -> bool:
    """Return whether a matmul multiplies one input's last dim by a weight `(out, in)`.

    Its outputs end in the weight's other dim, and what is added is a bias along that.
    """
    row, column = row_dim(operator), column_dim(operator)
    return (
        operator.kind is OperatorKind.MATMUL
        and operator.weight is not None
        and row is not None
        and column is not None
        and set(operator.weight.dims) == {row, column}
        and len(operator.inputs) == 1
        and operator.inputs[0].dims[-1] == row
        and all(output.dims[-1] == column for output in operator.outputs)
        and all(parameter.dims == (column,) for parameter in operator.parameters[1:])
        and operator.in_turn is None
    )


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTable:
    """A table of vectors looked up by samples.

    Attributes:
        row_dim, column_dim: Its two dims; None where it cannot be split so.
        lookups: Elements read for one sample: rows looked up times width.
    """

    path: str
    elements: int
    row_dim: str | None
    column_dim: str | None
    lookups: float


def tables_of(model: ModelGraph) -> tuple[EmbeddingTable, ...]:
    """Return the tables that samples, not positions, index, in forward order."""
    return tuple(
        EmbeddingTable(
            path=f"{instance.path}.{operator.path}",
            elements=operator.parameters[0].elements,
            row_dim=row_dim(operator),
            column_dim=column_dim(operator),
            lookups=looked_up(operator),
        )
        for instance, operator in _operators(model)
        if is_sample_table(operator)
    )


def is_sample_table(operator: Operator) -> bool:
    """Return whether an operator is an embedding look-up of whole samples."""
    return (
        operator.kind is OperatorKind.EMBEDDING
        and bool(operator.parameters)
        and operator.has_dim("batch")
        and not operator.has_dim("seq")
    )


def looked_up(operator: Operator) -> float:
    """Return the elements that are read of a table for one sample: rows looked up times width."""
    weight, indices = operator.parameters[0], operator.inputs[:1]
    rows = set(indices[0].dims) if indices else set(operator.outputs[0].dims)
    names = (rows | set(weight.dims)) - {"batch", row_dim(operator)}
    return math.prod(operator.dim(name).extent.coefficient for name in names)


def returned(operator: Operator) -> float:
    """Return the elements of a table's result for one sample: one vector for a bag."""
    names = set(operator.outputs[0].dims) - {"batch"}
    return math.prod(operator.dim(name).extent.coefficient for name in names)


# ---------------------------------------------------------------- paths


def _operators(model: ModelGraph) -> Iterator[tuple[BlockInstance, Operator]]:
    for instance in model.instances:
        for operator in model.blocks[instance.block].operators:
            yield instance, operator


@lru_cache(maxsize=4096)
def _general(path: str) -> str:
    return ".".join("*" if segment.isdigit() else segment for segment in path.split("."))

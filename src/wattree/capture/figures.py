"""Figures of the catalog's models in lists."""

from __future__ import annotations

from collections import Counter
from math import prod

from wattree.capture.catalog_entries import catalog_entry
from wattree.capture.load import load_model
from wattree.capture.zoo.shipped import ModelFigures, shipped_models
from wattree.graph import ModelGraph, Operator, OperatorKind


def model_figures(name: str) -> ModelFigures:
    """Return the sizes of the catalog's model called `name`.

    Raises:
        UnknownNameError: The catalog has no such model.
    """
    entry = catalog_entry(name)
    if entry.module:
        return shipped_models()[entry.name]
    graph = load_model(entry.name)
    longest = graph.max_sequence_length
    return ModelFigures(
        architecture=graph.architecture,
        parameters=graph.parameters,
        layers=graph.layers,
        forward_flop=None if longest is None else forward_flop(graph, 1, longest),
        inputs=("tokens" if longest is None else f"{longest:,} tokens",),
        blocks=tuple(sorted(graph.blocks)),
        vocabulary=graph.vocabulary or None,
        max_sequence_length=longest,
    )


def operator_flop(operator: Operator, *, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of one operator's matmuls, with dense attention. [FLOP]

    Two per multiply-add: `2 prod(dims)` for a matmul or a convolution, `2 b s_q s_k h
    (d_qk + d_v)` for attention. Nothing for other operators, as `torch.utils.flop_counter` counts.
    """
    extents = _extents(operator, micro_batch, sequence)
    if operator.kind in (OperatorKind.MATMUL, OperatorKind.CONVOLUTION):
        return 2 * prod(extents.values())
    if operator.kind is OperatorKind.ATTENTION:
        pairs = prod(extents[name] for name in extents if _stem(name) in _PAIRS)
        return 2 * pairs * operator.query_heads * (operator.head_dim + operator.value_head_dim)
    return 0.0


#: Dims of attention that count pairs of positions: samples, windows of them, queries and keys.
_PAIRS = {"batch", "window", "seq", "kv_seq"}


def _extents(operator: Operator, micro_batch: float, sequence: float) -> dict[str, float]:
    return {
        dim.name: dim.extent.value(micro_batch=micro_batch, sequence=sequence)
        for dim in operator.dims
    }


def _stem(name: str) -> str:
    """Return the name of a dim without the number that tells it from others of the name."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else name


def dense_forward_flop(graph: ModelGraph, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of one forward pass, attention counted dense as profilers do. [FLOP]"""
    return _forward_flop(graph, micro_batch, sequence, dense=True)


def forward_flop(graph: ModelGraph, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of one forward pass, of attention only visible scores. [FLOP]"""
    return _forward_flop(graph, micro_batch, sequence, dense=False)


def _forward_flop(graph: ModelGraph, micro_batch: float, sequence: float, *, dense: bool) -> float:
    def flop(operator: Operator) -> float:
        found = operator_flop(operator, micro_batch=micro_batch, sequence=sequence)
        if dense or operator.mask is None:
            return found
        extents = _extents(operator, micro_batch, sequence)
        keys = prod(extents[name] for name in extents if _stem(name) == "kv_seq")
        return found * operator.mask.visible_share(keys)

    counts = Counter(instance.block for instance in graph.instances)
    return sum(
        count * sum(map(flop, graph.blocks[name].operators)) for name, count in counts.items()
    )

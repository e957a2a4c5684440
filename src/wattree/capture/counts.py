"""Work and size of a model graph by plain summation, which a reader can check by hand."""

from __future__ import annotations

from collections import Counter
from math import prod

from wattree.graph import Block, ModelGraph, Operator, OperatorKind


def operator_flop(operator: Operator, *, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of one operator's matmuls, with dense attention. [FLOP]

    Two per multiply-add: `2 prod(dims)` for a matmul or a convolution, `2 b s_q s_k h
    (d_qk + d_v)` for attention. Nothing for other operators, as `torch.utils.flop_counter` counts.
    """
    extents = {
        dim.name: dim.extent.value(micro_batch=micro_batch, sequence=sequence)
        for dim in operator.dims
    }
    if operator.kind in (OperatorKind.MATMUL, OperatorKind.CONVOLUTION):
        return 2 * prod(extents.values())
    if operator.kind is OperatorKind.ATTENTION:
        pairs = prod(extents[name] for name in extents if _stem(name) in _PAIRS)
        return 2 * pairs * operator.query_heads * (operator.head_dim + operator.value_head_dim)
    return 0.0


#: Dims of attention that count pairs of positions: samples, windows of them, queries and keys.
_PAIRS = {"batch", "window", "seq", "kv_seq"}


def _stem(name: str) -> str:
    """Return the name of a dim without the number that tells it from others of the name."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else name


def dense_forward_flop(graph: ModelGraph, micro_batch: float, sequence: float) -> float:
    """Return the FLOP of one forward pass, attention counted dense (masks take nothing off)."""

    def block_flop(block: Block) -> float:
        return sum(
            operator_flop(operator, micro_batch=micro_batch, sequence=sequence)
            for operator in block.operators
        )

    counts = Counter(instance.block for instance in graph.instances)
    return sum(count * block_flop(graph.blocks[name]) for name, count in counts.items())

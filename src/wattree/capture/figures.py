"""Figures of the catalog's models in lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from math import prod

from wattree.capture.catalog_entries import catalog_entry
from wattree.capture.load import load_model
from wattree.capture.zoo.shipped import shipped_models
from wattree.graph import ModelGraph, Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Sizes of a model.

    Attributes:
        architecture: Family, such as `llama` or `resnet`.
        parameters: Tied ones once.
        layers: Blocks that count as layers when stages of a pipeline are cut.
        forward_flop: Matmuls and convolutions of one sample's forward pass, of attention only
            visible scores; of language models at the longest sequence, None if that is unlimited.
            [FLOP]
        inputs: What it reads: shapes of its inputs, or tokens.
        blocks: Kinds of blocks, in alphabetic order.
        vocabulary: Size of the token table; None if there is none.
        max_sequence_length: Longest sequence; None if unlimited, or if there is none.
    """

    architecture: str
    parameters: int
    layers: int
    forward_flop: float | None
    inputs: tuple[str, ...]
    blocks: tuple[str, ...]
    vocabulary: int | None = None
    max_sequence_length: int | None = None

    @property
    def first_input(self) -> str:
        """Shape of a sample's first input, and whether there are more: `3×224×224`."""
        _, bracket, dims = self.inputs[0].partition("[")
        lengths = [length for length in dims.rstrip("]").split(", ") if length != "batch"]
        shape = "×".join(lengths) or "1" if bracket else self.inputs[0]
        return f"{shape} and more" if len(self.inputs) > 1 else shape


def model_figures(name: str) -> ModelFigures:
    """Return the sizes of the catalog's model called `name`.

    Raises:
        UnknownNameError: The catalog has no such model.
    """
    entry = catalog_entry(name)
    if entry.config is None:
        return ModelFigures(**asdict(shipped_models()[entry.name]))
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

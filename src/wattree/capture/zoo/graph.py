"""From the recording of a built-in model to its graph and the figures that lists show. No torch."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from wattree.capture.convert import model_graph
from wattree.capture.recording import Recording, TensorSource
from wattree.capture.zoo.entry import BuiltInModel
from wattree.capture.zoo.shipped import Shipped
from wattree.graph import Extent, ModelGraph

__all__ = ["captured", "figures_of"]


def captured(model: BuiltInModel, recording: Recording) -> ModelGraph:
    """Return the graph of a built-in model from its recording."""
    graph = model_graph(recording)
    return replace(graph, name=recording.name, architecture=model.module, sources=(model.source,))


def figures_of(graph: ModelGraph, recording: Recording) -> Shipped:
    """Return what lists show of a model."""
    sizes = {"micro_batch": 1.0, "sequence": float(recording.sequence or 1)}
    return Shipped(
        architecture=graph.architecture,
        parameters=graph.parameters,
        layers=graph.layers,
        inputs=_inputs(recording),
        forward_flop=sum(operator.flop.value(**sizes) for operator in recording.operators),
        blocks=tuple(sorted(graph.blocks)),
    )


def _inputs(recording: Recording) -> tuple[str, ...]:
    shapes = [
        f"{tensor.dtype}[{', '.join(map(_length, tensor.extents))}]"
        for tensor in recording.tensors
        if tensor.source is TensorSource.INPUT
    ]
    counted = [(shape, len(list(same))) for shape, same in groupby(shapes)]
    return tuple(shape if count == 1 else f"{count} × {shape}" for shape, count in counted)


def _length(extent: Extent) -> str:
    symbols = ["batch"] * extent.batch + ["sequence"] * extent.seq
    if extent.coefficient != 1 or not symbols:
        symbols.insert(0, f"{extent.coefficient:g}")
    return " ".join(symbols)

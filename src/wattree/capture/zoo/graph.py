"""Graphs of built-in models: the one that ships, or one recorded with other options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

from wattree.capture.catalog_entries import CatalogEntry, built_in_models
from wattree.capture.figures import dense_forward_flop, forward_flop
from wattree.capture.recording import Recording, TensorSource
from wattree.capture.zoo.shipped import ModelFigures, shipped_graph
from wattree.errors import check_packages
from wattree.graph import Extent, ModelGraph


def built_in_graph(name: str, options: Mapping[str, Any]) -> ModelGraph:
    """Return the graph of the built-in model called `name`.

    Args:
        options: In place of those of its entry, such as `image_size`.

    Raises:
        ModelError: It has no such option, or cannot be run with it.
        MissingExtraError: It ships with other options, and PyTorch is not installed.
    """
    model = built_in_models()[name]
    if all(key in model.options and model.options[key] == options[key] for key in options):
        return shipped_graph(name)
    needed_for = f"model {name} with other {', '.join(options)}"
    check_packages("torch", needed_for=needed_for, extra="torch")
    return _recorded(name, json.dumps(options, sort_keys=True))


@cache
def _recorded(name: str, options: str) -> ModelGraph:
    """Record a model once per process and options, given as JSON."""
    model, chosen = built_in_models()[name], json.loads(options)
    choices = ", ".join(f"{key} {value}" for key, value in chosen.items())
    recorded = import_module("wattree.capture.zoo.recorded").recorded
    return captured(model, recorded(model, chosen, name=f"{name} with {choices}"))


def captured(model: CatalogEntry, recording: Recording) -> ModelGraph:
    """Return the graph of a built-in model from its recording."""
    from wattree.capture.convert import model_graph

    graph = model_graph(recording)
    return replace(graph, name=recording.name, architecture=model.module, sources=(model.source,))


def figures_of(graph: ModelGraph, recording: Recording) -> ModelFigures:
    """Return a model's figures in lists."""
    sizes = {"micro_batch": 1.0, "sequence": float(recording.sequence or 1)}
    recorded = sum(operator.flop.value(**sizes) for operator in recording.operators)
    return ModelFigures(
        architecture=graph.architecture,
        parameters=graph.parameters,
        layers=graph.layers,
        inputs=_inputs(recording),
        forward_flop=recorded - dense_forward_flop(graph, **sizes) + forward_flop(graph, **sizes),
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

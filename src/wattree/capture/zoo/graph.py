"""Graphs of built-in models: the one that ships, or one recorded with other options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any, Final

from wattree.capture.catalog_entries import LIBRARY, CatalogEntry, built_in_models
from wattree.capture.configuration import described, kind_of
from wattree.capture.figures import dense_forward_flop, forward_flop
from wattree.capture.recording import Recording, TensorSource
from wattree.capture.zoo.shipped import ModelFigures, shipped_graph
from wattree.errors import check_packages
from wattree.graph import Extent, ModelGraph


def built_in_graph(name: str, options: Mapping[str, Any], *, normal: bool = True) -> ModelGraph:
    """Return the graph of the built-in model called `name`.

    Args:
        options: In place of those of its entry, such as `image_size`.
        normal: As `load_model` has it; where it ships.

    Raises:
        ModelError: It has no such option, or cannot be run with it.
        MissingExtraError: It ships with other options, and PyTorch is not installed.
    """
    model = built_in_models()[name]
    if model.ships_with(options):
        return shipped_graph(name, normal=normal)
    needed_for = f"model {name} with other {', '.join(options)}"
    check_packages("torch", needed_for=needed_for, extra="torch")
    check_packages(*packages_of(model), needed_for=needed_for, extra="")
    return _recorded(name, json.dumps(options, sort_keys=True))


@cache
def _recorded(name: str, options: str) -> ModelGraph:
    """Record a model once per process and options, given as JSON."""
    model, chosen = built_in_models()[name], json.loads(options)
    choices = ", ".join(f"{key} {value}" for key, value in chosen.items())
    recorded = import_module("wattree.capture.zoo.recorded").recorded
    return captured(model, recorded(model, chosen, name=f"{name} with {choices}"))


def packages_of(model: CatalogEntry) -> tuple[str, ...]:
    """Return the package, besides torch, that the module of a built-in model is from."""
    return (model.module,) if model.module in _PACKAGES else ()


#: Packages whose modules ship as graphs.
_PACKAGES: Final = (LIBRARY, "diffusers")


def captured(model: CatalogEntry, recording: Recording, *, normal: bool = True) -> ModelGraph:
    """Return the graph of a built-in model from its recording."""
    from wattree.capture.convert import model_graph

    graph = model_graph(recording, normal=normal)
    graph = replace(graph, name=recording.name, sources=(model.source,))
    if model.config is None:
        return replace(graph, architecture=model.module)
    return described(replace(graph, assumed=recording.assumed), model.config)


def forms(model: CatalogEntry) -> tuple[list[ModelGraph], Recording]:
    """Return the graphs of a built-in model that ship, and its recording.

    Modules of the library also as they run kernel by kernel. Language models of the library have
    parameters of 16 bits, as they are trained: their norms widen.
    """
    recorded = import_module("wattree.capture.zoo.recorded").recorded
    narrow = model.config is not None and kind_of(model.config).language
    found = recorded(model, narrow=narrow)
    ways = (True,) if model.config is None else (True, False)
    return [captured(model, found, normal=normal) for normal in ways], found


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

"""The graphs that ship: one for each built-in model, with the figures that were published."""

from __future__ import annotations

import importlib.util
import math
from decimal import Decimal
from pathlib import Path

import pytest

from tests.capture.graphs import catalog_graph
from tests.each import each
from wattree.capture import catalog_entry, load_model
from wattree.capture.catalog_entries import built_in_models
from wattree.capture.figures import forward_flop
from wattree.capture.zoo.shipped import ModelFigures, shipped_models, write_summary

MODELS = built_in_models()


def test_every_built_in_model_ships() -> None:
    """The base install has no torch to make a graph with."""
    assert list(shipped_models()) == list(MODELS)


@each("name", MODELS)
def test_a_graph_has_the_published_parameters(name: str) -> None:
    """Conversion must lose none of them, and the list must say what the graph holds."""
    graph, shipped = catalog_graph(name), shipped_models()[name]
    published = Decimal(MODELS[name].published_parameters or shipped.parameters)
    digits = int(published.as_tuple().exponent)
    found = Decimal(graph.parameters)

    assert graph.parameters == shipped.parameters
    assert (found.quantize(published) if digits >= 0 else found) == published
    assert (graph.name, graph.sources) == (name, (catalog_entry(name).source,))
    assert (graph.layers, tuple(sorted(graph.blocks))) == (shipped.layers, shipped.blocks)


@each("name", [name for name in MODELS if MODELS[name].published_gmac])
def test_the_forward_work_is_the_published_one(name: str) -> None:
    """Within 0.5 %, or the last digit; two FLOP to a multiply-add."""
    published = Decimal(MODELS[name].published_gmac)
    last_digit = 10.0 ** int(published.as_tuple().exponent)
    found = shipped_models()[name].forward_flop / 2e9

    assert found == pytest.approx(float(published), rel=5e-3, abs=last_digit / 2)


@each("name", MODELS)
def test_conversion_keeps_the_forward_work(name: str) -> None:
    """The graph's loops must multiply to what the recorder counted, less the masked scores."""
    graph = catalog_graph(name)
    found = forward_flop(graph, 1, MODELS[name].sequence_length or 1)

    assert found == pytest.approx(shipped_models()[name].forward_flop, rel=1e-6)


def test_a_model_of_the_library_also_ships_kernel_by_kernel() -> None:
    """Eager software runs hand-written activations so."""
    few, many = (load_model("clip-vit-b-32", normal=normal) for normal in (True, False))

    assert len(list(few.operators)) < len(list(many.operators))
    assert few.parameters == many.parameters
    assert load_model("resnet-18", normal=False) == load_model("resnet-18")


def test_the_summary_keeps_what_it_is_given(tmp_path: Path) -> None:
    """A list is read from it without any graph."""
    figures = ModelFigures(
        architecture="ffn",
        parameters=3,
        layers=1,
        inputs=("float32[batch, 3]",),
        forward_flop=6.0,
        blocks=("layer",),
    )
    write_summary({"tiny": figures}, tmp_path)

    text = (tmp_path / "summary.json").read_text(encoding="utf-8")
    assert '"tiny": {"architecture": "ffn", "parameters": 3' in text


def test_graphs_are_small() -> None:
    """They are in every installation."""
    spec = importlib.util.find_spec("wattree.capture.zoo")
    assert spec is not None
    assert spec.origin is not None
    sizes = [path.stat().st_size for path in (Path(spec.origin).parent / "graphs").iterdir()]

    assert math.fsum(sizes) < 4 * 2**20

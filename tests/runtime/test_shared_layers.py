"""Layers that training splits, for the prediction of that run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from wattree.capture import module_graph
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.job import module_source, read_declaration
from wattree.lowering.block import compile_model
from wattree.lowering.changed import changed_model
from wattree.lowering.program import CollectiveInstruction
from wattree.runtime.convert import CutKind, Side
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.train.shared_layers import as_trained
from wattree.strategy import Mesh, Schedule, Strategy, StrategyOptions
from wattree.strategy.presets import tree_of
from wattree.strategy.tree import StrategyTree

_CUT = LayerCut(
    name="1.0",
    kind=CutKind.PHANTOM,
    in_features=8,
    out_features=8,
    size=2,
    bias=True,
    input=Side.WHOLE,
    output=Side.WHOLE,
    ghosts=1,
    variant="pair",
    parts=1,
    is_transposed=False,
)


def _graph(tmp_path: Path, block: str) -> ModelGraph:
    """Return the graph of two blocks of the layers written."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        f"def block(): return nn.Sequential({block})\n"
        "def build(): return nn.Sequential(block(), block())\n"
    )
    inputs = (read_declaration("float32[batch, 8]"),)
    source = replace(module_source("net.py:build", tmp_path), inputs=inputs)
    return module_graph(source, sequence=None)


def test_what_training_passes_whole_and_simulation_in_parts_is_refused(tmp_path: Path) -> None:
    """Between blocks, the graph would gather neither the output nor its gradient, or both."""
    graph = _graph(tmp_path, "nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)")
    strategy = SimpleNamespace(tree=SimpleNamespace(nodes={}))

    with pytest.raises(StrategyError, match="a phantom layer reads what another block makes"):
        as_trained(strategy, graph, [_CUT], regather=False)


def _sent(graph: ModelGraph, tree: StrategyTree) -> list[float]:
    """Return the elements of the exchanges of two tensor-parallel ranks, smallest first."""
    model, tree = changed_model(graph, tree, {"tp": 2})
    program = compile_model(model, tree, frozenset({"tp"}))
    return sorted(
        step.size.coefficient
        for block in (program.programs[index] for index in program.instances)
        for step in (*block.forward, *block.backward)
        if isinstance(step, CollectiveInstruction)
    )


def test_named_layers_alone_are_shared_and_whole_outputs_gathered_once(tmp_path: Path) -> None:
    """In training's prediction and in others: what reads an output saves it whole.

    By hand (docs/phantom.md): ghosts forward and backward, the output, and the input's gradient.
    """
    block = "nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.LayerNorm(8)"
    graph = _graph(tmp_path, block)
    dense = Strategy(mesh=Mesh.of({"tp": 2}), schedule=Schedule(), tree=StrategyTree(nodes={}))
    for layers in (("1.1",), ("1.3",), ("1.1", "1.3")):
        by_hand = [2.0] * 2 * len(layers) + [8.0] * 2 * len(layers)
        cuts = [replace(_CUT, name=name) for name in layers]
        trained = as_trained(dense, graph, cuts, regather=False)
        assert _sent(graph, trained.tree) == by_hand, layers
        options = StrategyOptions(tp=2, phantom=True, ghosts=1, phantom_layers=layers)
        assert _sent(graph, tree_of(options, graph)) == by_hand, layers

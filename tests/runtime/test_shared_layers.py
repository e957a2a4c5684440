"""Layers that training splits, for the prediction of that run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from wattree.capture import module_graph
from wattree.errors import StrategyError
from wattree.job import module_source, read_declaration
from wattree.runtime.convert import CutKind, Side
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.train.shared_layers import as_trained

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


def test_what_training_passes_whole_and_simulation_in_parts_is_refused(tmp_path: Path) -> None:
    """Between blocks, the graph would gather neither the output nor its gradient, or both."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def block(): return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))\n"
        "def build(): return nn.Sequential(block(), block())\n"
    )
    inputs = (read_declaration("float32[batch, 8]"),)
    source = replace(module_source("net.py:build", tmp_path), inputs=inputs)
    graph = module_graph(source, sequence=None)
    strategy = SimpleNamespace(tree=SimpleNamespace(nodes={}))

    with pytest.raises(StrategyError, match="a phantom layer reads what another block makes"):
        as_trained(strategy, graph, [_CUT], regather=False)

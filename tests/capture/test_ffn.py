"""The built-in stack of linear layers: its figures, and how presets split it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from wattree.capture import build_ffn, dense_forward_flop, module_graph
from wattree.errors import JobError
from wattree.graph import ModelGraph
from wattree.job import Ffn, job_from_mapping, module_source
from wattree.lowering.block import compile_model
from wattree.lowering.model import model_of
from wattree.lowering.program import CollectiveInstruction, CollectiveKind
from wattree.strategy.presets import options_of_preset, tree_of

STACK = """
from torch import nn
from torch.nn import functional
import torch

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 96), nn.Linear(96, 32)]
        )

    def forward(self, samples, targets):
        for layer in self.layers[:-1]:
            samples = functional.gelu(layer(samples))
        return functional.mse_loss(self.layers[-1](samples), targets)

def build():
    return Stack()

def example_inputs(batch):
    return torch.zeros(batch, 64), torch.zeros(batch, 32)
"""
SHAPE = Ffn(width=96, depth=4, inputs=64, outputs=32, activation="gelu")


def stack(depth: int = 4, **changes: Any) -> ModelGraph:
    """Return a stack of square layers."""
    given: dict[str, Any] = {"width": 64, "depth": depth, "inputs": 64, "outputs": 64}
    return build_ffn(Ffn(**{**given, **changes}))


def collectives(model: ModelGraph, preset: str) -> dict[str, list[CollectiveKind]]:
    """Return phase → the kinds of collectives of all layers, in program order."""
    options = options_of_preset(preset, {"tp": 4})
    program = compile_model(model, tree_of(options, model), frozenset({"tp"}))
    found: dict[str, list[CollectiveKind]] = {"forward": [], "backward": []}
    for number in program.instances:
        for phase, kinds in found.items():
            steps = getattr(program.programs[number], phase)
            kinds += [step.kind for step in steps if isinstance(step, CollectiveInstruction)]
    return found


def test_figures_are_those_of_the_same_modules_captured(tmp_path: Path) -> None:
    """Two ways in, one model: parameters, FLOP and the bytes of samples agree."""
    pytest.importorskip("torch")
    (tmp_path / "stack.py").write_text(STACK)
    captured = module_graph(module_source("stack.py:build", tmp_path), sequence=None)
    built = build_ffn(SHAPE)
    assert built.parameters == captured.parameters
    assert dense_forward_flop(built, 8, 1) == dense_forward_flop(captured, 8, 1)
    assert built.inputs == captured.inputs
    assert built.layers == SHAPE.depth
    assert built.parameters == sum((n + 1) * m for n, m in pairwise(SHAPE.widths))


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_layers_are_folded_to_few_blocks(depth: int) -> None:
    """Whatever the depth, only the ends differ."""
    model = stack(depth)
    assert [instance.path for instance in model.instances] == [f"layers.{i}" for i in range(depth)]
    assert len(model.blocks) == min(depth, 3)


def test_rows_are_gathered_and_their_gradients_scattered() -> None:
    """Preset `tensor`: an all-gather a layer and pass, no gradient for the samples."""
    found = collectives(stack(), "tensor")
    assert found["forward"] == [CollectiveKind.ALL_GATHER] * 4
    assert found["backward"] == [CollectiveKind.REDUCE_SCATTER] * 3


@pytest.mark.parametrize("depth", [2, 4, 5])
def test_pairs_add_up_once_a_pair(depth: int) -> None:
    """Preset `megatron`: an all-reduce for each second layer forward, between pairs backward."""
    found = collectives(stack(depth), "megatron")
    assert found["forward"] == [CollectiveKind.ALL_REDUCE] * (depth // 2)
    assert found["backward"] == [CollectiveKind.ALL_REDUCE] * ((depth - 1) // 2)


def test_classes_are_gathered_for_their_softmax() -> None:
    """Cross-entropy looks at all classes of a sample."""
    found = collectives(stack(loss="cross_entropy"), "tensor")
    assert found["forward"] == [CollectiveKind.ALL_GATHER] * 5


def test_job_names_the_stack() -> None:
    """Widths that are left out are the width."""
    job = job_from_mapping(
        {
            "model": {"ffn": {"width": 128, "depth": 3, "outputs": 10, "loss": "cross_entropy"}},
            "data": {"global_batch": 8},
            "cluster": {"node": "dgx-a100"},
        }
    )
    assert job.model.ffn == Ffn(width=128, depth=3, inputs=128, outputs=10, loss="cross_entropy")
    assert job.model.ffn.widths == (128, 128, 128, 10)
    assert model_of(job).parameters == 2 * 128 * 129 + 10 * 129


def test_job_lists_what_is_wrong_with_the_stack() -> None:
    """Every fault at once, with what is expected."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(
            {
                "model": {"ffn": {"width": 0, "activation": "swish", "loss": "l1"}},
                "data": {"global_batch": 8},
                "cluster": {"node": "dgx-a100"},
            }
        )
    for place in ("width", "depth", "activation", "loss"):
        assert f"model.ffn.{place}" in str(caught.value)

"""Graphs of forward passes alone: what modules skip after `eval()`."""

from __future__ import annotations

from collections import Counter

from wattree.capture import evaluated, load_model
from wattree.cost.memory_bound import passes_of
from wattree.graph import ModelGraph, Operator, OperatorKind


def operators(graph: ModelGraph) -> list[Operator]:
    """Return the operators of all blocks."""
    return [operator for block in graph.blocks.values() for operator in block.operators]


def test_dropouts_launch_nothing() -> None:
    """Their operators stay, as what comes after them reads their results."""
    trained = load_model("bert-large")
    found = evaluated(trained)
    paths = [operator.path for operator in operators(trained)]
    dropouts = [operator for operator in operators(found) if operator.function == "dropout"]

    assert [operator.path for operator in operators(found)] == paths
    assert dropouts
    assert {(each.kernels, each.saved_mask_bytes) for each in dropouts} == {(0, 0.0)}
    assert found.trainable_parameters == 0


def test_batch_norms_read_their_input_once() -> None:
    """Running statistics need no pass of their own."""
    trained = load_model("resnet50")
    found = evaluated(trained)
    kinds = Counter(operator.function for operator in operators(found))
    before, after = (
        passes_of(OperatorKind.BATCH_NORM, name) for name in ("batch_norm", "batch_norm_inference")
    )

    assert kinds["batch_norm_inference"] > 0
    assert "batch_norm" not in kinds
    assert before is not None
    assert after is not None
    assert (before.inputs, after.inputs) == (2.0, 1.0)
    assert (before.outputs, after.outputs) == (1.0, 1.0)

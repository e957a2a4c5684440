"""Turns the graph of a training step into that of evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wattree.capture.adapters import all_frozen
from wattree.graph import ModelGraph, Operator, OperatorKind

#: Batch norm with the running statistics instead of the batch's.
RUNNING_NORM: Final = "batch_norm_inference"


def evaluated(graph: ModelGraph) -> ModelGraph:
    """Return the graph of a forward pass alone, as modules run it after `eval()`.

    No parameter is trained, dropout passes its input on, and batch norms use running statistics.
    """
    frozen = all_frozen(graph)
    blocks = {
        name: replace(block, operators=tuple(map(_evaluated, block.operators)))
        for name, block in frozen.blocks.items()
    }
    return replace(frozen, blocks=blocks)


def _evaluated(operator: Operator) -> Operator:
    if operator.kind is OperatorKind.BATCH_NORM and "batch_norm" in operator.function:
        return replace(operator, function=RUNNING_NORM)
    if operator.function == "dropout":
        return replace(operator, kernels=0, saved_mask_bytes=0.0)
    return operator

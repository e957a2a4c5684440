"""Frozen linear layers of fewer bits than they compute with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from wattree.graph import ModelGraph, Operator, OperatorKind

#: Format → bytes of an element: 4 bits, and for each 64 elements a scale of 4 bytes, or one of 1
#: byte and for each 256 of those a scale of 4 bytes (T. Dettmers et al., "QLoRA", 2023,
#: arXiv:2305.14314, section 3).
STORED_BYTES: Final[Mapping[str, float]] = {
    "nf4": 0.5 + 4 / 64,
    "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256),
}
#: Matmuls in layers that are no linear layers of the library's modules.
_ROUTER: Final = "moe.router"


def with_quantized_layers(graph: ModelGraph, form: str) -> ModelGraph:
    """Return the graph with the frozen linear layers of its layers stored in a format.

    The head, experts (one tensor for all) and tables keep theirs, as with bitsandbytes.

    Args:
        graph: Any model.
        form: A key of `STORED_BYTES`.
    """
    layers = {instance.block for instance in graph.instances if instance.is_layer}
    blocks = {
        name: replace(block, operators=tuple(_stored(each, form) for each in block.operators))
        if name in layers
        else block
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def _stored(operator: Operator, form: str) -> Operator:
    weight = operator.weight if operator.kind is OperatorKind.MATMUL else None
    if weight is None or weight.trainable:
        return operator
    if "experts" in operator.path or operator.path == _ROUTER:
        return operator
    stored = replace(weight, stored_bytes=STORED_BYTES[form])
    parameters = (stored if each == weight else each for each in operator.parameters)
    return replace(operator, parameters=tuple(parameters))

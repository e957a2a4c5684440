"""Linear layers of a model's layers: all of them as targets, and frozen ones of fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
#: PEFT's word for every linear layer but the head.
ALL_LINEAR: Final = "all-linear"
#: A matmul in layers that is no linear layer of the library's modules.
_ROUTER: Final = "moe.router"


def with_quantized_layers(graph: ModelGraph, form: str) -> ModelGraph:
    """Return the graph with the frozen linear layers of its layers stored in a format.

    Args:
        graph: Any model.
        form: A key of `STORED_BYTES`.
    """
    layers = _layers(graph)
    blocks = {
        name: replace(block, operators=tuple(_stored(each, form) for each in block.operators))
        if name in layers
        else block
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def layer_targets(graph: ModelGraph, targets: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of operators, with `ALL_LINEAR` replaced by what it stands for."""
    if ALL_LINEAR not in targets:
        return tuple(targets)
    operators = [each for name in _layers(graph) for each in graph.blocks[name].operators]
    paths = dict.fromkeys(each.path for each in operators if _is_linear(each))
    return (*(each for each in targets if each != ALL_LINEAR), *paths)


def _layers(graph: ModelGraph) -> list[str]:
    return list(dict.fromkeys(each.block for each in graph.instances if each.is_layer))


def _is_linear(operator: Operator) -> bool:
    """Return whether it is one of the library's linear layers: experts are one tensor for all."""
    is_layer = operator.kind is OperatorKind.MATMUL and operator.weight is not None
    return is_layer and "experts" not in operator.path and operator.path != _ROUTER


def _stored(operator: Operator, form: str) -> Operator:
    weight = operator.weight
    if weight is None or weight.trainable or not _is_linear(operator):
        return operator
    stored = replace(weight, stored_bytes=STORED_BYTES[form])
    parameters = (stored if each == weight else each for each in operator.parameters)
    return replace(operator, parameters=tuple(parameters))

"""Linear layers of a model's layers: all of them as targets, and frozen ones of fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from wattree.errors import ModelError
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

    Raises:
        ModelError: It has none.
    """
    layers = _layers(graph)
    if not any(_is_linear(each) for name in layers for each in graph.blocks[name].operators):
        raise ModelError(f"{graph.name}: lora.base: its layers have no linear layer to store so")
    blocks = {
        name: replace(block, operators=tuple(_stored(each, form) for each in block.operators))
        if name in layers
        else block
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def layer_targets(graph: ModelGraph, targets: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of operators, with `ALL_LINEAR` replaced by what it stands for.

    Raises:
        ModelError: It stands for nothing.
    """
    if ALL_LINEAR not in targets:
        return tuple(targets)
    operators = [each for name in _layers(graph) for each in graph.blocks[name].operators]
    paths = dict.fromkeys(each.path for each in operators if _is_linear(each))
    if not paths:
        raise ModelError(f"{graph.name}: lora.targets: its layers have no linear layer")
    return (*(each for each in targets if each != ALL_LINEAR), *paths)


def is_quantized(graph: ModelGraph) -> bool:
    """Return whether any weight is stored in fewer bits."""
    operators = (each for block in graph.blocks.values() for each in block.operators)
    return any(parameter.stored_bytes > 0 for each in operators for parameter in each.parameters)


def _layers(graph: ModelGraph) -> list[str]:
    return list(dict.fromkeys(each.block for each in graph.instances if each.is_layer))


def _is_linear(operator: Operator) -> bool:
    """Return whether it is one of the library's linear layers: experts are one tensor for all.

    Those that make one feature, such as a gate, have no rank to lower.
    """
    weight = operator.weight
    if operator.kind is not OperatorKind.MATMUL or weight is None:
        return False
    if operator.has_dim("in") and weight.elements == operator.dim("in").extent.coefficient:
        return False
    return operator.function != "grouped_linear" and operator.path != _ROUTER


def _stored(operator: Operator, form: str) -> Operator:
    weight = operator.weight
    if weight is None or weight.trainable or not _is_linear(operator):
        return operator
    stored = replace(weight, stored_bytes=STORED_BYTES[form])
    parameters = (stored if each == weight else each for each in operator.parameters)
    return replace(operator, parameters=tuple(parameters))

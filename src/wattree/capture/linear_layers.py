"""Linear layers of a model's layers: all of them as targets, and frozen ones of fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from wattree.capture.operator_names import matches
from wattree.errors import ModelError
from wattree.files import read_yaml
from wattree.graph import ModelGraph, Operator, OperatorKind

#: Format → bytes of an element: 4 bits, and for each 64 elements a scale of 4 bytes, or one of 1
#: byte and for each 256 of those a scale of 4 bytes (T. Dettmers et al., "QLoRA", 2023,
#: arXiv:2305.14314, section 3). Of 8 bits, a row has one scale, which is left out (T. Dettmers et
#: al., "LLM.int8()", 2022, arXiv:2208.07339).
STORED_BYTES: Final[Mapping[str, float]] = {
    "int8": 1.0,
    "nf4": 0.5 + 4 / 64,
    "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256),
}
#: PEFT's word for every linear layer but the head.
ALL_LINEAR: Final = "all-linear"
#: Model type → operator → its modules in the transformers library.
LIBRARY_MODULES: Final[Mapping[str, Mapping[str, list[str]]]] = read_yaml(
    Path(__file__).with_name("library_modules.yaml")
)
#: Projections before and after attention, as our own families call them.
_BEFORE, _AFTER = "attention.qkv", "attention.out"
#: A matmul in layers that is no linear layer of the library's modules.
_ROUTER: Final = "moe.router"
#: Matmuls of all experts.
_GROUPED: Final = "grouped_linear"


def with_quantized_layers(graph: ModelGraph, form: str, *, experts: bool = False) -> ModelGraph:
    """Return the graph with the frozen linear layers of its layers stored in a format.

    Args:
        graph: Any model.
        form: A key of `STORED_BYTES`.
        experts: Matmuls of experts are among them.

    Raises:
        ModelError: It has none.
    """
    layers = _layers(graph)
    if not any(_is_linear(each) for name in layers for each in graph.blocks[name].operators):
        raise ModelError(f"{graph.name}: lora.base: its layers have no linear layer to store so")

    def stored(each: Operator) -> Operator:
        is_stored = _is_linear(each) or (experts and each.function == _GROUPED)
        return _stored(each, form) if is_stored else each

    changed = {name: graph.blocks[name].mapped(stored) for name in layers}
    return replace(graph, blocks={**graph.blocks, **changed})


def layer_targets(graph: ModelGraph, targets: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of operators.

    `ALL_LINEAR` stands for what it is in this model, and a name that the transformers library has
    for a module of it, such as `q_proj`, for the operator that computes the module. In captured
    models the names of projections around attention stand for those of its module.

    Raises:
        ModelError: `ALL_LINEAR` stands for nothing.
    """
    operators = [each for name in _layers(graph) for each in graph.blocks[name].operators]
    linear = list(dict.fromkeys(each.path for each in operators if _is_linear(each)))
    if ALL_LINEAR in targets and not linear:
        raise ModelError(f"{graph.name}: lora.targets: its layers have no linear layer")
    found: dict[str, None] = {}
    for target in targets:
        paths = linear if target == ALL_LINEAR else _around_attention(target, graph)
        paths = [*paths, *_named_modules(graph, [target])]
        found |= dict.fromkeys(paths or [target])
    return tuple(found)


def partial_targets(graph: ModelGraph, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return operator → places of its modules that are targets, where others of it are none.

    Args:
        targets: As a job states them.
    """
    computed = _library_modules(graph)
    return {
        path: tuple(sorted(map(computed[path].index, some)))
        for path, some in _named_modules(graph, targets).items()
        if set(some) < set(computed[path])
        and not any(target == ALL_LINEAR or matches(path, target) for target in targets)
    }


def _named_modules(graph: ModelGraph, targets: Sequence[str]) -> dict[str, list[str]]:
    """Return operator → its modules in the transformers library that are named."""
    found = {
        path: [each for each in modules if any(_is_module(target, each) for target in targets)]
        for path, modules in _library_modules(graph).items()
    }
    return {path: some for path, some in found.items() if some}


def library_names(graph: ModelGraph) -> list[str]:
    """Return the names, such as `q_proj`, that the transformers library has for its modules."""
    modules = (each for some in _library_modules(graph).values() for each in some)
    return list(dict.fromkeys(module.rpartition(".")[2] for module in modules))


def _library_modules(graph: ModelGraph) -> Mapping[str, list[str]]:
    return LIBRARY_MODULES.get(graph.architecture, {}) if graph.own_family else {}


def _around_attention(target: str, graph: ModelGraph) -> list[str]:
    """Return the projections of a captured model that our own name of them stands for."""
    if graph.own_family or target not in (_BEFORE, _AFTER):
        return []
    found: dict[str, None] = {}
    for name in _layers(graph):
        operators = graph.blocks[name].operators
        for place, core in enumerate(operators):
            module = core.path.rpartition(".")[0]
            if core.kind is OperatorKind.ATTENTION and module:
                side = operators[:place] if target == _BEFORE else operators[place:]
                inside = (each for each in side if each.path.startswith(f"{module}."))
                found |= {each.path: None for each in inside if _is_linear(each)}
    return list(found)


def _is_module(target: str, module: str) -> bool:
    """Return whether a target is a module's name in any layer, with more or less of its path."""
    if any(part.isdigit() for part in target.split(".")):
        return False
    return f".{module}".endswith(f".{target}") or target.endswith(f".{module}")


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
    return operator.function != _GROUPED and operator.path != _ROUTER


def _stored(operator: Operator, form: str) -> Operator:
    weight = operator.weight
    if weight is None or weight.trainable:
        return operator
    stored = replace(weight, stored_bytes=STORED_BYTES[form])
    parameters = (stored if each == weight else each for each in operator.parameters)
    return replace(operator, parameters=tuple(parameters))

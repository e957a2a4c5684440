"""Models of which only a part is trained: frozen parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from wattree.capture.operator_names import refuse_unmatched
from wattree.errors import ModelError
from wattree.graph import (
    Block,
    BlockInstance,
    ModelGraph,
    Operator,
    OperatorKind,
)


def freeze(graph: ModelGraph, patterns: Sequence[str]) -> ModelGraph:
    """Return the graph with the parameters of some operators frozen.

    Instances of a block that are frozen differently become blocks of their own. A parameter
    tied to another is frozen with it.

    Args:
        graph: Any model.
        patterns: Matched against `<instance path>.<operator path>`, such as `layers.0.*`, and
            `<block>.<operator path>`, such as `layer.attention.*`.

    Raises:
        ModelError: A pattern matches no operator, or nothing is left to train.
    """
    names = {
        f"{place}.{op.path}"
        for instance in graph.instances
        for op in graph.blocks[instance.block].operators
        for place in (instance.path, instance.block)
    }
    refuse_unmatched(graph.name, patterns, names, what="freeze", kind="operator")
    chosen = [_frozen_paths(i, graph.blocks[i.block], patterns) for i in graph.instances]
    frozen_graph = _tied_follow(
        in_variants(graph, chosen, _with_frozen, word="frozen", renames_all=True)
    )
    if not frozen_graph.trainable_parameters:
        raise ModelError(
            f"{graph.name}: freeze: the patterns leave no parameter to train, found "
            f"{', '.join(repr(pattern) for pattern in patterns)}; freeze fewer operators"
        )
    return frozen_graph


# --- blocks whose instances come to differ -------------------------------------------------------


def in_variants(
    graph: ModelGraph,
    chosen: Sequence[frozenset[str]],
    changed: Callable[[Block, frozenset[str], str], Block],
    *,
    word: str,
    renames_all: bool,
) -> ModelGraph:
    """Return the graph with a block for each set of operators that is chosen in its instances.

    Args:
        graph: Any model.
        chosen: Paths of operators, instance by instance.
        changed: Block, paths and new name → the block with these operators changed.
        word: Begins the names of changed blocks.
        renames_all: Also where all instances of a block are changed alike.
    """
    alike: dict[str, set[frozenset[str]]] = {}
    for instance, paths in zip(graph.instances, chosen, strict=True):
        alike.setdefault(instance.block, set()).add(paths)
    blocks: dict[str, Block] = {}
    named: dict[tuple[str, frozenset[str]], str] = {}
    instances = []
    for instance, paths in zip(graph.instances, chosen, strict=True):
        block = graph.blocks[instance.block]
        key = (block.name, paths)
        if key not in named:
            keeps = not paths or not (renames_all or len(alike[block.name]) > 1)
            name = block.name if keeps else _variant_name(graph, block, word, taken=blocks)
            named[key] = name
            blocks[name] = changed(block, paths, name)
        instances.append(replace(instance, block=named[key]))
    return replace(graph, blocks=blocks, instances=tuple(instances))


def _variant_name(graph: ModelGraph, block: Block, word: str, *, taken: Mapping[str, Block]) -> str:
    name, number = f"{word}_{block.name}", 1
    while name in taken or name in graph.blocks:
        number += 1
        name = f"{word}_{block.name}_{number}"
    return name


# --- frozen parameters ---------------------------------------------------------------------------


def _frozen_paths(instance: BlockInstance, block: Block, patterns: Sequence[str]) -> frozenset[str]:
    return frozenset(
        op.path
        for op in block.operators
        if op.parameters
        and any(
            fnmatchcase(f"{place}.{op.path}", pattern)
            for place in (instance.path, block.name)
            for pattern in patterns
        )
    )


def _with_frozen(block: Block, frozen: frozenset[str], name: str) -> Block:
    operators = (_frozen(op) if op.path in frozen else op for op in block.operators)
    return replace(block, name=name, operators=tuple(operators))


def _frozen(operator: Operator) -> Operator:
    """Return the operator without gradients for its parameters.

    A matmul then saves nothing: the gradient of its input needs the weight only.
    """
    parameters = tuple(replace(p, trainable=False) for p in operator.parameters)
    saved = () if operator.kind is OperatorKind.MATMUL else operator.saved
    return replace(operator, parameters=parameters, saved=saved)


def all_frozen(graph: ModelGraph) -> ModelGraph:
    """Return the graph with no parameter to train: one of which only forward passes are run."""
    return graph.mapped(lambda operator: _frozen(operator) if operator.parameters else operator)


def _tied_follow(graph: ModelGraph) -> ModelGraph:
    """Return the graph with every tied parameter as trainable as the one it is tied to."""
    trainable = {
        f"{instance.path}/{parameter.name}": parameter.trainable
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        for parameter in operator.parameters
    }

    def followed(operator: Operator) -> Operator:
        parameters = tuple(
            replace(p, trainable=trainable.get(p.tied_to, p.trainable)) if p.tied_to else p
            for p in operator.parameters
        )
        is_same = parameters == operator.parameters
        return operator if is_same else replace(operator, parameters=parameters)

    return graph.mapped(followed)

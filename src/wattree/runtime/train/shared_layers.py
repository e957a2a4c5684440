"""The strategy of a module as its ranks share it in training, for the prediction of that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.errors import StrategyError
from wattree.graph import BlockInstance, ModelGraph, Operator, OperatorKind
from wattree.runtime.convert import CutKind, Side, conversion_of
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.models.trainable import Trainable
from wattree.strategy import GatheredStore, MemoryChoice, PhantomLayers, Strategy, TreeNode
from wattree.strategy.parts import column_dim, row_dim
from wattree.strategy.tree import StrategyTree


def shared_layers(trainable: Trainable) -> tuple[LayerCut, ...]:
    """Return the layers of a user's module that ranks share; empty where none is."""
    try:
        converted = conversion_of(getattr(trainable.parts[0], "module", trainable.parts[0]))
    except StrategyError:
        return ()
    return tuple(layer.cut for layer in converted.layers)


def as_trained(
    strategy: Strategy, model: ModelGraph, layers: Sequence[LayerCut], *, regather: bool
) -> Strategy:
    """Return a strategy whose tensor-parallel ranks share the layers that were, and no others.

    Args:
        layers: How each shared layer lies; none of a model that is built as it is simulated.
        regather: Gathered inputs of phantom layers are gathered again for backward.
    """
    if not layers:
        return strategy
    cuts = {cut.name: cut for cut in layers}
    nodes = {
        pattern: node
        for pattern, node in strategy.tree.nodes.items()
        if not node.phantom and all("tp" not in axes for axes in node.compute.values())
    }
    for instance in model.instances:
        nodes |= _nodes(instance, model.blocks[instance.block].operators, cuts, regather=regather)
    return replace(strategy, tree=StrategyTree(nodes=nodes))


def _nodes(
    instance: BlockInstance,
    operators: Sequence[Operator],
    cuts: Mapping[str, LayerCut],
    *,
    regather: bool,
) -> dict[str, TreeNode]:
    nodes, sides = {}, dict[str, Side]()
    for operator in operators:
        path = f"{instance.path}.{operator.path}"
        weight = operator.weight
        # A layer that is called again has a path of its own, but one weight.
        name = f"{instance.module_path}.{weight.name}" if weight is not None else ""
        cut = cuts.get(name.removesuffix(".weight"))
        if cut is not None and operator.kind is OperatorKind.MATMUL:
            nodes[path] = _node(operator, cut, regather=regather)
            sides |= {operand.tensor: cut.output for operand in operator.outputs}
        elif weight is None:
            read = {sides[each.tensor] for each in operator.inputs if each.tensor in sides}
            if Side.WHOLE in read:  # not split again by what reads it
                nodes[path] = TreeNode(compute={operator.outputs[0].dims[-1]: ()})
    return nodes


def _node(operator: Operator, cut: LayerCut, *, regather: bool) -> TreeNode:
    dims: dict[str, tuple[str, ...]] = {
        dim: () for dim in (column_dim(operator), row_dim(operator)) if dim is not None
    }
    is_phantom = cut.kind is CutKind.PHANTOM
    memory = MemoryChoice(
        gathered=GatheredStore.AGAIN if regather and is_phantom else GatheredStore.KEEP
    )
    if is_phantom:
        layers = PhantomLayers(ghosts=cut.ghosts, variant=cut.variant)
        return TreeNode(phantom=layers, memory=memory, compute=dims)
    split = row_dim(operator) if cut.kind is CutKind.ROW else column_dim(operator)
    return TreeNode(memory=memory, compute=dims | ({split: ("tp",)} if split is not None else {}))

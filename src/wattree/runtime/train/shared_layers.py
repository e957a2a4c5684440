"""The strategy of a module as its ranks share it in training, for the prediction of that run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from wattree.errors import StrategyError
from wattree.graph import Block, BlockInstance, ModelGraph, Operator, OperatorKind
from wattree.runtime.convert import CutKind, Side, conversion_of
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.models.trainable import Trainable
from wattree.strategy import GatheredStore, MemoryChoice, PhantomLayers, Strategy, TreeNode
from wattree.strategy.parts import column_dim, row_dim
from wattree.strategy.presets.phantom import reader_of_whole
from wattree.strategy.tree import StrategyTree

_PASSED_IN_PARTS: Final = (
    "a phantom layer reads what another block makes: training passes it whole, and the simulation "
    "in parts"
)


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

    Raises:
        StrategyError: The simulated layers would exchange something else.
    """
    if not layers:
        return strategy
    cuts = {cut.name: cut for cut in layers}
    nodes = {
        pattern: node
        for pattern, node in strategy.tree.nodes.items()
        if not node.phantom and all("tp" not in axes for axes in node.compute.values())
    }
    misfits = dict[str, str]()
    for instance in model.instances:
        block = model.blocks[instance.block]
        misfits |= dict.fromkeys(_passed_in_parts(instance, block, cuts), _PASSED_IN_PARTS)
        nodes |= _nodes(instance, block.operators, cuts, regather=regather)
    if misfits:
        raise StrategyError(misfits)
    return replace(strategy, tree=StrategyTree(nodes=nodes))


def _cut_of(
    operator: Operator, instance: BlockInstance, cuts: Mapping[str, LayerCut]
) -> LayerCut | None:
    weight = operator.weight
    if weight is None or operator.kind is not OperatorKind.MATMUL:
        return None
    # A layer that is called again has a path of its own, but one weight.
    return cuts.get(f"{instance.module_path}.{weight.name}".removesuffix(".weight"))


def _passed_in_parts(
    instance: BlockInstance, block: Block, cuts: Mapping[str, LayerCut]
) -> Iterator[str]:
    """Yield the phantom layers with whole inputs that other blocks make."""
    entering = {tensor.name for tensor in block.inputs}
    for operator in block.operators:
        cut = _cut_of(operator, instance, cuts)
        is_whole = cut is not None and cut.kind is CutKind.PHANTOM and cut.input is Side.WHOLE
        if is_whole and entering.intersection(operand.tensor for operand in operator.inputs):
            yield f"{instance.path}.{operator.path}"


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
        cut = _cut_of(operator, instance, cuts)
        if cut is not None:
            nodes[path] = _node(operator, cut, regather=regather)
            sides |= {operand.tensor: cut.output for operand in operator.outputs}
        elif Side.WHOLE in {sides.get(each.tensor) for each in operator.inputs}:
            nodes[path] = reader_of_whole(operator)
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

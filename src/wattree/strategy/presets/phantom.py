"""Phantom parallelism: ranks keep blocks of linear layers, and exchange a few ghosts for the rest.

S. K. Seal, M. Alam, J. Ramirez, S. Dash, H. Lu, "A Parallel Alternative for Energy-Efficient Neural
Network Training and Inferencing", arXiv 2508.00960, 2025, for stacks of linear layers; here also
for those of transformers. What stands between phantom layers, and layers that become none, are
split over the same ranks as under tensor parallelism.
"""

from __future__ import annotations

import fnmatch

from wattree.errors import StrategyError
from wattree.graph import ModelGraph, Operator, OperatorKind, TensorRole
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import (
    column_dim,
    dims_by_pattern,
    is_plain_linear,
    is_positionwise,
    layer_patterns,
    operator_patterns,
    row_dim,
)
from wattree.strategy.phantom import PhantomLayers
from wattree.strategy.tree import GatheredStore, MemoryChoice, StrategyTree, TreeNode

__all__ = ["check_phantom", "phantom_parallel"]

#: Of our own transformers: the feed-forward part.
_OWN = ("mlp.up", "mlp.down")
#: What stands between the feed-forward part, or attention, and the norm of the next layer.
_ADDED = ("*.dropout", "*.residual")
#: What the only operator of a captured linear layer is called.
_ALONE = ".linear"
_ROLES = (TensorRole.COLUMN, TensorRole.ROW, TensorRole.EITHER)


def phantom_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return which linear layers are phantom layers, and that ghosts are kept for backward."""
    if not options.phantom:
        return StrategyTree(nodes={})
    assert options.ghosts is not None
    memory = MemoryChoice(gathered=GatheredStore.AGAIN if options.regather else GatheredStore.KEEP)
    nodes = {path: TreeNode(compute={dim: ()}) for path, dim in _whole_states(model).items()}
    for ghosts in dict.fromkeys((options.ghosts, *dict(options.layer_ghosts).values())):
        found = operator_patterns(
            model,
            lambda operator: _may_be_chosen(operator, options, model),
            lambda path, operator, ghosts=ghosts: (  # type: ignore[misc]
                _is_named(path, operator, options) and _ghosts_of(path, operator, options) == ghosts
            ),
        )
        layers = PhantomLayers(ghosts=ghosts, variant=options.variant, exchange=options.exchange)
        for pattern, operator in found:
            # Whatever splits the linear layer goes with it.
            dims = {dim: () for dim in (column_dim(operator), row_dim(operator)) if dim is not None}
            nodes[pattern] = TreeNode(phantom=layers, memory=memory, compute=dims)
    return StrategyTree(nodes=nodes)


def _ghosts_of(path: str, operator: Operator, options: StrategyOptions) -> int | None:
    """Return the ghosts of a layer: those of the first pattern that names it, or of all."""
    for pattern, ghosts in options.layer_ghosts:
        if _matches(path, operator, pattern):
            return ghosts
    return options.ghosts


def _whole_states(model: ModelGraph) -> dict[str, str]:
    """Return what adds to hidden states that norms need whole, and the dim of their features.

    Outputs of phantom layers are gathered ahead of it, once, instead of its own output and the
    gradients of both of its inputs.
    """
    if model.own_family:
        paths = [f"{layer}.{path}" for layer in layer_patterns(model) for path in _ADDED]
        return dict.fromkeys(paths, "hidden")
    return dims_by_pattern(model, lambda o: o.outputs[0].dims[-1] if is_positionwise(o) else None)


def check_phantom(options: StrategyOptions, model: ModelGraph) -> None:
    """Refuse phantom layers of one rank, and patterns that name none.

    Raises:
        StrategyError: With what is expected instead.
    """
    if not options.phantom:
        return
    misfits = {}
    if options.tp == 1:
        misfits["strategy.tp"] = (
            "found 1 with phantom layers, which then are the linear layers in whose place they "
            "stand; set tp above 1, or use ddp"
        )
    linear = [
        (f"{instance.path}.{operator.path}", operator)
        for instance in model.instances
        for operator in model.blocks[instance.block].operators
        if _is_linear(operator)
    ]
    for pattern in options.phantom_layers or ():
        if not any(_matches(path, operator, pattern) for path, operator in linear):
            known = dict.fromkeys(_known_as(path, operator, model) for path, operator in linear)
            misfits[f"strategy.phantom_layers.{pattern}"] = (
                f"matches no linear layer of {model.name}; it has {', '.join(known) or 'none'}"
            )
    for pattern, _ in options.layer_ghosts:
        if not any(_matches(path, operator, pattern) for path, operator in linear):
            known = dict.fromkeys(_known_as(path, operator, model) for path, operator in linear)
            misfits[f"strategy.layer_ghosts.{pattern}"] = (
                f"matches no linear layer of {model.name}; it has {', '.join(known) or 'none'}"
            )
    is_any = any(
        _may_be_chosen(operator, options, model) and _is_named(path, operator, options)
        for path, operator in linear
    )
    if not is_any and not misfits:
        misfits["strategy.phantom"] = (
            f"finds no linear layers to replace in {model.name}; name some with phantom_layers, or "
            "use tensor"
        )
    if misfits:
        raise StrategyError(misfits)


def _may_be_chosen(operator: Operator, options: StrategyOptions, model: ModelGraph) -> bool:
    if not _is_linear(operator) or options.phantom_layers is not None:
        return _is_linear(operator)
    if model.own_family:
        return operator.path in _OWN
    return operator.role in _ROLES and is_plain_linear(operator)


def _is_named(path: str, operator: Operator, options: StrategyOptions) -> bool:
    patterns = options.phantom_layers
    return patterns is None or any(_matches(path, operator, each) for each in patterns)


def _matches(path: str, operator: Operator, pattern: str) -> bool:
    """Return whether a pattern names an operator: by its path in a block, or in the model.

    A captured linear layer that is a block of its own has the name of its module, too.
    """
    names = (operator.path, path, path.removesuffix(_ALONE))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _known_as(path: str, operator: Operator, model: ModelGraph) -> str:
    if model.own_family:
        return operator.path
    *block, name = path.removesuffix(_ALONE).split(".")
    return ".".join((*("*" if part.isdigit() else part for part in block), name))


def _is_linear(operator: Operator) -> bool:
    return operator.kind is OperatorKind.MATMUL and operator.weight is not None

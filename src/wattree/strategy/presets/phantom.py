"""Phantom parallelism: ranks store blocks of linear layers and exchange a few ghosts.

S. K. Seal, M. Alam, J. Ramirez, S. Dash, H. Lu, "A Parallel Alternative for Energy-Efficient Neural
Network Training and Inferencing", arXiv 2508.00960, 2025, for stacks of linear layers; here also
for those of transformers. What stands between phantom layers, and layers that become none, are
split over the same ranks as under tensor parallelism; where layers are named of a module whose
parts are not known by name, all else is whole, as training runs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import StrategyError
from wattree.graph import ModelGraph, Operator, OperatorKind, TensorRole, joined_parts
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
from wattree.strategy.phantom import PhantomLayers, known_transformer, names_layer
from wattree.strategy.tree import GatheredStore, MemoryChoice, StrategyTree, TreeNode

#: Of our own transformers: the feed-forward part.
_OWN = ("mlp.up", "mlp.down")
#: What stands between the feed-forward part, or attention, and the norm of the next layer.
_ADDED = ("*.dropout", "*.residual")
#: What the only operator of a captured linear layer is called.
_ALONE = ".linear"
_ROLES = (TensorRole.COLUMN, TensorRole.ROW, TensorRole.EITHER)


def phantom_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return which linear layers become phantom layers, and that ghosts are saved for backward."""
    if not options.phantoms.enabled:
        return StrategyTree(nodes={})
    assert options.phantoms.ghosts is not None
    memory = MemoryChoice(
        gathered=GatheredStore.AGAIN if options.phantoms.regather else GatheredStore.KEEP
    )
    nodes = {path: TreeNode(compute={dim: ()}) for path, dim in _whole_states(model).items()}
    found = operator_patterns(
        model,
        lambda operator: _may_be_chosen(operator, options, model),
        lambda path, operator: _is_named(path, operator, options),
    )
    layers = PhantomLayers(
        ghosts=options.phantoms.ghosts,
        variant=options.phantoms.variant,
        exchange=options.phantoms.exchange,
    )
    for pattern, operator in found:
        # Whatever splits the linear layer goes with it.
        dims = {dim: () for dim in (column_dim(operator), row_dim(operator)) if dim is not None}
        nodes[pattern] = TreeNode(phantom=layers, memory=memory, compute=dims)
    if others_stay_whole(options, model):
        nodes |= _readers(options, model)
    return StrategyTree(nodes=nodes)


def others_stay_whole(options: StrategyOptions, model: ModelGraph) -> bool:
    """Return whether layers that are no phantom layers are whole on every rank.

    So are those of a module of which phantom layers are named, and nothing else is known.
    """
    if not options.phantoms.enabled or options.phantoms.layers is None or model.own_family:
        return False
    named = (names for path, operator in _linear(model) for names in _names(path, operator))
    return known_transformer(names[0] for names in named) is None


def reader_of_whole(operator: Operator) -> TreeNode:
    """Return the choices of what reads the whole output of a phantom layer.

    The output is gathered once: its reader does not split it again, and saves it as it is.
    """
    dims = {} if operator.weight else {operator.outputs[0].dims[-1]: ()}
    return TreeNode(compute=dims, memory=MemoryChoice(gathered=GatheredStore.KEEP))


def _readers(options: StrategyOptions, model: ModelGraph) -> dict[str, TreeNode]:
    """Return the choices of what reads the outputs of phantom layers in their blocks."""
    paths = set()
    for instance in model.instances:
        whole: set[str] = set()
        for operator in model.blocks[instance.block].operators:
            path = f"{instance.path}.{operator.path}"
            if _is_linear(operator) and _is_named(path, operator, options):
                whole |= {output.tensor for output in operator.outputs}
            elif whole.intersection(each.tensor for each in operator.inputs):
                paths.add(path)
    found = operator_patterns(model, lambda _: True, lambda path, _: path in paths)
    return {pattern: reader_of_whole(operator) for pattern, operator in found}


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
    """Raise an error for phantom layers on one rank, and for patterns that match nothing.

    Raises:
        StrategyError: With what is expected instead.
    """
    if not options.phantoms.enabled:
        return
    misfits = {}
    if options.tp == 1:
        misfits["strategy.tp"] = (
            "found 1 with phantom layers, which then are the linear layers in whose place they "
            "stand; set tp above 1, or use ddp"
        )
    linear = _linear(model)
    for pattern in options.phantoms.layers or ():
        if not any(_matches(path, operator, pattern) for path, operator in linear):
            known = dict.fromkeys(_known_as(path, operator, model) for path, operator in linear)
            misfits[f"strategy.phantom_layers.{pattern}"] = (
                f"matches no linear layer of {model.name}; it has {', '.join(known) or 'none'}"
            )
    misfits |= _misfits_of_joined(linear, options)
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


def _misfits_of_joined(
    linear: Sequence[tuple[str, Operator]], options: StrategyOptions
) -> dict[str, str]:
    """Return the joined projections of which only some are requested as phantom layers."""
    misfits = {}
    for path, operator in linear:
        if len(joined_parts(operator)) == 1:
            continue
        named = _named_parts(path, operator, options.phantoms.layers or ("*",))
        if any(named) and not all(named):
            misfits[f"strategy.phantom_layers.{path}"] = (
                "is one product, of which some projections are named; name all of them or none"
            )
    return misfits


def _may_be_chosen(operator: Operator, options: StrategyOptions, model: ModelGraph) -> bool:
    if not _is_linear(operator) or options.phantoms.layers is not None:
        return _is_linear(operator)
    if model.own_family:
        return operator.path in _OWN
    return operator.role in _ROLES and all(map(is_plain_linear, joined_parts(operator)))


def _is_named(path: str, operator: Operator, options: StrategyOptions) -> bool:
    patterns = options.phantoms.layers
    return patterns is None or all(_named_parts(path, operator, patterns))


def _named_parts(path: str, operator: Operator, patterns: Sequence[str]) -> list[bool]:
    """Return whether patterns name each of the projections joined in a matmul."""
    parts = _names(path, operator)
    return [any(_is_one_of(names, pattern) for pattern in patterns) for names in parts]


def _matches(path: str, operator: Operator, pattern: str) -> bool:
    """Return whether a pattern names an operator, or one of its joined projections."""
    return any(_is_one_of(names, pattern) for names in _names(path, operator))


def _is_one_of(names: Sequence[str], pattern: str) -> bool:
    return any(names_layer(pattern, name) for name in names)


def _names(path: str, operator: Operator) -> list[tuple[str, ...]]:
    """Return the names of an operator in the model; of a joined product, of each projection."""
    own = path.removesuffix(_ALONE)
    block = path.removesuffix(operator.path)
    parts = joined_parts(operator)
    return [
        (own,) if len(parts) == 1 else (f"{block}{part.path}".removesuffix(_ALONE), own)
        for part in parts
    ]


def _known_as(path: str, operator: Operator, model: ModelGraph) -> str:
    if model.own_family:
        return operator.path
    *block, name = path.removesuffix(_ALONE).split(".")
    return ".".join((*("*" if part.isdigit() else part for part in block), name))


def _linear(model: ModelGraph) -> list[tuple[str, Operator]]:
    """Return the linear layers of a model with their paths."""
    return [
        (f"{instance.path}.{operator.path}", operator)
        for instance in model.instances
        for operator in model.blocks[instance.block].operators
        if _is_linear(operator)
    ]


def _is_linear(operator: Operator) -> bool:
    return operator.kind is OperatorKind.MATMUL and operator.weight is not None

"""Tensor parallelism as in Megatron-LM: column-parallel, then row-parallel matmuls.

Shoeybi et al., "Megatron-LM", 2019: the first product of each pair is split by output features,
the second by input features, so one all-reduce per pair and direction is left. Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", 2022: with sequence
parallelism the operators in between are split by sequence over the same ranks.

Operators of our own families are known by name; of other models, those are split that say what
part they play (`Operator.role`). Layers of a plain stack are alike, so the strategy says it of
them: each is split by output features, and its input gathered and kept whole (in backward the
input's gradient is reduce-scattered), or they are pairs as above, which takes half as many
collectives of the same volume.
"""

from __future__ import annotations

from wattree.graph import ModelGraph, Operator, OperatorKind, TensorRole
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import (
    column_dim,
    dims_by_pattern,
    has_stack,
    is_positionwise,
    layer_patterns,
    operator_patterns,
    row_dim,
)
from wattree.strategy.tree import GatheredStore, MemoryChoice, StrategyTree, TreeNode

_COLUMN = (
    "attention.qkv",
    "attention.q_up",
    "attention.kv_up",
    "mlp.up",
    "moe.shared.up",
    "mamba.in_proj",
)
_COLUMN_CROSS = ("cross_attention.q", "cross_attention.kv")
_ROW = ("attention.out", "cross_attention.out", "mlp.down", "moe.shared.down", "mamba.out_proj")
#: Operators on whole hidden states, which sequence parallelism spreads by position.
_POSITIONWISE = (
    "*norm*",
    "*.dropout",
    "*.residual",
    "attention.dropout",
    "attention.residual",
    "cross_attention.dropout",
    "cross_attention.residual",
    "mlp.dropout",
    "mlp.residual",
    "moe.residual",
    "moe.dropout",
    "moe.shared_dropout",
    "moe.shared.scale",
    "moe.sum",
    "mamba.dropout",
    "mamba.residual",
)


def tensor_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return column/row splits of every layer, and the vocabulary split of both tables."""
    if not model.own_family:
        alone = _by_roles(model)
        return alone.merged(_in_pairs(model)) if options.parallelism.tensor_pairs else alone
    nodes = {}
    for layer in layer_patterns(model):
        for path in (*_COLUMN, *_COLUMN_CROSS):
            nodes[f"{layer}.{path}"] = TreeNode(compute={"out": ("tp",)})
        for path in _ROW:
            nodes[f"{layer}.{path}"] = TreeNode(compute={"in": ("tp",)})
    tables = [f"{stack}embedding" for stack in ("", "encoder.", "decoder.")]
    for block in (*tables, "prediction.*.start"):
        nodes[f"{block}.embedding.tokens"] = TreeNode(compute={"vocab": ("tp",)})
    for head in ("head", "prediction.*.head"):
        nodes[f"{head}.logits"] = TreeNode(compute={"vocab": ("tp",)})
    return StrategyTree(nodes=nodes)


def sequence_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the splits by sequence of norms, dropout and residuals."""
    del options
    split = TreeNode(compute={"seq": ("cp", "tp")})
    if not model.own_family:
        return StrategyTree(
            nodes={path: split for path, _ in operator_patterns(model, is_positionwise)}
        )
    nodes = {f"{layer}.{path}": split for layer in layer_patterns(model) for path in _POSITIONWISE}
    for norm in ("encoder.final.final_norm", "head.final_norm", "prediction.*.head.final_norm"):
        nodes[norm] = split
    for part in ("token_norm", "state_norm", "joined", "projection"):
        nodes[f"prediction.*.start.{part}"] = split
    for stack in ("", "encoder.", "decoder."):
        for name in ("dropout", "norm", "sum"):
            nodes[f"{stack}embedding.embedding.{name}"] = split
    return StrategyTree(nodes=nodes)


def _by_roles(model: ModelGraph) -> StrategyTree:
    nodes = {
        path: TreeNode(compute={dim: ("tp",)})
        for path, dim in dims_by_pattern(model, _split_dim).items()
    }
    if not has_stack(model):
        return StrategyTree(nodes=nodes)
    kept = TreeNode(memory=MemoryChoice(gathered=GatheredStore.KEEP))
    # A loss that needs all classes keeps them, too.
    stack = operator_patterns(
        model,
        lambda o: (
            (o.role is TensorRole.EITHER and bool(o.parameters))
            or o.kind is OperatorKind.CROSS_ENTROPY
        ),
    )
    both = StrategyTree(nodes={path: kept for path, _ in stack})
    return StrategyTree(nodes=nodes).merged(both)


def _in_pairs(model: ModelGraph) -> StrategyTree:
    """Return the splits of a stack in which column- and row-parallel layers alternate.

    The sum is whole on every rank, and so is the activation of it.
    """
    nodes, rows = {}, False
    for instance in model.instances:
        stack = [o for o in model.blocks[instance.block].operators if o.role is TensorRole.EITHER]
        for operator in stack:
            path = f"{instance.path}.{operator.path}"
            column, row = _split_dim(operator), row_dim(operator)
            if row is None and not rows:  # an activation of a sum
                nodes[path] = TreeNode(compute={column: ()} if column else {})
            elif row is not None and rows:
                nodes[path] = TreeNode(compute={row: ("tp",), **({column: ()} if column else {})})
            rows = rows if row is None else not rows
    return StrategyTree(nodes=nodes)


def _split_dim(operator: Operator) -> str | None:
    """Return the dim that tensor parallelism splits; None for operators without such a role."""
    if operator.role is TensorRole.EITHER and not operator.parameters:
        return operator.outputs[0].dims[-1]  # an activation, of what a layer has split
    if operator.role in {TensorRole.COLUMN, TensorRole.EITHER}:
        return column_dim(operator)
    if operator.role is TensorRole.ROW:
        return row_dim(operator)
    if operator.role is TensorRole.VOCABULARY:
        is_table = operator.kind is OperatorKind.EMBEDDING
        return row_dim(operator) if is_table else column_dim(operator)
    return None

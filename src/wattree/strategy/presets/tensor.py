"""Tensor parallelism as in Megatron-LM: column-parallel then row-parallel products.

Shoeybi et al., "Megatron-LM", 2019: the first product of each pair is split by output features,
the second by input features, so one all-reduce per pair and direction is left. Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", 2022: with sequence
parallelism the operators in between are split by sequence over the same ranks.
"""

from __future__ import annotations

from wattree.strategy.options import StrategyOptions
from wattree.strategy.tree import StrategyTree, TreeNode

__all__ = ["LAYERS", "sequence_parallel", "tensor_parallel"]

#: Paths of layers: of a plain stack, and of an encoder and a decoder.
LAYERS = ("layers.*", "encoder.layers.*", "decoder.layers.*")
_COLUMN = ("attention.qkv", "attention.q_up", "attention.kv_up", "mlp.up", "moe.shared.up")
_COLUMN_CROSS = ("cross_attention.q", "cross_attention.kv")
_ROW = ("attention.out", "cross_attention.out", "mlp.down", "moe.shared.down")
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
)


def tensor_parallel(options: StrategyOptions) -> StrategyTree:
    """Return column/row splits of every layer, and the vocabulary split of both tables."""
    del options
    nodes = {}
    for layer in LAYERS:
        for path in (*_COLUMN, *_COLUMN_CROSS):
            nodes[f"{layer}.{path}"] = TreeNode(compute={"out": ("tp",)})
        for path in _ROW:
            nodes[f"{layer}.{path}"] = TreeNode(compute={"in": ("tp",)})
    for stack in ("", "encoder.", "decoder."):
        nodes[f"{stack}embedding.embedding.tokens"] = TreeNode(compute={"vocab": ("tp",)})
    nodes["head.logits"] = TreeNode(compute={"vocab": ("tp",)})
    return StrategyTree(nodes=nodes)


def sequence_parallel(options: StrategyOptions) -> StrategyTree:
    """Return the splits by sequence of norms, dropout and residuals."""
    del options
    split = TreeNode(compute={"seq": ("cp", "tp")})
    nodes = {f"{layer}.{path}": split for layer in LAYERS for path in _POSITIONWISE}
    for norm in ("encoder.final.final_norm", "head.final_norm"):
        nodes[norm] = split
    for stack in ("", "encoder.", "decoder."):
        for name in ("dropout", "norm", "sum"):
            nodes[f"{stack}embedding.embedding.{name}"] = split
    return StrategyTree(nodes=nodes)

"""Recomputation of activations in backward.

`full`: every layer from its input (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
2016). `selective`: the attention core only (Korthikanti et al., 2022). `selective_operator`: all
but attention and every other product, in the order of torchtitan's modules. `selective_matmul`: all
but the products (JAX's `dots_with_no_batch_dims_saveable`, MaxText's `minimal`).
`selective_attention_matmul`: all but the products of attention (MaxText's `save_dot_except_mlp`).
`selective_qkv`: all but the query, key and value projections (MaxText's `save_qkv_proj`).
`block_N`: every N-th layer in full. `modules_A+B`: of every layer, those modules (Megatron-Core's
`recompute_modules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wattree.graph import ModelGraph, OperatorKind
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import (
    layer_paths,
    layer_patterns,
    operator_patterns,
)
from wattree.strategy.specs import MODULES, RECOMPUTED_MODULES
from wattree.strategy.tree import ActivationStore, MemoryChoice, StrategyTree, TreeNode

_AGAIN = TreeNode(memory=MemoryChoice(activations=ActivationStore.RECOMPUTE))
_KEEP = TreeNode(memory=MemoryChoice(activations=ActivationStore.KEEP))
_HALF = TreeNode(memory=MemoryChoice(recompute_share=0.5))
_MATMULS = (
    "attention.qkv",
    "attention.out",
    "mlp.up",
    "mlp.down",
    "moe.experts.up",
    "moe.experts.down",
    "mamba.in_proj",
    "mamba.out_proj",
)
#: Whose outputs no backward needs: only what the next operator saved.
_LAST = ("mlp.down", "moe.experts.down", "mamba.out_proj")
#: Recomputation of whole layers but for these operators.
_OF_LAYERS: Final[Mapping[str, Mapping[str, TreeNode]]] = {
    "selective_matmul": dict.fromkeys(_MATMULS, _KEEP),
    # Kept: the first of two up-projections and the last product; queries and values (`_keys`).
    "selective_operator": {
        "attention.core": _KEEP,
        **dict.fromkeys(("mlp.up", "moe.experts.up", "mamba.in_proj"), _HALF),
        **dict.fromkeys(_LAST, _KEEP),
    },
    "selective_attention_matmul": dict.fromkeys((*_MATMULS[:2], *_LAST), _KEEP),
    "selective_qkv": dict.fromkeys((_MATMULS[0], *_LAST), _KEEP),
}


def recomputation(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the recomputed layers or operators, including those that the model itself recomputes.

    Args:
        options: `recompute` says how.
        model: For its layers.
    """
    kind = options.memory.recompute
    own = dict.fromkeys(model.checkpointed, _AGAIN)
    if kind == "none":
        return StrategyTree(nodes=own)
    layers = layer_patterns(model)
    nodes: dict[str, TreeNode] = {}
    if kind == "full":
        nodes = dict.fromkeys(layers, _AGAIN)
    elif kind == "selective":
        nodes = dict.fromkeys(_attentions(model), _AGAIN)
    elif kind in _OF_LAYERS:
        nodes = dict.fromkeys(layers, _AGAIN)
        kept = _OF_LAYERS[kind].items()
        nodes |= {f"{layer}.{path}": node for layer in layers for path, node in kept}
        if kind == "selective_operator":
            nodes |= {f"{layer}.attention.qkv": _keys(model) for layer in layers}
    elif kind.startswith(MODULES):
        paths = [
            path
            for name in kind.removeprefix(MODULES).split("+")
            for path in RECOMPUTED_MODULES[name]
        ]
        nodes = {f"{layer}.{path}": _AGAIN for layer in layers for path in paths}
        # What adds the result to the stream is no part of a module.
        nodes |= {f"{layer}.{path}.residual": _KEEP for layer in layers for path in ("mlp", "moe")}
    elif kind.startswith("block_"):
        every = int(kind.removeprefix("block_"))
        nodes = dict.fromkeys(layer_paths(model)[::every], _AGAIN)
    return StrategyTree(nodes=own | nodes)


def _keys(model: ModelGraph) -> TreeNode:
    """Return recomputation of the part of a projection that makes keys."""
    shares = (
        operator.kv_heads / (operator.query_heads + 2.0 * operator.kv_heads)
        for block in model.blocks.values()
        for operator in block.operators
        if operator.kind is OperatorKind.ATTENTION
    )
    return TreeNode(memory=MemoryChoice(recompute_share=next(shares, 1.0)))


def _attentions(model: ModelGraph) -> tuple[str, ...]:
    if model.own_family:
        return tuple(f"{layer}.attention.core" for layer in layer_patterns(model))
    found = operator_patterns(model, lambda o: o.kind is OperatorKind.ATTENTION)
    return tuple(pattern for pattern, _ in found)

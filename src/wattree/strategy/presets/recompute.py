"""Recomputation of activations in backward.

`full`: every layer from its input (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
2016). `selective`: the attention core only (Korthikanti et al., 2022). `selective_operator`: all
but attention and half of each product, as torchtitan's per-operator policy keeps every other
product. `selective_qkv`: all but the query, key and value projections (MaxText's
`save_qkv_proj`). `block_N`: every N-th layer in full.
"""

from __future__ import annotations

from wattree.strategy.options import StrategyOptions
from wattree.strategy.presets.tensor import LAYERS
from wattree.strategy.tree import ActivationStore, MemoryChoice, StrategyTree, TreeNode

__all__ = ["recomputation"]

_AGAIN = TreeNode(memory=MemoryChoice(activations=ActivationStore.RECOMPUTE))
_KEEP = TreeNode(memory=MemoryChoice(activations=ActivationStore.KEEP))
_HALF = TreeNode(memory=MemoryChoice(recompute_share=0.5))
_PRODUCTS = (
    "attention.qkv",
    "attention.out",
    "mlp.up",
    "mlp.down",
    "moe.experts.up",
    "moe.experts.down",
)


def recomputation(options: StrategyOptions, layers: int) -> StrategyTree:
    """Return which layers or operators are recomputed.

    Args:
        options: `recompute` says how.
        layers: Layers of the model, for `block_N`.
    """
    kind = options.recompute
    nodes: dict[str, TreeNode] = {}
    if kind == "full":
        nodes = dict.fromkeys(LAYERS, _AGAIN)
    elif kind == "selective":
        nodes = {f"{layer}.attention.core": _AGAIN for layer in LAYERS}
    elif kind == "selective_operator":
        nodes = dict.fromkeys(LAYERS, _AGAIN)
        for layer in LAYERS:
            nodes[f"{layer}.attention.core"] = _KEEP
            nodes |= {f"{layer}.{path}": _HALF for path in _PRODUCTS}
    elif kind == "selective_qkv":
        nodes = dict.fromkeys(LAYERS, _AGAIN)
        for layer in LAYERS:
            # Backward needs neither product's output: only what the next operator saved.
            for path in ("attention.qkv", "mlp.down", "moe.experts.down"):
                nodes[f"{layer}.{path}"] = _KEEP
    elif kind.startswith("block_"):
        every = int(kind.removeprefix("block_"))
        nodes = {f"layers.{index}": _AGAIN for index in range(0, layers, every)}
    return StrategyTree(nodes=nodes)

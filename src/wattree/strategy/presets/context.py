"""Context parallelism: positions sharded over ranks, and the exchange that attention needs.

- `gather`: keys and values are gathered before attention (Llama Team, "The Llama 3 Herd of
  Models", 2024, §3.3.2).
- `ring`: they are passed from rank to rank, each block behind attention to the one before (Liu,
  Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023; Megatron-Core's
  `cp_comm_type` `p2p`).
- `ulysses`: positions are exchanged for heads before attention, and back after it (Jacobs et al.,
  "DeepSpeed Ulysses", 2023). Whole key/value heads go to a rank, so their number over `tp` is a
  multiple of `cp`; there is no copying of heads for more ranks, as in Transformer Engine.
- `overlapped`: a gather that hides behind attention as far as attention lasts, whatever the
  software really does: the limit of many small blocks.
"""

from __future__ import annotations

from wattree.graph import ModelGraph, OperatorKind
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import layer_patterns, operator_patterns
from wattree.strategy.presets.spatial import spatial_parallel
from wattree.strategy.specs import SPATIAL, ULYSSES
from wattree.strategy.tree import ContextExchange, PositionOrder, StrategyTree, TreeNode

_CORES = ("attention.core", "cross_attention.core")
#: Operators of Mamba-2 that go through all positions: heads are exchanged for them, whatever
#: attention does (Megatron-Core's `MambaContextParallel`).
_SCANS = ("mamba.conv", "mamba.scan", "mamba.product")
_BY_HEADS = TreeNode(compute={"seq": (), "heads": ("tp", "cp")})


def context_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the root's split of positions, and the exchange method of attention."""
    if options.parallelism.context == SPATIAL:
        return spatial_parallel(options, model)
    nodes = {"": TreeNode(compute={"seq": ("cp",)})}
    core = _core(options)
    if core != TreeNode():
        nodes |= dict.fromkeys(_attentions(model), core)
    if model.own_family:
        nodes |= {
            f"{layer}.{path}": _BY_HEADS for layer in layer_patterns(model) for path in _SCANS
        }
    return StrategyTree(nodes=nodes)


def _attentions(model: ModelGraph) -> tuple[str, ...]:
    """Return patterns of the operators that read keys and values of all positions."""
    if model.own_family:
        return tuple(f"{layer}.{path}" for layer in layer_patterns(model) for path in _CORES)
    found = operator_patterns(model, lambda o: o.kind is OperatorKind.ATTENTION)
    return tuple(pattern for pattern, _ in found)


def _core(options: StrategyOptions) -> TreeNode:
    if options.parallelism.context == ULYSSES:
        return _BY_HEADS
    exchange, order = (
        ContextExchange(options.parallelism.context),
        PositionOrder(options.parallelism.context_order),
    )
    return TreeNode(
        context=None if exchange is ContextExchange.OVERLAPPED else exchange,
        context_order=None if order is PositionOrder.ZIGZAG else order,
    )

"""Expert parallelism: experts spread over replicas, tokens exchanged on the way in and out.

Lepikhin et al., "GShard", 2020. With `expert_over_tensor` the experts of a layer are spread over
the tensor-parallel ranks too (Megatron-Core's expert tensor parallelism of 1), each routing its
own share of the positions; otherwise each expert is split like a dense layer.
"""

from __future__ import annotations

from wattree.graph import ModelGraph, OperatorKind
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import layer_patterns, operator_patterns
from wattree.strategy.tree import StrategyTree, TreeNode

_ROUTING = (
    "moe.router",
    "moe.topk",
    "moe.latent_down",
    "moe.dispatch",
    "moe.combine",
    "moe.latent_up",
)


def expert_parallel(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the splits of routers, exchanges and experts."""
    if not model.own_family:
        return _by_dims(model)
    over_tensor = options.parallelism.expert_over_tensor
    experts = ("ep", "tp") if over_tensor else ("ep",)
    inner = TreeNode(compute={"batch": ("dp", "fsdp"), "seq": ("cp",), "expert": experts})
    up = dict(inner.compute) if over_tensor else {**inner.compute, "out": ("tp",)}
    down = dict(inner.compute) if over_tensor else {**inner.compute, "in": ("tp",)}
    nodes = {}
    for layer in layer_patterns(model):
        nodes[f"{layer}.moe.experts"] = inner
        nodes[f"{layer}.moe.experts.up"] = TreeNode(compute=up)
        nodes[f"{layer}.moe.experts.down"] = TreeNode(compute=down)
        if over_tensor and options.tp > 1:
            for path in _ROUTING:
                nodes[f"{layer}.{path}"] = TreeNode(compute={"seq": ("cp", "tp")})
    return StrategyTree(nodes=nodes)


def _by_dims(model: ModelGraph) -> StrategyTree:
    """Return the splits of the per-expert operators of a captured model.

    Tokens change ranks where a tensor without a split by experts meets one with it.
    """
    inner = TreeNode(compute={"batch": ("dp", "fsdp"), "expert": ("ep",)})
    paths = operator_patterns(
        model, lambda each: each.has_dim("expert") and each.kind is not OperatorKind.PERMUTE
    )
    return StrategyTree(nodes={path: inner for path, _ in paths})

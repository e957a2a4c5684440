"""Data parallelism: replicas process different samples; ZeRO and FSDP shard stored state.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020: stage 1 shards optimizer state, stage 2 gradients, stage 3 parameters.
"""

from __future__ import annotations

from wattree.strategy.options import StrategyOptions
from wattree.strategy.tree import MemoryChoice, StrategyTree, TreeNode

#: Axes over which whole samples are spread, outermost first.
REPLICAS = ("dp", "fsdp", "ep")


def data_parallel(options: StrategyOptions) -> StrategyTree:
    """Return the root's choices: samples split over replicas, states stored as configured."""
    replicas = (*REPLICAS, "cp")  # context-parallel ranks hold the same parameters too
    stored = {
        "none": MemoryChoice(),
        "zero1": MemoryChoice(optimizer=replicas),
        "zero2": MemoryChoice(optimizer=replicas, gradients=replicas),
        "zero3": MemoryChoice(optimizer=replicas, gradients=replicas, parameters=replicas),
        "hybrid": MemoryChoice(optimizer=("fsdp",), gradients=("fsdp",), parameters=("fsdp",)),
    }[options.memory.sharding]
    root = TreeNode(
        compute={"batch": REPLICAS},
        memory=stored,
        sync_batch_norm=True if options.parallelism.sync_batch_norm else None,
    )
    return StrategyTree(nodes={"": root})

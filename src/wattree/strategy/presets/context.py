"""Context parallelism: positions spread over ranks; attention gathers keys and values.

Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", 2023; Llama 3 (2024, §3.3.2)
gathers keys and values instead of passing them round, which moves the same bytes.
"""

from __future__ import annotations

from wattree.strategy.options import StrategyOptions
from wattree.strategy.tree import StrategyTree, TreeNode

__all__ = ["context_parallel"]


def context_parallel(options: StrategyOptions) -> StrategyTree:
    """Return the root's split of positions."""
    del options
    return StrategyTree(nodes={"": TreeNode(compute={"seq": ("cp",)})})

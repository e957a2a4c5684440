"""Jobs whose strategy tree is written by hand."""

from __future__ import annotations

from tests.compiler.jobs import Job, small_cluster
from wattree.graph import ModelGraph
from wattree.strategy import (
    Mesh,
    Schedule,
    Strategy,
    StrategyTree,
    TreeNode,
)

__all__ = ["BATCH", "WIDTH", "by_hand"]

BATCH, WIDTH = 16, 2.0


def by_hand(model: ModelGraph, tree: dict[str, TreeNode], **mesh: int) -> Job:
    """Return the job of a tree written by hand, one micro-batch a step."""
    strategy = Strategy(mesh=Mesh.of(mesh), schedule=Schedule(), tree=StrategyTree(nodes=tree))
    cluster = small_cluster(strategy.mesh.ranks)
    return Job(model=model, strategy=strategy, cluster=cluster, global_batch=BATCH)

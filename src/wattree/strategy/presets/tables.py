"""Tables of recommendation models, spread over the replicas of the dense parts.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
2019: tables are too large for each replica to have all, and their gradients for all to be reduced.
Each rank looks up for the samples of all (`batch` is whole), and what was looked up is exchanged
for its own samples: vectors of whole tables or pieces of vectors in an all-to-all, partial sums of
rows in a reduce-scatter (Mudigere et al., "Software-Hardware Co-design for Fast and Scalable
Training of Deep Learning Recommendation Models", ISCA 2022).
"""

from __future__ import annotations

from wattree.graph import ModelGraph
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import EmbeddingTable, tables_of
from wattree.strategy.presets.data import REPLICAS
from wattree.strategy.tree import OWNER, StrategyTree, TreeNode


def sharded_tables(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the splits of every table."""
    if options.parallelism.tables == "data-parallel":
        return StrategyTree(nodes={})
    tables = tables_of(model)
    even = sum(table.elements for table in tables) / options.replicas
    return StrategyTree(
        nodes={
            t.path: TreeNode(compute=_compute(t, options.parallelism.tables, even)) for t in tables
        }
    )


def _compute(table: EmbeddingTable, way: str, even: float) -> dict[str, tuple[str, ...]]:
    """Return the split of a table; `even` is an even share of all tables per rank."""
    if way == "auto":
        way = "row-wise" if table.elements > even else "table-wise"
    dims = {"table-wise": OWNER, "row-wise": table.row_dim, "column-wise": table.column_dim}
    dim = dims[way]
    return {"batch": (), dim: REPLICAS} if dim is not None else {}

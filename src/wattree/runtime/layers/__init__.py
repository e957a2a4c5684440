"""Linear layers sharded over the ranks of a group."""

from wattree.runtime.layers.low_rank import LowRankLinear
from wattree.runtime.layers.megatron import ColumnParallelLinear, RowParallelLinear
from wattree.runtime.layers.phantom import PhantomLinear
from wattree.runtime.layers.sharded import ShardedLinear
from wattree.runtime.layers.tensor import GatherRowsLinear

__all__ = [
    "ColumnParallelLinear",
    "GatherRowsLinear",
    "LowRankLinear",
    "PhantomLinear",
    "RowParallelLinear",
    "ShardedLinear",
]

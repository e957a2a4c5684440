"""Linear layers whose width is cut over the ranks of a group."""

from wattree.runtime.layers.phantom import PhantomLinear
from wattree.runtime.layers.sharded import ShardedLinear
from wattree.runtime.layers.tensor import GatherRowsLinear

__all__ = ["GatherRowsLinear", "PhantomLinear", "ShardedLinear"]

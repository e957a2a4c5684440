"""Training for real, with the strategy that was planned.

Nothing here loads torch before a layer or a group is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wattree.errors import MissingExtraError as _MissingExtraError
from wattree.runtime.shards import peers_of, shard_offsets, shard_widths

if TYPE_CHECKING:  # checkers see them; at run time `__getattr__` fetches them
    from wattree.runtime.group import Group
    from wattree.runtime.layers import (
        ColumnParallelLinear,
        GatherRowsLinear,
        LowRankLinear,
        PhantomLinear,
        RowParallelLinear,
    )
    from wattree.runtime.transfers import Traffic

__all__ = [
    "ColumnParallelLinear",
    "GatherRowsLinear",
    "Group",
    "LowRankLinear",
    "PhantomLinear",
    "RowParallelLinear",
    "Traffic",
    "peers_of",
    "shard_offsets",
    "shard_widths",
]

_LAZY = {
    "ColumnParallelLinear": "wattree.runtime.layers",
    "GatherRowsLinear": "wattree.runtime.layers",
    "Group": "wattree.runtime.group",
    "LowRankLinear": "wattree.runtime.layers",
    "PhantomLinear": "wattree.runtime.layers",
    "RowParallelLinear": "wattree.runtime.layers",
    "Traffic": "wattree.runtime.transfers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise _MissingExtraError(
            needed_for=f"wattree.runtime.{name}", package="torch", extra="torch"
        ) from error

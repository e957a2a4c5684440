"""Training for real, with the strategy that was planned.

Nothing here loads torch before a layer or a group is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wattree.errors import MissingExtraError as _MissingExtraError
from wattree.runtime.shards import peers_of, shard_offsets, shard_widths

if TYPE_CHECKING:  # checkers see them; at run time `__getattr__` fetches them
    from wattree.runtime.group import Group, Traffic
    from wattree.runtime.layers import (
        GatherRowsLinear,
        PhantomLinear,
    )

__all__ = [
    "GatherRowsLinear",
    "Group",
    "PhantomLinear",
    "Traffic",
    "peers_of",
    "shard_offsets",
    "shard_widths",
]

_LAZY = {
    "GatherRowsLinear": "wattree.runtime.layers",
    "Group": "wattree.runtime.group",
    "PhantomLinear": "wattree.runtime.layers",
    "Traffic": "wattree.runtime.group",
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

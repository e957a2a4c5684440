"""Executes the planned strategy: real training.

Nothing here loads torch before a layer or a group is asked for.
"""

from typing import TYPE_CHECKING, Any

from wattree.errors import MissingExtraError as _MissingExtraError
from wattree.lazy import fetching as _fetching
from wattree.runtime.shards import peers_of, shard_offsets, shard_widths

if TYPE_CHECKING:  # checkers see them; at run time `__getattr__` fetches them
    from wattree.runtime.convert import (
        Adjustment,
        ConversionPlan,
        ConversionRule,
        CutKind,
        Shards,
        Side,
        conversion_of,
        export_dense,
        gather_shards,
        load_shards,
        merge,
        phantomize,
        put_shard,
        read_shards,
        split_model,
        write_shards,
    )
    from wattree.runtime.group import Group
    from wattree.runtime.layers import (
        ColumnParallelLinear,
        GatherRowsLinear,
        LowRankLinear,
        PhantomLinear,
        RowParallelLinear,
    )
    from wattree.runtime.transfers import SentTraffic

__all__ = [
    "Adjustment",
    "ColumnParallelLinear",
    "ConversionPlan",
    "ConversionRule",
    "CutKind",
    "GatherRowsLinear",
    "Group",
    "LowRankLinear",
    "PhantomLinear",
    "RowParallelLinear",
    "SentTraffic",
    "Shards",
    "Side",
    "conversion_of",
    "export_dense",
    "gather_shards",
    "load_shards",
    "merge",
    "peers_of",
    "phantomize",
    "put_shard",
    "read_shards",
    "shard_offsets",
    "shard_widths",
    "split_model",
    "write_shards",
]

_HOMES = {
    "Adjustment": "wattree.runtime.convert",
    "ColumnParallelLinear": "wattree.runtime.layers",
    "CutKind": "wattree.runtime.convert",
    "GatherRowsLinear": "wattree.runtime.layers",
    "Group": "wattree.runtime.group",
    "LowRankLinear": "wattree.runtime.layers",
    "PhantomLinear": "wattree.runtime.layers",
    "ConversionPlan": "wattree.runtime.convert",
    "RowParallelLinear": "wattree.runtime.layers",
    "ConversionRule": "wattree.runtime.convert",
    "Shards": "wattree.runtime.convert",
    "Side": "wattree.runtime.convert",
    "SentTraffic": "wattree.runtime.transfers",
    "conversion_of": "wattree.runtime.convert",
    "export_dense": "wattree.runtime.convert",
    "gather_shards": "wattree.runtime.convert",
    "load_shards": "wattree.runtime.convert",
    "merge": "wattree.runtime.convert",
    "phantomize": "wattree.runtime.convert",
    "put_shard": "wattree.runtime.convert",
    "read_shards": "wattree.runtime.convert",
    "split_model": "wattree.runtime.convert",
    "write_shards": "wattree.runtime.convert",
}

_fetch = _fetching(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _fetch(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise _MissingExtraError(
            needed_for=f"wattree.runtime.{name}", package="torch", extra="torch"
        ) from error

"""Executes the planned strategy: real training.

Nothing here loads torch before a layer or a group is asked for.
"""

from typing import TYPE_CHECKING, Any

from wattree.errors import MissingExtraError as _MissingExtraError
from wattree.lazy import fetching as _fetching
from wattree.runtime.shards import peers_of

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.runtime.convert import (
        ConversionPlan,
        ConversionRule,
        conversion_of,
        export_dense,
        phantomize,
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
    "ColumnParallelLinear",
    "ConversionPlan",
    "ConversionRule",
    "GatherRowsLinear",
    "Group",
    "LowRankLinear",
    "PhantomLinear",
    "RowParallelLinear",
    "SentTraffic",
    "conversion_of",
    "export_dense",
    "peers_of",
    "phantomize",
]

_fetch = _fetching(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _fetch(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise _MissingExtraError(
            needed_for=f"wattree.runtime.{name}", package="torch", extra="torch"
        ) from error

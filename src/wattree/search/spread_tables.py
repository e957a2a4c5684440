"""Tables of recommendation models spread over replicas: a few strategies, simulated as they are.

The closed form knows no ranks that differ, and owners of tables do, so spaces list none of them.
The dense parts are copied (data parallelism), as DLRM and its successors train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from wattree.errors import StrategyError
from wattree.predict import Setting, predicted
from wattree.search.limits import Limits
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import misses, ranked_strategy
from wattree.search.screen import Constraints
from wattree.strategy import StrategyOptions
from wattree.strategy.parts import tables_of

#: What plain strategies say of tables: each replica has all.
NOT_SPREAD: Final = StrategyOptions().parallelism.tables
#: How tables are spread, and into how many micro-batches samples of a replica are cut to fit.
_WAYS: Final = ("auto", "table-wise", "row-wise", "column-wise")
_PARTS: Final = (1, 2, 4, 8)


def with_spread_tables(
    setting: Setting, ranks: Sequence[int], constraints: Constraints, limits: Limits
) -> Iterator[RankedStrategy]:
    """Yield strategies with spread tables that meet every constraint; none without tables.

    Args:
        ranks: Numbers of ranks to try.
        limits: Of the search; one that names axes or shardings names all there are.
    """
    anywhere = not limits.axes and not limits.phantom and "none" in limits.shardings
    anywhere = anywhere and 1 in limits.processes
    if not anywhere or not tables_of(setting.model) or setting.job.cluster.is_mixed:
        return
    for count in ranks:
        for way in _WAYS if count > 1 else ():
            if (found := _fitting(setting, count, way, constraints)) is not None:
                yield found


def _fitting(
    setting: Setting, count: int, way: str, constraints: Constraints
) -> RankedStrategy | None:
    """Return the strategy with the fewest micro-batches that fits, if there is one."""
    share, rest = divmod(setting.job.data.global_batch, count)
    for parts in _PARTS:
        if rest or share % parts:
            continue
        options = StrategyOptions(dp=count, tables=way, micro_batch=share // parts)
        try:
            result = predicted(setting, options).result
        except StrategyError:
            return None  # fewer rows or columns than ranks
        if misses(result, constraints) is None:
            return ranked_strategy(options, result)
    return None

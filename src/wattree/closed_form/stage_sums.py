"""Tables of blocks and of their parameters, summed over the blocks of each kind of stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.replica_traffic import PORTS
from wattree.closed_form.stage_kinds import StageKinds, slowest

#: Tables of parameters that are zero unless something is sharded, reduced or offloaded.
_OFTEN_NOTHING = (
    "gather",
    "every",
    "once",
    "update",
    "copied_out",
    "copied_in",
    "again",
    "copied_again",
    "copied_once",
    "gathered",
    "staged",
    "passing",
    "often_j",
    "tier2_static",
    "tier2_saved",
    "tier2_updated",
    "update_flop",
    "wider_state",
    "moved",
    "block_moved",
    *PORTS,
    *(f"{kind}_{port}" for kind in ("moved", "gather") for port in PORTS),
)


class StageSums:
    """Sums of tables by kind of stage.

    Args:
        tables: Costs of blocks, by pool.
        kinds: What the stages of the strategies hold.

    Attributes:
        block, storage: Column of each row's strategy in the tables, `(rows,)` each.
        nothing: Tables of parameters that are zero.
    """

    def __init__(self, tables: Sequence[BlockCostTable], kinds: StageKinds) -> None:
        self.by_pool, self.kinds = tables, kinds
        self.block = tables[0].block_of[kinds.strategy]
        self.storage = tables[0].storage_of[kinds.strategy]
        # Much is nothing under most options.
        self.nothing = frozenset(
            name for name in _OFTEN_NOTHING if not any(getattr(each, name).any() for each in tables)
        )

    def of_blocks(self, name: str) -> Floats:
        """Return a table of blocks summed over those of each kind of stage, `(rows,)`."""
        return self.block_rows(self._slowest(name))

    def of_storage(self, name: str) -> Floats:
        """Return a table of parameters summed over the blocks of each kind of stage."""
        if name in self.nothing:
            return np.zeros(len(self.storage))
        return self.storage_rows(self._slowest(name))

    def block_rows(self, table: Floats) -> Floats:
        """Return figures by kind and column of blocks, `(kinds, distinct)`, for all rows."""
        return np.asarray(table.take(self.kinds.kind * table.shape[1] + self.block))

    def storage_rows(self, table: Floats) -> Floats:
        """Return figures by kind and column of parameters in the same way."""
        return np.asarray(table.take(self.kinds.kind * table.shape[1] + self.storage))

    def over_pools(self, name: str) -> Floats:
        """Return `table` averaged over the ranks of each kind of stage, `(kinds, distinct)`."""
        sums = [self.kinds.counts @ getattr(tables, name) for tables in self.by_pool]
        if len(sums) == 1:
            return np.asarray(sums[0])
        both = zip(self.kinds.shares[:, :, None], sums, strict=True)
        return np.asarray(sum(share * part for share, part in both))

    def _slowest(self, name: str) -> Floats:
        """Return `table` of the slowest pool of each kind of stage, `(kinds, distinct)`."""
        kinds = self.kinds
        return slowest(kinds.counts, [getattr(each, name) for each in self.by_pool], kinds.shares)

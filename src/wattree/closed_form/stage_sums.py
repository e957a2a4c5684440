"""Tables of blocks and of their parameters, summed over the blocks of each kind of stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.replica_traffic import PORTS, bucket_part
from wattree.closed_form.slowdown import OverlapSlowdown
from wattree.closed_form.stage_kinds import StageKinds, slowest

#: Tables of the traffic between replicas.
_TRAFFIC = ("gather", "every", "once", "update")
#: Those whose blocks leave together: tables have the share of a block in a full bucket.
IN_BUCKETS = ("every", "once", "update")
#: Tables of parameters that are zero unless something is sharded, reduced or offloaded.
_OFTEN_NOTHING = (
    *_TRAFFIC,
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
        self._bucketed: dict[str, Floats] = {}
        # Much is nothing under most options.
        self.nothing = frozenset(
            name for name in _OFTEN_NOTHING if not any(getattr(each, name).any() for each in tables)
        )

    def of_blocks(self, name: str) -> Floats:
        """Return a table of blocks summed over those of each kind of stage, `(rows,)`."""
        return self.block_rows(self.by_kind(name))

    def of_storage(self, name: str) -> Floats:
        """Return a table of parameters summed over the blocks of each kind of stage."""
        if name in self.nothing:
            return np.zeros(len(self.storage))
        rows = self.storage_rows(self.by_kind(name))
        return np.asarray(rows * self.bucketed(name)) if name in IN_BUCKETS else rows

    def bucketed(self, name: str) -> Floats | float:
        """Return what buckets take as a share of what their blocks do by themselves, `(rows,)`."""
        if name not in self._bucketed:
            rows, work = (self.storage_rows(self.by_kind(name + part)) for part in ("", "_work"))
            share = work + (rows - work) * self._buckets(name)
            self._bucketed[name] = np.where(rows > 0, share / np.maximum(rows, 1e-30), 1.0)
        return self._bucketed[name]

    def block_rows(self, table: Floats) -> Floats:
        """Return figures by kind and column of blocks, `(kinds, distinct)`, for all rows."""
        return np.asarray(table.take(self.kinds.kind * table.shape[1] + self.block))

    def storage_rows(self, table: Floats) -> Floats:
        """Return figures by kind and column of parameters in the same way."""
        return np.asarray(table.take(self.kinds.kind * table.shape[1] + self.storage))

    def slowdown(self, *names: str) -> OverlapSlowdown:
        """Return how tables of traffic, all if none is named, and computation slow each other."""
        own = [name for name in names or _TRAFFIC if name not in self.nothing]
        whole, work = (
            sum(map(self.of_storage, (name + part for name in own)), 1e-30)
            for part in ("", "_work")
        )
        return OverlapSlowdown.of(self.by_pool[0].rates).at_work(work / whole)

    def _buckets(self, name: str) -> Floats:
        """Return the buckets of each kind of stage as a share of those that its blocks fill.

        Of a stage where they leave at the end of a step, else of each chunk.
        """
        tables, overlap = self.by_pool[0], self.by_pool[0].overlap
        full, in_chunks = tables.bucket_bytes, name == "every" or overlap.gradients
        size = whole = tables.reduced_bytes + tables.reduced_once
        if name == "update":
            full, in_chunks = tables.parameter_bucket_bytes, overlap.parameters
            size = whole = tables.gathered_once
        elif name == "every":
            size = tables.reduced_bytes
        parts = (size > 0) * bucket_part(whole, full)
        if name == "once" and not in_chunks:
            full = np.full_like(full, np.inf)

        @cache
        def buckets(programs: tuple[int, ...]) -> Floats:
            held, found = np.zeros((2, size.shape[1]))
            for number in programs if name == "update" else reversed(programs):
                held = held + size[number]
                leaves = (held >= full) & (held > 0)
                held, found = np.where(leaves, 0.0, held), found + leaves
            return np.asarray(found + (held > 0))

        each = [chunks for contents in self.kinds.helds for chunks in contents.programs]
        chunked = [chunks if in_chunks else (sum(chunks, ()),) for chunks in each]
        found = np.stack([np.sum([buckets(own) for own in chunks], axis=0) for chunks in chunked])
        return self.storage_rows(found / np.maximum(self.kinds.counts @ parts, 1e-30))

    def over_pools(self, name: str) -> Floats:
        """Return `table` averaged over the ranks of each kind of stage, `(kinds, distinct)`."""
        sums = [self.kinds.counts @ getattr(tables, name) for tables in self.by_pool]
        if len(sums) == 1:
            return np.asarray(sums[0])
        both = zip(self.kinds.shares[:, :, None], sums, strict=True)
        return np.asarray(sum(share * part for share, part in both))

    def by_kind(self, name: str) -> Floats:
        """Return `table` of the slowest pool of each kind of stage, `(kinds, distinct)`."""
        kinds = self.kinds
        return slowest(kinds.counts, [getattr(each, name) for each in self.by_pool], kinds.shares)

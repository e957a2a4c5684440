"""Pass 9a: interleaves a forward and a backward, so that one computes while the other exchanges.

Each table falls into stretches of compute between waits for communication. The stretches of both
alternate on the compute stream: while the forward's exchange is under way the backward computes,
and the other way round (DeepSeek-V3 2024, §3.2.1, Figure 4). Communication keeps its order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiler.tasks.table import TaskTable
from wattree.lowering.streams import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two tables in one.

    Attributes:
        table: The tasks of both in the order in which streams take them, with their edges.
        rows: Where the tasks of each lie in it.
    """

    table: TaskTable
    rows: tuple[Integers, Integers]


@dataclass(slots=True)
class PairedTables:
    """Cache of pairs: micro-batches repeat a few of them."""

    _made: dict[tuple[int, int], tuple[TaskTable, TaskTable, Pair]] = field(default_factory=dict)

    def together(self, first: TaskTable, second: TaskTable) -> Pair:
        """Return both tables as one."""
        key = id(first), id(second)
        if key not in self._made:
            # The tables are kept with the pair, so that no other can come by their ids.
            self._made[key] = first, second, _pair(first, second)
        return self._made[key][2]


def _pair(first: TaskTable, second: TaskTable) -> Pair:
    progress = np.concatenate([_progress(first), _progress(second)])
    order = np.argsort(progress, kind="stable")  # the first table leads where both are as far
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    rows = place[: len(first.tasks)], place[len(first.tasks) :]
    table = TaskTable(
        tasks=np.concatenate([first.tasks, second.tasks])[order],
        edges=np.concatenate([rows[0][first.edges], rows[1][second.edges]]),
    )  # each half keeps its own ledger: its slot has another chunk and micro-batch
    return Pair(table=table, rows=rows)


def _progress(table: TaskTable) -> Floats:
    """Return for each task the share of the table's stretches before it."""
    tasks = table.tasks
    compute = tasks["stream"] == Stream.COMPUTE
    starts = np.zeros(len(tasks), dtype=np.int64)
    before, after = table.edges[:, 0], table.edges[:, 1]
    starts[after[~compute[before] & compute[after]]] = 1
    stretch = np.cumsum(starts)
    return np.asarray(stretch / (stretch[-1] + 1.0) if len(stretch) else stretch.astype(float))

"""Pass 11b: how many flows a folded task stands for on each of its links.

Shares by max-min follow from bandwidths alone. A rule that counts flows must know them: of the
ranks that a task stands for on a link, those of one process group are one flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.kernels import FROM_TASK, Loads, Rows

__all__ = ["flow_counts"]

Integers = NDArray[np.int64]


def flow_counts(
    rows: Rows,
    loads: Loads,
    *,
    task: Integers,
    owner: Integers,
    costs: Integers,
    axes: Integers,
    kinds: Sequence[str],
    members: Mapping[tuple[int, str], int],
) -> Integers:
    """Return the flows behind each entry of `rows.flow_links`, at least 1.

    Args:
        rows: Of all instances, as if all classes were of the first level.
        loads: What tasks send.
        task, owner: Of each instance: the task it comes from, the class whose figures it takes.
        costs: Which row of `loads.by_class` holds a task's bytes, `FROM_TASK` if none, `(T,)`.
        axes: Axes number of each task, -1 if it is no collective of a group, `(T,)`.
        kinds: Kind of link of each direction in `loads`, by the field that holds its bytes.
        members: (axes number, kind) → ranks that one group has on one such link.
    """
    counts = np.diff(rows.flow_offsets)
    instance = np.repeat(np.arange(len(counts)), counts)
    kind = np.zeros(int(loads.link.max(initial=0)) + 1, dtype=np.int64)
    for d in range(len(kinds)):
        kind[loads.link[d]] = d
    direction, of = kind[rows.flow_links], task[instance]
    load_bytes = loads.of_task[0, of, direction]
    by_class = costs[of] != FROM_TASK
    row = costs[of][by_class]
    load_bytes[by_class] = loads.by_class[row, direction[by_class], owner[instance][by_class]]
    by_byte = by_class & (costs[of] >= loads.per_byte_from)
    load_bytes[by_byte] *= loads.size_bytes[of[by_byte]]
    # What a link carries at rate 1 is what one rank sends there, times the ranks, over the time.
    ranks = rows.flow_bytes_per_s * loads.work_s[instance] / load_bytes
    table = np.ones((int(axes.max(initial=-1)) + 2, len(kinds)))
    for (number, load), size in members.items():
        if number < len(table) - 1:
            table[number, [name == load for name in kinds]] = size
    group = np.where(by_class, 1.0, table[axes[of], direction])
    return np.asarray(np.maximum(1, np.rint(ranks / group)), dtype=np.int64)

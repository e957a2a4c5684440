"""Pass 11b: flows on one link are added up; how many a folded task stands for on each of its links.

Of the ranks that a task stands for on a link, those of one process group are one flow. Shares go
by flows, so a task's twins get together what each of them would.
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.compiler.folding.kernels import Rows
from wattree.compiler.folding.task_instances import starts

#: Above this the largest flow on a link is no rounding of the mean.
_UNEQUAL = 1.0 + 1e-12


def added_up(rows: Rows) -> Rows:
    """Add up the bytes that several classes of a flow send over the same link."""
    fresh = _begins(rows)
    if fresh.all():
        return rows
    return _joined(rows, fresh)


def with_counts(rows: Rows) -> tuple[Rows, Floats, Floats | None]:
    """Add up flows that were counted.

    Returns:
        The rows; for each of their flows, how many it stands for, and what the largest of these
        takes, if any differ. [B/s]
    """
    begins = _begins(rows)
    by_part = begins.copy()  # parts of groups that send as much: what all take by their number
    by_part[1:] |= rows.flow_parts[1:] != rows.flow_parts[:-1]
    parts = _joined(rows, by_part)
    if not len(parts.flow_links):
        return rows, parts.flow_ranks, None
    number = parts.flow_ranks / parts.flow_members
    first = np.flatnonzero(begins[by_part])
    found = _joined(rows, begins)
    counts = np.add.reduceat(number, first)
    largest = np.maximum.reduceat(parts.flow_bytes_per_s / number, first)
    differ = (largest > found.flow_bytes_per_s / counts * _UNEQUAL).any()
    return found, counts, largest if differ else None


def _begins(rows: Rows) -> Flags:
    """Return which entries are the first of their task and link."""
    links, offsets = rows.flow_links, rows.flow_offsets
    found = np.ones(len(links), dtype=bool)
    np.not_equal(links[1:], links[:-1], out=found[1:])
    found[offsets[:-1][np.diff(offsets) > 0]] = True
    return found


def _joined(rows: Rows, begins: Flags) -> Rows:
    """Return rows whose entries are sums from each chosen one to the next."""
    first = np.flatnonzero(begins)
    if not len(first):
        return rows
    ranks = rows.flow_ranks
    return rows._replace(
        flow_offsets=starts(begins.astype(np.int64))[rows.flow_offsets],
        flow_links=rows.flow_links[begins],
        flow_bytes_per_s=np.add.reduceat(rows.flow_bytes_per_s, first),
        flow_ranks=np.add.reduceat(ranks, first) if len(ranks) else ranks,
        flow_members=rows.flow_members[begins] if len(ranks) else rows.flow_members,
    )

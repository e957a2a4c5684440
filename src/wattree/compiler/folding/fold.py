"""Pass 10: fold ranks with the same work in the same place into classes.

Partition refinement: ranks start with the color of their stage, their device's speed and the
reach of their transfers; each round mixes in the colors of those they talk to, until no color
splits. Stragglers and uneven reach thus split classes by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Integers


def folded_classes(
    colors: Integers,
    groups: Sequence[Integers],
    neighbours: Sequence[Integers],
    messages: Sequence[tuple[Integers, Integers, Integers]] = (),
) -> Integers:
    """Return the class of every rank, numbered by first appearance.

    Args:
        colors: What tells ranks apart to begin with, shape `(R,)`.
        groups: For each kind of process group or shared link, members by group, shape `(G, n)`;
            no rank twice, -1 for none.
        neighbours: For each kind of transfer, the rank each rank sends to; itself for none.
        messages: For each kind of transfer to several ranks: senders, receivers, and numbers of
            what differs between messages.
    """
    current = _renumbered_rows(colors.reshape(-1, 1))
    while True:
        signature = [current]
        signature += [group_colors(current, members) for members in groups]
        for target in neighbours:
            signature.append(current[target])
            senders = np.flatnonzero(target != np.arange(len(target)))
            transfer = np.full_like(current, -1)
            transfer[target[senders]] = current[senders]
            signature.append(transfer)
        for senders, receivers, number in messages:
            signature.append(_message_colors(current, senders, receivers, number))
            signature.append(_message_colors(current, receivers, senders, number))
        refined = _renumbered_rows(np.stack(signature, axis=1))
        if refined.max() == current.max():
            return refined
        current = refined


def group_colors(colors: Integers, members: Integers) -> Integers:
    """Color each rank by the sorted colors of its group; -1 for none.

    Args:
        members: By group, as for `folded_classes`.
    """
    present = members >= 0
    kinds = _renumbered_rows(np.sort(np.where(present, colors[members], -1), axis=1))
    result = np.full_like(colors, -1)  # ranks in no such group
    result[members[present]] = np.repeat(kinds, present.sum(axis=1))
    return result


def _message_colors(
    colors: Integers, ends: Integers, others: Integers, number: Integers
) -> Integers:
    """Color each rank by the sorted colors and numbers of its messages at one end."""
    found = np.full_like(colors, -1)
    if not len(ends):
        return found
    keys = colors[others] * (number.max() + 1) + number
    order = np.lexsort((keys, ends))
    ranks, counts = np.unique(ends, return_counts=True)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((len(ranks), int(counts.max())), -1)
    rows[np.repeat(np.arange(len(ranks)), counts), np.arange(len(order)) - first] = keys[order]
    found[ranks] = _renumbered_rows(rows)
    return found


def _renumbered_rows(rows: Integers) -> Integers:
    """Number distinct rows by first appearance."""
    first, inverse = distinct_rows(rows)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return np.asarray(order[inverse])


def distinct_rows(rows: Integers) -> tuple[Integers, Integers]:
    """Return the first place of each distinct row, in the order of rows, and the number of each.

    Rows are compared as bytes, the most significant first: `np.unique` of an axis makes a field of
    each column, of which a group of millions of ranks has as many.

    Args:
        rows: Whole numbers from -1, which comes last.
    """
    if not rows.shape[1]:  # without columns, all are alike
        rows = np.zeros((len(rows), 1), np.int64)
    wide = np.ascontiguousarray(rows, dtype=">i8")
    keys = wide.view(np.dtype((np.void, wide.itemsize * wide.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse

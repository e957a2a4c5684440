"""Pass 10: fold ranks that do the same in the same place into classes.

Partition refinement: ranks start with the colour of their stage, their device's speed and the
reach of their transfers; each round mixes in the colours of those they talk to, until no colour
splits. Stragglers and uneven reach thus split classes by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["folded_classes"]

Integers = NDArray[np.int64]


def folded_classes(
    colours: Integers, groups: Sequence[Integers], neighbours: Sequence[Integers]
) -> Integers:
    """Return the class of every rank, numbered by first appearance.

    Args:
        colours: What tells ranks apart to begin with, shape `(R,)`.
        groups: For each kind of process group or shared link, members by group, shape `(G, n)`;
            no rank twice, -1 for none.
        neighbours: For each kind of transfer, the rank each rank sends to; itself for none.
    """
    current = _renumbered(colours)
    while True:
        signature = [current]
        signature += [_group_colours(current, members) for members in groups]
        for target in neighbours:
            signature.append(current[target])
            senders = np.flatnonzero(target != np.arange(len(target)))
            received = np.full_like(current, -1)
            received[target[senders]] = current[senders]
            signature.append(received)
        refined = _renumbered_rows(np.stack(signature, axis=1))
        if refined.max() == current.max():
            return refined
        current = refined


def _group_colours(colours: Integers, members: Integers) -> Integers:
    """Colour each rank by the sorted colours of its group."""
    present = members >= 0
    kinds = _renumbered_rows(np.sort(np.where(present, colours[members], -1), axis=1))
    result = np.full_like(colours, -1)  # ranks in no such group
    result[members[present]] = np.repeat(kinds, present.sum(axis=1))
    return result


def _renumbered(values: Integers) -> Integers:
    return _renumbered_rows(values.reshape(-1, 1))


def _renumbered_rows(rows: NDArray[np.int64]) -> Integers:
    """Number distinct rows by first appearance."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return np.asarray(order[inverse.ravel()])

"""Breadth-first search for the routes of many pairs. Plain Python that numba can compile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


# One loop over arrays, as numba wants it: hence its length, and arguments by position.
def first_paths(  # noqa: C901, PLR0917
    offsets: Integers,
    arriving: Integers,
    source: Integers,
    target: Integers,
    forwards: NDArray[np.bool_],
    start: Integers,
    end: Integers,
) -> tuple[Integers, Integers, int]:
    """Return the links of the route of each pair, the same as those of `Network.path`.

    Routes have the fewest links and grow from their target outwards; what is found first wins,
    links in their order. The search around a target ends once all that send to it are found.

    Args:
        offsets, arriving: Links into vertex v are `arriving[offsets[v]:offsets[v + 1]]`.
        source, target: Ends of each link.
        forwards: Whether a vertex passes traffic on.
        start, end: Pairs, sorted by `end`.

    Returns:
        Offsets into the links, the links of all routes, and the first pair without one, or -1.
    """
    vertices, pairs = len(forwards), len(start)
    stamp = np.full(vertices, -1, dtype=np.int64)
    wanted = np.full(vertices, -1, dtype=np.int64)
    departure = np.empty(vertices, dtype=np.int64)
    queue = np.empty(vertices, dtype=np.int64)
    ends = np.zeros(pairs + 1, dtype=np.int64)
    links = np.empty(8 * pairs + 8, dtype=np.int64)
    used = 0
    low = 0
    while low < pairs:
        goal = end[low]
        high = low
        missing = 0
        while high < pairs and end[high] == goal:
            if start[high] != goal and wanted[start[high]] != low:
                wanted[start[high]] = low
                missing += 1
            high += 1
        head, tail = 0, 1
        queue[0] = goal
        stamp[goal] = low
        while head < tail and missing > 0:
            at = queue[head]
            head += 1
            if at != goal and not forwards[at]:
                continue
            for place in range(offsets[at], offsets[at + 1]):
                link = arriving[place]
                back = source[link]
                if stamp[back] != low:
                    stamp[back] = low
                    departure[back] = link
                    queue[tail] = back
                    tail += 1
                    if wanted[back] == low:
                        missing -= 1
        for pair in range(low, high):
            at = start[pair]
            if stamp[at] != low:
                return ends, links[:0].copy(), pair
            while at != goal:
                if used == len(links):
                    larger = np.empty(2 * used, dtype=np.int64)
                    larger[:used] = links
                    links = larger
                links[used] = departure[at]
                used += 1
                at = target[departure[at]]
            ends[pair + 1] = used
        low = high
    return ends, links[:used].copy(), -1

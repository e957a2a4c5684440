"""Breadth-first search for the routes of many pairs, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.compiled import kernel, part


class LinkArrays(NamedTuple):
    """The links of a network, and its vertices.

    Attributes:
        offsets, arriving: Links into vertex v are `arriving[offsets[v]:offsets[v + 1]]`.
        source, target: Ends of each link.
        forwards: Whether a vertex passes traffic on.
    """

    offsets: Integers
    arriving: Integers
    source: Integers
    target: Integers
    forwards: Flags


class _Search(NamedTuple):
    """State of searches by vertex: number of the last one that found or wants it, link to take."""

    found: Integers
    wanted: Integers
    departure: Integers
    queue: Integers


def first_paths(
    network: LinkArrays, start: Integers, end: Integers
) -> tuple[Integers, Integers, int]:
    """Return the links of the route of each pair, the same as those of `Network.path`.

    Routes have the fewest links and grow from their target outwards; what is found first wins,
    links in their order. The search around a target ends once all that send to it are found.

    Args:
        network: Its links.
        start, end: Pairs, sorted by `end`.

    Returns:
        Offsets into the links, the links of all routes, and the first pair without one, or -1.
    """
    offsets = np.zeros(len(start) + 1, dtype=np.int64)
    links, used = np.empty(0, dtype=np.int64), 8 * len(start) + 8
    while used > len(links):
        links = np.empty(used, dtype=np.int64)
        by_vertex = np.full((4, len(network.forwards)), -1, dtype=np.int64)
        used = _write_paths(network, start, end, _Search(*by_vertex), (offsets, links))
    return offsets, links[: max(used, 0)], max(-1 - used, -1)


@kernel
def _write_paths(
    network: LinkArrays,
    start: Integers,
    end: Integers,
    search: _Search,
    routes: tuple[Integers, Integers],
) -> int:
    """Write the offsets and, as far as there is room, the links of `routes`.

    Returns:
        The number of links, or `-1 - pair` for the first pair without a route.
    """
    offsets, links = routes
    used = low = 0
    while low < len(start):
        goal, high = end[low], low
        while high < len(start) and end[high] == goal:
            high += 1
        _search_around(network, goal, start[low:high], low, search)
        for pair in range(low, high):
            at = start[pair]
            if search.found[at] != low:
                return -1 - pair
            while at != goal:
                if used < len(links):
                    links[used] = search.departure[at]
                used += 1
                at = network.target[search.departure[at]]
            offsets[pair + 1] = used
        low = high
    return used


@part
def _search_around(
    network: LinkArrays, goal: int, senders: Integers, number: int, search: _Search
) -> None:
    """Find the way to `goal` from each sender, in the search of this number."""
    missing = 0
    for sender in senders:
        if sender != goal and search.wanted[sender] != number:
            search.wanted[sender] = number
            missing += 1
    head, tail = 0, 1
    search.queue[0] = goal
    search.found[goal] = number
    while head < tail and missing > 0:
        at = search.queue[head]
        head += 1
        if at != goal and not network.forwards[at]:
            continue
        for place in range(network.offsets[at], network.offsets[at + 1]):
            link = network.arriving[place]
            back = network.source[link]
            if search.found[back] != number:
                search.found[back] = number
                search.departure[back] = link
                search.queue[tail] = back
                tail += 1
                if search.wanted[back] == number:
                    missing -= 1

"""Routes of many pairs at once over arrays, by the rules of `Network.path`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.compiled import kernel, part
from wattree.errors import CostError
from wattree.hardware import Network

#: Sets of pairs whose routes are kept: the phases of a collective share theirs.
_REMEMBERED = 32

#: `Link.kind` → how NCCL's tuning tables count it.
_OVER_NETWORK = frozenset({"network"})
_OVER_HOST = frozenset({"pcie", "sockets", "cxl"})


class Crossed(NamedTuple):
    """Routes of a set of messages.

    Attributes:
        route: Which of the distinct routes each message takes. Shape `(k,)`.
        offsets, links: Links of route r are `links[offsets[r]:offsets[r + 1]]`.
        latency_s: Of each route. Shape `(routes,)`. [s]
    """

    route: Integers
    offsets: Integers
    links: Integers
    latency_s: Floats


class Routes:
    """The links of a network as arrays, and the route between any two vertices.

    Attributes:
        network: As given.
        bandwidth_bytes_per_s: Of each link. Shape `(links,)`. [B/s]
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        names = network.vertices
        self._index = {name: number for number, name in enumerate(names)}
        links = network.links
        self.bandwidth_bytes_per_s = np.array([link.bandwidth_bytes_per_s for link in links])
        self._latency_s = np.array([link.latency_s for link in links])
        self._kind = np.array([_kind_number(link.kind) for link in links], dtype=np.int64)
        source = np.array([self._index[link.source] for link in links], dtype=np.int64)
        target = np.array([self._index[link.target] for link in links], dtype=np.int64)
        arriving = np.argsort(target, kind="stable")
        forwards = network.forwards
        self._links = LinkArrays(
            offsets=np.searchsorted(target[arriving], np.arange(len(names) + 1)),
            arriving=arriving,
            source=source,
            target=target,
            forwards=np.array([forwards is None or name in forwards for name in names]),
        )
        self._last: dict[bytes, tuple[Integers, Integers]] = {}

    def places(self, vertices: Sequence[str]) -> Integers:
        """Return the index of each vertex.

        Raises:
            CostError: One is not in the network.
        """
        return np.array([self._place(name) for name in vertices], dtype=np.int64)

    def crossed(self, sender: Integers, receiver: Integers) -> Crossed:
        """Return the routes of messages.

        Args:
            sender, receiver: Vertices, by the numbers of `places`. Shape `(k,)`.

        Raises:
            CostError: A vertex cannot be reached from another.
        """
        pair, route = np.unique(receiver * len(self._index) + sender, return_inverse=True)
        offsets, links = self._found(pair)
        summed = np.concatenate([[0.0], np.cumsum(self._latency_s[links])])
        return Crossed(
            route=route.reshape(-1).astype(np.int64),
            offsets=offsets,
            links=links,
            latency_s=np.asarray(summed[offsets[1:]] - summed[offsets[:-1]], dtype=np.float64),
        )

    def _found(self, pair: Integers) -> tuple[Integers, Integers]:
        """Return the routes of distinct pairs; the last few calls are cached."""
        key = pair.tobytes()
        if key not in self._last:
            size = len(self._index)
            end, start = pair // size, pair % size
            offsets, links, failed = first_paths(self._links, start, end)
            if failed >= 0:
                names = self.network.vertices
                raise CostError(
                    f"no path leads from '{names[start[failed]]}' to '{names[end[failed]]}'; join "
                    "them with links, or leave one out of the group"
                )
            while len(self._last) >= _REMEMBERED:
                self._last.pop(next(iter(self._last)))
            self._last[key] = (offsets, links)
        return self._last[key]

    def loads_bytes(self, crossed: Crossed, size_bytes: Floats) -> Floats:
        """Return the load of messages of these sizes on each link. Shape `(links,)`. [B]"""
        per_route = np.bincount(
            crossed.route, weights=size_bytes, minlength=len(crossed.offsets) - 1
        )
        on_links = np.repeat(per_route, np.diff(crossed.offsets))
        total = np.bincount(
            crossed.links, weights=on_links, minlength=len(self.bandwidth_bytes_per_s)
        )
        return np.asarray(total, dtype=np.float64)

    def hardware(self, crossed: Crossed) -> Integers:
        """Return the slowest hardware each message crosses: 0 NVLink, 1 the host, 2 the network."""
        worst = np.zeros(len(crossed.offsets) - 1, dtype=np.int64)
        owner = np.repeat(np.arange(len(worst)), np.diff(crossed.offsets))
        np.maximum.at(worst, owner, self._kind[crossed.links])
        return worst[crossed.route]

    def _place(self, name: str) -> int:
        place = self._index.get(name)
        if place is None:
            raise CostError(f"no link of the network touches '{name}', which is in the group")
        return place


def _kind_number(kind: str) -> int:
    return 2 if kind in _OVER_NETWORK else 1 if kind in _OVER_HOST else 0


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

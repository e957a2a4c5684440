"""Networks as graphs: directed links between named vertices, and routes.

A vertex is whatever links meet at: a device, a switch, an adapter, a CPU socket, a memory tier.
A cable is two links, one each way; they share nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wattree.errors import HardwareError


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a cable, a bus or a port.

    Attributes:
        source, target: Names of its ends.
        bandwidth_bytes_per_s: What it carries at most. [B/s]
        latency_s: From the first byte in to the first byte out. [s]
        kind: What it is, for people and for efficiencies: `nvlink`, `pcie`, `network`, `cxl` ….
    """

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    kind: str = "network"

    def __post_init__(self) -> None:
        # Written so that NaN fails.
        if not 0 < self.bandwidth_bytes_per_s < float("inf"):
            raise HardwareError(
                f"link {self.name}: bandwidth {self.bandwidth_bytes_per_s:g} B/s, expected above 0"
            )
        if not 0 <= self.latency_s < float("inf"):
            raise HardwareError(
                f"link {self.name}: latency {self.latency_s:g} s, expected 0 or more"
            )
        if self.source == self.target:
            raise HardwareError(f"link {self.name} joins a vertex with itself")

    @property
    def name(self) -> str:
        """Source and target."""
        return f"{self.source}>{self.target}"


def cable(
    one: str,
    other: str,
    bandwidth_bytes_per_s: float,
    *,
    latency_s: float = 0.0,
    kind: str = "network",
) -> tuple[Link, Link]:
    """Return the two directions of a full-duplex cable."""
    forth = Link(
        source=one,
        target=other,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        kind=kind,
    )
    return forth, replace(forth, source=other, target=one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A directed graph of links.

    Routes have the fewest links. Each target has one tree of routes, grown from the target
    outwards, so that every vertex forwards by target alone, as switches do; where several trees
    would do, links that come first in `links` are taken first. Only vertices in `forwards` (all,
    if None) pass traffic on.

    Attributes:
        links: In the order that breaks ties.
        forwards: Vertices that may lie inside a path; None for all.
    """

    links: tuple[Link, ...]
    forwards: frozenset[str] | None = None
    _arriving: Mapping[str, list[int]] = field(init=False, repr=False, compare=False)
    _trees: dict[str, dict[str, int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        arriving: dict[str, list[int]] = {}
        for index, link in enumerate(self.links):
            arriving.setdefault(link.source, [])
            arriving.setdefault(link.target, []).append(index)
        object.__setattr__(self, "_arriving", arriving)

    @property
    def vertices(self) -> tuple[str, ...]:
        """Names of all ends, in order of first mention."""
        return tuple(self._arriving)

    def path(self, source: str, target: str) -> tuple[int, ...]:
        """Return the links from `source` to `target`, as indices into `links`.

        Raises:
            HardwareError: An end is unknown, or no path leads there.
        """
        for end in (source, target):
            if end not in self._arriving:
                raise HardwareError(f"no link of the network touches '{end}'")
        if target not in self._trees:
            self._trees[target] = self._tree(target)
        departures = self._trees[target]
        if source != target and source not in departures:
            raise HardwareError(
                f"no path leads from '{source}' to '{target}'; join them with links"
            )
        crossed = []
        while source != target:
            crossed.append(departures[source])
            source = self.links[crossed[-1]].target
        return tuple(crossed)

    def _tree(self, target: str) -> dict[str, int]:
        """Return for each vertex that reaches `target` the first link of its path there."""
        departures: dict[str, int] = {}
        waiting = deque([target])
        while waiting:
            at = waiting.popleft()
            if at != target and self.forwards is not None and at not in self.forwards:
                continue
            for index in self._arriving[at]:
                link = self.links[index]
                if link.source != target and link.source not in departures:
                    departures[link.source] = index
                    waiting.append(link.source)
        return departures

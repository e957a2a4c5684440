"""Time and link loads of collectives: alpha-beta on the group's shape. Pure functions over arrays.

A group of `ranks` is spread evenly over scale-up domains, `inside` of them in each, and over leaf
switches. Inside a domain traffic uses each device's scale-up port, between domains its share of the
adapters, between leaves also its share of the uplinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any, Final

import numpy as np

from wattree.arrays import Floats
from wattree.graph import UNROUTED, TokenRouting
from wattree.graph.volume import volume_factor

#: What goes around rings in NCCL, where an all-reduce has trees.
_RINGS: Final = frozenset({"all_gather", "reduce_scatter"})
#: Members of a domain with a ring each: larger ones were not measured.
_RING_MEMBERS: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """Distribution of a group's ranks over nodes.

    Attributes:
        ranks: Members, `n`. Shape `(k,)`.
        inside: Members in one scale-up domain, `m`. Shape `(k,)`.
        in_leaf: Members under one leaf switch (or pod), `m` or more; None if one holds all.
        domains: Scale-up domains that the group lies in; None for `n / m`. Where they hold
            unequal numbers of members, `m` and the members of a leaf are those of one rank's own.
        spans: Degree and stride of each axis of the groups, `(k,)` each; empty if unknown.
        filled: Devices of a scale-up domain that the job uses, `(k,)`; given with `spans`.
        mesh: Degree and stride of each axis of their mesh, which decide how it lies on a torus.
        known: What has been found out about these groups, for the next collective among them.
    """

    ranks: Floats
    inside: Floats
    in_leaf: Floats | None = None
    domains: Floats | None = None
    spans: tuple[tuple[Floats, Floats], ...] = ()
    filled: Floats | None = None
    mesh: tuple[tuple[Floats, Floats], ...] = ()
    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def of_leaf(self) -> Floats:
        """Members under one leaf switch, all where nothing is said."""
        return self.ranks if self.in_leaf is None else np.maximum(self.in_leaf, self.inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Bandwidth that the links of one device achieve in collectives.

    Attributes:
        scale_up_bytes_per_s: Bus bandwidth of gathers, scatters and exchanges. [B/s]
        scale_up_reduce_bytes_per_s: Bus bandwidth of all-reduce, higher where switches add. [B/s]
        adapter_bytes_per_s: Network bandwidth per device where all send at once. [B/s]
        uplink_bytes_per_s: The same out of a leaf switch; infinite if nothing is oversubscribed.
            [B/s]
        alpha_s: Latency inside a domain. [s]
        alpha_network_s: Added latency per doubling of domains, or per domain of a ring. [s]
        alpha_reduce_s: Latency of an all-reduce inside a domain; None: as of the others. [s]
        ring_step_s: Time of a step inside a domain of rings across domains; None where gathers and
            scatters go in doublings. [s]
    """

    scale_up_bytes_per_s: float
    scale_up_reduce_bytes_per_s: float
    adapter_bytes_per_s: float
    alpha_s: float
    alpha_network_s: float
    uplink_bytes_per_s: float = float("inf")
    alpha_reduce_s: float | None = None
    ring_step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLoads:
    """Bytes through one device's ports in one direction, in equivalents of plain gathers. [B]"""

    scale_up: Floats
    adapter: Floats
    uplink: Floats


def port_loads(
    kind: str,
    size_bytes: Floats,
    group: GroupShape,
    rates: LinkRates,
    *,
    routing: TokenRouting = UNROUTED,
) -> PortLoads:
    """Return the bytes that one collective sends through the ports of one of its devices. [B]

    A ring crosses each boundary of domains and of leaves once; its channels spread that over the
    members inside. Exchanges send each peer its own part; a `routing` of several copies
    sends tokens to a domain once however many of their experts live there.
    """
    n, m, leaf = group.ranks, group.inside, group.of_leaf
    if kind == "all_to_all":
        domains = np.maximum(n / m, 1.0)
        remote = 1.0 - 1.0 / domains
        if routing.copies > 1:
            remote = _domains_reached(domains, routing) * remote / routing.copies
        leaves = np.maximum(n / leaf, 1.0)
        beyond = np.where(domains > 1, (1.0 - 1.0 / leaves) / np.maximum(1 - 1 / domains, 1e-12), 0)
        adapter = size_bytes * remote
        return PortLoads(
            scale_up=size_bytes * (m - 1) / n, adapter=adapter, uplink=adapter * beyond
        )
    sent = volume_factor(kind, n) * size_bytes
    advantage = 1.0
    if kind == "all_reduce":
        advantage = rates.scale_up_bytes_per_s / rates.scale_up_reduce_bytes_per_s
    return PortLoads(
        scale_up=np.where(m > 1, sent * advantage, 0.0),
        adapter=np.where(n > m, sent / m, 0.0),
        uplink=np.where(n > leaf, sent / leaf, 0.0),
    )


#: Shares of a group above and below which rounding alone keeps them from all and nothing.
_WHOLE: Final = 1 - 1e-9
_CUT: Final = 1e-9


def _domains_reached(domains: Floats, routing: TokenRouting) -> Floats:
    """Return the expected domains that have an expert of a token, of uniform choices.

    Groups lie in domains in order, each in `D / G` of them, or parts of several in each.
    """
    copies, groups, chosen = routing
    reachable = np.maximum(domains * chosen / groups, 1.0)
    found = reachable * (1 - (1 - 1 / reachable) ** copies)
    for index in np.flatnonzero((groups > 1) & (domains % groups > 0)):
        found[index] = _domains_across(float(domains[index]), routing)
    return found


@cache
def _domains_across(domains: float, routing: TokenRouting) -> float:
    """Return the same where a domain has parts of several groups.

    A domain gets none of a token's experts with `(1 - share)^copies`, where its share of the
    chosen groups is `k` whole ones and the parts at its borders, for each choice of those.
    """
    copies, groups, chosen = routing
    width, reached = groups / domains, 0.0
    for domain in range(math.ceil(domains)):
        start, end = domain * width, min((domain + 1) * width, groups)
        parts = [min(end, at + 1) - max(start, at) for at in range(int(start), math.ceil(end))]
        whole = sum(part > _WHOLE for part in parts)
        cut = [part for part in parts if _CUT < part <= _WHOLE]
        others = groups - whole - len(cut)
        missed = sum(
            math.comb(whole, k)
            * math.comb(others, chosen - k - len(some))
            * (1 - min(k + sum(some), chosen) / chosen) ** copies
            for taken in range(len(cut) + 1)
            for some in combinations(cut, taken)
            for k in range(min(whole, chosen - taken) + 1)
        )
        reached += 1 - missed / math.comb(groups, chosen)
    return reached


def collective_latency_s(kind: str, group: GroupShape, rates: LinkRates) -> Floats:
    """Return the time of a collective of no bytes. [s]

    One alpha inside the domain, one network alpha per doubling of domains (trees); two-phase
    all-reduce pays the network part twice. Rings of gathers and scatters visit every rank of every
    domain in turn (NCCL up to 2.29), with steps that take longer the more adapters have a ring.
    """
    domains = group.ranks / group.inside if group.domains is None else group.domains
    passes, alpha_s = 1.0, rates.alpha_s
    if kind == "all_reduce":
        passes = 2.0
        alpha_s = alpha_s if rates.alpha_reduce_s is None else rates.alpha_reduce_s
    alone = group.ranks <= 1
    if kind in _RINGS and rates.ring_step_s is not None:
        members = np.clip(group.ranks / domains, 1.0, _RING_MEMBERS)
        inside_s = rates.ring_step_s * (members - 1.0) * members / _RING_MEMBERS
        step_s = max(rates.alpha_network_s, rates.ring_step_s)  # measured with one member, too
        network_s = np.maximum(domains - 1.0, 0.0) * (step_s + inside_s)
    else:
        network_s = passes * np.log2(np.maximum(domains, 1.0)) * rates.alpha_network_s
    return np.where(alone, 0.0, alpha_s + network_s)

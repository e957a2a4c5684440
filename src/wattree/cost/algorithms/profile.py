"""Profile of a collective: load per byte on ports, adapters and uplinks, and number of steps.

Read off the messages of an algorithm, with all groups of the layout at work at once. Scaled by the
size, a profile is the cost of every call of that kind, algorithm and place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.cost.algorithms.choose import schedule_of
from wattree.cost.algorithms.group import RankGroup, has_cycles, ring_cycles
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.messages import MessageSchedule, Round
from wattree.cost.algorithms.registry import Call
from wattree.cost.algorithms.wiring import LinkTraffic, Wiring, busiest_s, crossing_of
from wattree.distinct import distinct
from wattree.errors import CostError

#: Algorithms whose messages number `n (n - 1)`: their loads are written down, not counted.
_EXCHANGES = frozenset({"direct", "rail"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProfile:
    """Loads and steps of a collective of one byte.

    Attributes:
        scale_up: Through the busiest port of a device, one direction; where there is no switch,
            what would take as long through a port as the busiest link takes. [B]
        adapter: Through the busiest device's way into the network. [B]
        uplink: Out of the busiest leaf, over its members. [B]
        in_turn: Ports and network work one after the other, instead of at the same time.
        steps_inside, steps_between: Messages that follow one another, by what they cross; to a
            switch of the fabric that adds, half of one. Where a round is a ring, ranks wait for
            their neighbours, not for the slowest of all, so that its steps count by the share of
            hops that are of each sort.
        inside_s: Latency of the links that a step inside crosses. [s]
        hardware: What a step inside crosses at worst: 0 NVLink, 1 the host.
    """

    scale_up: float
    adapter: float
    uplink: float
    in_turn: bool
    steps_inside: float
    steps_between: float
    inside_s: float
    hardware: int


@lru_cache(maxsize=8192)  # sizes scale; kinds, algorithms and places of a search are few
def profile_of(kind: str, algorithm: str, layout: GroupLayout, wiring: Wiring) -> CollectiveProfile:
    """Return the profile of a collective.

    Args:
        kind: One of `KINDS`.
        algorithm: Its name in `ALGORITHMS`.
        layout: Its groups.
        wiring: Of a scale-up domain.

    Raises:
        UnknownNameError: There is no such algorithm.
        CostError: It has no such collective, or does not fit the groups.
    """
    wiring = wiring.placed(layout.torus)
    exchange = algorithm in _EXCHANGES and kind in {
        "all_to_all",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    bases = layout.bases().tolist()
    # Where degrees and domains do not divide each other, the most spread group holds all up.
    bases.sort(key=lambda base: -len(distinct((layout.offsets + base) // layout.domain)))
    if exchange:
        profile = _exchange(kind, algorithm, layout, bases[0])
    else:
        profile = _counted(_schedule(kind, algorithm, layout, wiring, bases[0]), layout)
    if wiring.is_switch:
        return replace(
            profile,
            # A message to the switch goes half of the way to another device.
            inside_s=wiring.scale_up.latency_s / (2.0 if algorithm == "nvls" else 1.0),
            hardware=int(wiring.scale_up.kind == "pcie"),
        )
    if exchange:
        parts = [_exchange_traffic(kind, algorithm, layout, base) for base in bases]
    else:
        parts = _traffic_of_groups(kind, algorithm, layout, wiring, bases)
    crossing = [crossing_of(wiring, traffic) for traffic in parts[0]]
    profile = replace(
        profile,
        inside_s=max((each.latency_s for each in crossing), default=0.0),
        hardware=max((each.hardware for each in crossing), default=0),
    )
    # Groups of one axis are alike, so their steps fall together.
    busiest = sum(
        busiest_s(wiring, [traffic for traffic in at_once if traffic is not None])
        for at_once in zip_longest(*parts)
    )
    return replace(profile, scale_up=busiest * wiring.scale_up.bandwidth_bytes_per_s)


@lru_cache(maxsize=1024)
def shifted_stretch(distance: int, filled: int, wiring: Wiring) -> float:
    """Return the time of messages at a fixed device offset over their time through a port.

    Args:
        distance: From sender to receiver.
        filled: Devices of the domain that take part.
        wiring: Of the domain.
    """
    sender = np.arange(filled - distance)
    traffic = LinkTraffic(sender, sender + distance, np.ones(len(sender)))
    return busiest_s(wiring, [traffic]) * wiring.scale_up.bandwidth_bytes_per_s


def ring_stretch(layout: GroupLayout, wiring: Wiring) -> float:
    """Return the time of messages from each member to the next over their time through a port.

    All groups send at once; the last member of a group in the domain sends to the first, or off.

    Args:
        layout: Of the groups.
        wiring: Of the domain.
    """
    wiring = wiring.placed(layout.torus)
    members = layout.bases()[:, None] + layout.offsets
    sender, receiver = members.ravel(), np.roll(members, -1, axis=1).ravel()
    inside = (sender < layout.filled) & (receiver < layout.filled) & (sender != receiver)
    if not inside.any():
        return 1.0
    traffic = LinkTraffic(sender[inside], receiver[inside], np.ones(int(inside.sum())))
    return busiest_s(wiring, [traffic]) * wiring.scale_up.bandwidth_bytes_per_s


def _schedule(
    kind: str, algorithm: str, layout: GroupLayout, wiring: Wiring, base: int
) -> MessageSchedule:
    devices = layout.offsets + base
    domain = devices // layout.domain
    local = devices[domain == domain[0]] % layout.domain
    cycles = () if wiring.is_switch else ring_cycles(wiring.node, layout.domain, local)
    group = RankGroup(
        devices=devices,
        node=domain,
        cycles=cycles,
        shape=None if wiring.torus is None else layout.torus_axes(wiring.torus),
        switches=tuple(f"switch{each}" for each in distinct(domain).tolist())
        if wiring.scale_up.in_network_reduction and wiring.scale_up.kind == "switch"
        else (),
    )
    call = Call(kind=kind, size_bytes=1.0, group=group, switch="fabric")
    return schedule_of(call, algorithm)


# ---------------------------------------------------------------------- counting messages


def _places(schedule: MessageSchedule, unit: int) -> Integers:
    """Return the domain or leaf of every participant; -1 for a switch of the fabric.

    Args:
        schedule: Messages.
        unit: Devices of a domain or a leaf.
    """
    own = schedule.group.devices // unit
    if not schedule.helpers:
        return own
    if schedule.algorithm == "sharp":
        return np.concatenate([own, [-1]])
    first = np.unique(schedule.group.node, return_index=True)[1]
    return np.concatenate([own, own[first]])  # a switch of each domain


def _counted(schedule: MessageSchedule, layout: GroupLayout) -> CollectiveProfile:
    domain = _places(schedule, layout.domain)
    leaf = _places(schedule, layout.leaf)
    if schedule.helpers and schedule.algorithm == "sharp":
        beneath = distinct(leaf[:-1])
        leaf[-1] = beneath[0] if len(beneath) == 1 else -1  # sums are made where all meet
    loads, mixed = np.zeros(3), False
    steps = np.zeros(2)
    for part in _parts(schedule):
        crosses = domain[part.sender] != domain[part.receiver]
        beyond = leaf[part.sender] != leaf[part.receiver]
        mixed |= bool(crosses.any()) and not bool(crosses.all())
        ranks = schedule.ranks
        loads += [
            _most(part, ~crosses, ranks),
            _most(part, crosses, ranks),
            _most_of_a_leaf(part, beyond, leaf, ranks),
        ]
    for each in schedule.rounds:
        for hop in each.hops():
            crosses = domain[each.sender[hop]] != domain[each.receiver[hop]]
            between = float(crosses.mean() if each.repeats > 1 else crosses.any())
            ends = np.maximum(each.sender[hop], each.receiver[hop])
            # To a switch of the fabric or from it; those inside a domain count as NCCL counts them.
            way = 0.5 if between and (ends >= schedule.ranks).all() else 1.0
            steps += np.array([1.0 - between, between]) * (each.repeats * way / schedule.lanes)
    return CollectiveProfile(
        scale_up=float(loads[0]),
        adapter=float(loads[1]),
        uplink=float(loads[2]),
        in_turn=not mixed and not schedule.pipelined,
        steps_inside=float(steps[0]),
        steps_between=float(steps[1]),
        inside_s=0.0,
        hardware=0,
    )


def _parts(schedule: MessageSchedule) -> Iterator[LinkTraffic]:
    """Yield the concurrent messages, participants as numbers: a hop, or all if pipelined."""
    rounds = schedule.rounds
    if schedule.pipelined:
        if rounds:
            yield LinkTraffic(
                np.concatenate([each.sender for each in rounds]),
                np.concatenate([each.receiver for each in rounds]),
                np.concatenate([schedule.carried_bytes(each) for each in rounds]),
            )
        return
    for each in rounds:
        yield from _hops(schedule, each)


def _hops(schedule: MessageSchedule, each: Round) -> Iterator[LinkTraffic]:
    carried = schedule.carried_bytes(each)
    for hop in each.hops():
        yield LinkTraffic(each.sender[hop], each.receiver[hop], carried[hop])


def _most(part: LinkTraffic, chosen: Flags, ranks: int) -> float:
    """Return the bytes of the chosen messages at the busiest rank, out of it or into it. [B]"""
    ends = (part.sender[chosen], part.receiver[chosen])
    return max(
        float(np.bincount(end, weights=part.size_bytes[chosen], minlength=ranks)[:ranks].max())
        for end in ends
    )


def _most_of_a_leaf(part: LinkTraffic, chosen: Flags, leaf: Integers, ranks: int) -> float:
    """Return the bytes of the chosen messages out of the busiest leaf, per member. [B]"""
    if not chosen.any():
        return 0.0
    _, of_rank, members = np.unique(leaf[:ranks], return_inverse=True, return_counts=True)
    most = 0.0
    for end in (part.sender, part.receiver):
        own = chosen & (end < ranks)
        sent = np.bincount(of_rank[end[own]], weights=part.size_bytes[own], minlength=len(members))
        most = max(most, float((sent / members).max()))
    return most


def _traffic_of_groups(
    kind: str, algorithm: str, layout: GroupLayout, wiring: Wiring, bases: Sequence[int]
) -> list[list[LinkTraffic]]:
    """Return the groups' traffic that involves the first domain, one time slot after another."""
    if has_cycles(wiring.domain) or layout.split() is None:
        schedules = (_schedule(kind, algorithm, layout, wiring, base) for base in bases)
        return [_traffic(schedule, layout) for schedule in schedules]
    # Without cables of its own to follow, every group does what the first does, some devices on.
    first = _traffic(_schedule(kind, algorithm, layout, wiring, 0), layout)
    return [[_moved(traffic, base) for traffic in first] for base in bases]


def _moved(traffic: LinkTraffic, devices: int) -> LinkTraffic:
    sender, receiver, size_bytes = traffic
    return LinkTraffic(
        np.where(sender < 0, -1, sender + devices),
        np.where(receiver < 0, -1, receiver + devices),
        size_bytes,
    )


def _traffic(schedule: MessageSchedule, layout: GroupLayout) -> list[LinkTraffic]:
    """Return the traffic that involves the first domain, one time slot after another."""
    domain = _places(schedule, layout.domain)
    result = []
    for part in _parts(schedule):
        outwards, inwards = domain[part.sender] == 0, domain[part.receiver] == 0
        helps = np.maximum(part.sender, part.receiver) >= schedule.ranks
        # What a switch within the domain adds never crosses links between devices.
        chosen = (outwards | inwards) & ~(helps & outwards & inwards)
        device = np.concatenate([schedule.group.devices, np.full(len(schedule.helpers), -1)])
        result.append(
            LinkTraffic(
                np.where(outwards, device[part.sender], -1)[chosen],
                np.where(inwards, device[part.receiver], -1)[chosen],
                part.size_bytes[chosen],
            )
        )
    return result


# --------------------------------------------------------------------- everyone to everyone


def _exchange(kind: str, algorithm: str, layout: GroupLayout, base: int) -> CollectiveProfile:
    """Return the profile of parts that are sent directly to their ranks, or over their rails."""
    if algorithm == "rail" and kind != "all_to_all":
        raise CostError(f"algorithm 'rail' has no {kind}; it has all_to_all")
    devices = layout.offsets + base
    n = len(devices)
    _, inside = np.unique(devices // layout.domain, return_counts=True)
    _, in_leaf = np.unique(devices // layout.leaf, return_counts=True)
    passes = 2.0 if kind == "all_reduce" else 1.0
    scale_up = (inside.max() - 1.0) / n
    steps_inside, steps_between = (0.0, passes) if len(inside) > 1 else (passes, 0.0)
    if algorithm == "rail":
        if inside.min() < inside.max():
            raise CostError(
                f"algorithm 'rail' needs as many ranks in every domain, found {inside.min()} to "
                f"{inside.max()}; use 'direct'"
            )
        scale_up = (inside.max() - 1.0) / inside.max()
        steps_inside, steps_between = float(inside.max() > 1), float(len(inside) > 1)
    return CollectiveProfile(
        scale_up=passes * scale_up if n > 1 else 0.0,
        adapter=passes * float(1.0 - inside.min() / n),
        uplink=passes * float(1.0 - in_leaf.min() / n),
        in_turn=False,
        steps_inside=steps_inside if n > 1 else 0.0,
        steps_between=steps_between,
        inside_s=0.0,
        hardware=0,
    )


def _exchange_traffic(
    kind: str, algorithm: str, layout: GroupLayout, base: int
) -> list[LinkTraffic]:
    devices = layout.offsets + base
    here = devices[devices < layout.domain]
    n, m = len(devices), len(here)
    passes = 2.0 if kind == "all_reduce" else 1.0
    one, other = (each[~np.eye(m, dtype=bool)] for each in np.meshgrid(here, here, indexing="ij"))
    apart = np.full(m, -1)
    away = 1.0 - m / n
    beyond = m if away > 0 else 0
    to_each = 1.0 / m if algorithm == "rail" else 1.0 / n
    return [
        LinkTraffic(
            np.concatenate([one, here[:beyond], apart[:beyond]]),
            np.concatenate([other, apart[:beyond], here[:beyond]]),
            passes * np.concatenate([np.full(len(one), to_each), np.full(2 * beyond, away)]),
        )
    ]

"""Rings: every rank sends to its two neighbors only."""

from __future__ import annotations

from math import lcm

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import KINDS, Call, algorithm


@algorithm("ring", *KINDS)
def ring(call: Call) -> MessageSchedule:
    """Return ring algorithms; all-reduce takes `2 (n - 1)` steps of `S / n` [1].

    All-to-all passes parts on from neighbour to neighbour, `n (n - 1) / 2` steps of `S / n`, as
    ASTRA-sim's ring does [2].

    References:
        [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
            workstations", JPDC 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.
        [2] W. Won et al., "ASTRA-sim2.0", ISPASS 2023, arXiv 2303.14006, and its sources.
    """
    if call.kind == "all_to_all":
        return _ring_all_to_all(call)
    orders = ring_orders(call.group)
    channels, n = orders.shape
    place = np.arange(n)
    following = np.roll(orders, -1, axis=1)
    base = np.arange(channels)[:, None] * n

    def passes(first: Integers, *, reduces: bool) -> Round:
        return round_of(
            orders,
            following,
            base=base,
            first=first,
            period=n,
            shift=-1,
            repeats=n - 1,
            reduces=reduces,
        )

    # Position k sends chunk k first, then what it just got: k - 1, …. After n - 1 steps it holds
    # the whole of chunk k + 1.
    rounds = {
        "all_reduce": (passes(place, reduces=True), passes(place + 1, reduces=False)),
        "reduce_scatter": (passes(place, reduces=True),),
        "all_gather": (passes(place, reduces=False),),
    }[call.kind]
    owner = np.roll(orders, 1, axis=1) if call.kind == "reduce_scatter" else orders
    return call.schedule("ring", owner.ravel(), rounds)


def ring_orders(group: RankGroup, channels: int | None = None) -> Integers:
    """Return the order of the ranks in each channel's ring. Shape `(channels, n)`.

    A ring enters and leaves every domain once. There are as many rings as the smallest domain has
    members, and each enters and leaves through others, so that all adapters are used alike.
    Every second domain is crossed backwards: a ring leaves one domain and enters the next through
    members of the same place, which are on the same rail.

    Args:
        group: Who takes part.
        channels: How many rings; None for as many as there are ways out of a domain, times ways
            round it; within one domain, ways round it.
    """
    members = group.members()
    cycles = group.cycles or ((),)
    if channels is None:
        channels = min(map(len, members)) if len(members) > 1 else len(cycles)
        if len(members) > 1 and group.cycles:
            # Cables and adapters are used alike if every order has its turn at every way out.
            channels *= len(cycles)
    sizes = {len(each) for each in members}
    if len(sizes) == 1 and all(len(cycle) in {0, *sizes} for cycle in cycles):
        return _even_orders(np.stack(members), cycles, channels)
    rings = [
        np.concatenate([_crossed(each, channel, index) for index, each in enumerate(members)])
        for channel in range(channels)
    ]
    return np.stack(rings)


def _even_orders(grid: Integers, cycles: tuple[tuple[int, ...], ...], channels: int) -> Integers:
    nodes, inside = grid.shape
    rings = np.empty((channels, nodes, inside), dtype=np.int64)
    again = lcm(len(cycles), inside)  # channels after which cycle and entry would be as before
    for channel in range(channels):
        cycle = np.array(cycles[channel % len(cycles)] or range(inside), dtype=np.int64)
        place = (channel + channel // again) % inside
        entry = int(np.flatnonzero(cycle == place)[0]) if nodes > 1 else 0
        forth = np.roll(cycle, -entry)
        rings[channel, 0::2] = grid[0::2][:, forth]
        rings[channel, 1::2] = grid[1::2][:, forth[::-1]]
    return rings.reshape(channels, nodes * inside)


def _crossed(members: Integers, channel: int, index: int) -> Integers:
    forth = np.roll(members, -(channel % len(members)))
    return forth[::-1] if index % 2 else forth


def _ring_all_to_all(call: Call) -> MessageSchedule:
    order = ring_orders(call.group, 1)[0]
    n = len(order)
    place = np.arange(n)
    distance = np.repeat(np.arange(1, n), n)  # chunk (d - 1) n + k: from position k, d further
    source = np.tile(order, n - 1)
    target = order[(np.tile(place, n - 1) + distance) % n]
    rounds = [
        round_of(
            order,
            np.roll(order, -1),
            base=(hops - 1) * n,
            first=place,
            period=n,
            shift=-1,
            repeats=hops,
        )
        for hops in range(1, n)
    ]
    return call.exchange("ring", source, target, rounds)

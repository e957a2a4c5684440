"""Link sharing: flows join and leave; shares are solved only where they change.

Only *crowded* links restrict anybody. So a change touches the flows on the links where it
happened and those tied to them through crowded links, found by walking from link to flow to
link; everyone else keeps their share to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers
from wattree.compiled import part
from wattree.sim.layout import FlowNetwork, Record
from wattree.sim.rules import CROWDED_TOLERANCE

Slots = NDArray[np.void]


@part
def join_links(network: FlowNetwork, slots: Slots, slot: int, flow: int, flows_end: int) -> None:
    """Add a task that starts its work to its links, after the flows already there."""
    state = slots[slot]
    state.busiest_bytes_per_s = 0.0
    state.nodes = state.nodes_end = slot * network.capacity
    for k in range(flow, flows_end):
        bytes_per_s = network.flow_bytes_per_s[k]
        if bytes_per_s > 0.0:
            node = network.nodes[state.nodes_end]
            node.bytes_per_s = bytes_per_s
            node.link = network.flow_links[k]
            node.slot = slot
            _append(network, state.nodes_end)
            state.nodes_end += 1
            state.busiest_bytes_per_s = max(state.busiest_bytes_per_s, bytes_per_s)
    if len(network.busiest_bytes_per_s) > 0:
        state.busiest_bytes_per_s = network.busiest_bytes_per_s[state.task]


@part
def leave_links(network: FlowNetwork, slots: Slots, slot: int) -> None:
    """Remove a task that ends from its links."""
    for n in range(slots[slot].nodes, slots[slot].nodes_end):
        _remove(network, n)


@part
def _append(network: FlowNetwork, n: int) -> None:
    node = network.nodes[n]
    link = network.links[node.link]
    node.previous = link.last
    node.next = -1
    if link.last >= 0:
        network.nodes[link.last].next = n
    else:
        link.first = n
    link.last = n
    link.demand_bytes_per_s += node.bytes_per_s
    _touch(network, node.link)


@part
def _remove(network: FlowNetwork, n: int) -> None:
    node = network.nodes[n]
    link = network.links[node.link]
    if node.previous >= 0:
        network.nodes[node.previous].next = node.next
    else:
        link.first = node.next
    if node.next >= 0:
        network.nodes[node.next].previous = node.previous
    else:
        link.last = node.previous
    link.demand_bytes_per_s -= node.bytes_per_s
    if link.first < 0:
        link.demand_bytes_per_s = 0.0  # rounding of the sum ends with the last flow
    _touch(network, node.link)


@part
def _touch(network: FlowNetwork, link: int) -> None:
    if not network.links[link].touched:
        network.links[link].touched = 1
        network.touched[0] += 1
        network.touched[network.touched[0]] = link


@part
def solve_shares(network: FlowNetwork, slots: Slots, dirty: Integers, is_proteus: bool) -> None:
    """Update the shares at the end of an instant; list the slots whose share changed."""
    kept = _forget_free_links(network)
    network.visit[0] += 1
    for i in range(1, kept + 1):
        n = network.links[network.touched[i]].first
        while n >= 0:
            slot = network.nodes[n].slot
            if slots[slot].visit != network.visit[0]:
                if is_proteus:
                    slots[slot].visit = network.visit[0]
                    network.members[0] = 1
                    network.members[1] = slot
                    slots[slot].fill = _counted_share(network, slots, slot)
                else:
                    _collect(network, slots, slot)
                    _fill(network, slots)
                _publish(network, slots, dirty)
            n = network.nodes[n].next
    network.touched[0] = 0


@part
def _forget_free_links(network: FlowNetwork) -> int:
    """Keep only the touched links that are or were congested; return their number."""
    kept = 0
    for i in range(1, network.touched[0] + 1):
        link = network.links[network.touched[i]]
        link.touched = 0
        is_crowded = link.demand_bytes_per_s > link.bandwidth_bytes_per_s * CROWDED_TOLERANCE
        if is_crowded or link.crowded:
            kept += 1
            network.touched[kept] = network.touched[i]
        link.crowded = is_crowded
    return kept


@part
def _publish(network: FlowNetwork, slots: Slots, dirty: Integers) -> None:
    for i in range(1, network.members[0] + 1):
        slot = slots[network.members[i]]
        if slot.share != slot.fill:
            slot.share = slot.fill
            if not slot.dirty:
                slot.dirty = 1
                dirty[0] += 1
                dirty[dirty[0]] = network.members[i]


@part
def _collect(network: FlowNetwork, slots: Slots, slot: int) -> None:
    """Collect the flows and congested links that are connected to a flow, itself included."""
    members, crowded = network.members, network.crowded
    members[0] = crowded[0] = 0
    _visit_slot(network, slots, slot)
    done = 0
    while done < members[0]:
        done += 1
        slot = members[done]
        for n in range(slots[slot].nodes, slots[slot].nodes_end):
            link = network.links[network.nodes[n].link]
            if link.crowded and link.visit != network.visit[0]:
                link.visit = network.visit[0]
                crowded[0] += 1
                crowded[crowded[0]] = network.nodes[n].link
                k = link.first
                while k >= 0:
                    _visit_slot(network, slots, network.nodes[k].slot)
                    k = network.nodes[k].next


@part
def _visit_slot(network: FlowNetwork, slots: Slots, slot: int) -> None:
    if slots[slot].visit != network.visit[0]:
        slots[slot].visit = network.visit[0]
        slots[slot].fill = GROWING
        network.members[0] += 1
        network.members[network.members[0]] = slot


#: `fill` of a flow that progressive filling has not frozen yet.
GROWING = -1.0


@part
def _fill(network: FlowNetwork, slots: Slots) -> None:
    """Solve the collected flows by progressive filling."""
    growing, level = network.members[0], 0.0
    before = growing + 1
    while 0 < growing < before:  # sums that are no numbers any more freeze no one
        before = growing
        level = _next_level(network, slots, level)
        for i in range(1, network.members[0] + 1):
            slot = slots[network.members[i]]
            if slot.fill == GROWING and slot.busiest_bytes_per_s <= level:
                slot.fill = 1.0
                growing -= 1
        for i in range(1, network.crowded[0] + 1):
            link = network.links[network.crowded[i]]
            if link.full_at_bytes_per_s <= level:
                growing -= _freeze(network, slots, link.first, level)
    for i in range(1, network.members[0] + 1):
        slot = slots[network.members[i]]
        if slot.fill == GROWING:
            slot.fill = 0.0  # and so it is found at rest when the play halts


@part
def _next_level(network: FlowNetwork, slots: Slots, level: float) -> float:
    """Return the level at which the next link is full or the next flow reaches rate 1. [B/s]"""
    lowest = np.inf
    for i in range(1, network.crowded[0] + 1):
        link = network.links[network.crowded[i]]
        link.full_at_bytes_per_s = max(_level_that_fills(network, slots, link), level)
        lowest = min(lowest, link.full_at_bytes_per_s)
    for i in range(1, network.members[0] + 1):
        slot = slots[network.members[i]]
        if slot.fill == GROWING:
            lowest = min(lowest, slot.busiest_bytes_per_s)
    return lowest


@part
def _level_that_fills(network: FlowNetwork, slots: Slots, link: Record) -> float:
    """Return the level at which the growing flows fill a link; infinite if none grows. [B/s]"""
    left_bytes_per_s, growth = link.bandwidth_bytes_per_s, 0.0
    n = link.first
    while n >= 0:  # oldest first: the order of the sums is part of the result
        node = network.nodes[n]
        slot = slots[node.slot]
        if slot.fill == GROWING:
            growth += node.bytes_per_s / slot.busiest_bytes_per_s
        else:
            left_bytes_per_s -= slot.fill * node.bytes_per_s
        n = node.next
    return left_bytes_per_s / growth if growth > 0.0 else np.inf


@part
def _freeze(network: FlowNetwork, slots: Slots, first: int, level: float) -> int:
    """Freeze the flows of a full link at a level and return how many were growing."""
    frozen, n = 0, first
    while n >= 0:
        slot = slots[network.nodes[n].slot]
        if slot.fill == GROWING:
            slot.fill = min(1.0, level / slot.busiest_bytes_per_s)
            frozen += 1
        n = network.nodes[n].next
    return frozen


@part
def _counted_share(network: FlowNetwork, slots: Slots, slot: int) -> float:
    """Return 1 over the number of flows on a flow's most loaded link.

    A link has room for one and is asked for as many as there are on it (`prune.flows_under`).
    """
    share = 1.0
    for n in range(slots[slot].nodes, slots[slot].nodes_end):
        link = network.links[network.nodes[n].link]
        if link.crowded:
            share = min(share, link.bandwidth_bytes_per_s / _demand(network, link.first))
    return share


@part
def _demand(network: FlowNetwork, first: int) -> float:
    demand_bytes_per_s, n = 0.0, first
    while n >= 0:
        demand_bytes_per_s += network.nodes[n].bytes_per_s
        n = network.nodes[n].next
    return demand_bytes_per_s

"""Double binary trees between domains, chains within them."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.messages import MessageSchedule, round_of
from wattree.cost.algorithms.registry import Call, algorithm


@algorithm("tree", "all_reduce")
def tree(call: Call) -> MessageSchedule:
    """Return two complementary trees, each with half of the data, up and down, pipelined [1, 2].

    A leaf of one tree is an inner node of the other, so that no domain sends much more than the
    data once each way.

    References:
        [1] P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
            reduction and scan", Parallel Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001.
        [2] S. Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", NVIDIA
            developer blog, 2019.
    """
    members = call.group.members()
    channels = min(map(len, members)) if len(members) > 1 else 1
    trees = 2 if len(members) > 1 else 1
    edges = [
        _edges(members, channel=channel, second=bool(number))
        for channel in range(channels)
        for number in range(trees)
    ]
    child, parent, hop = (np.concatenate(part) for part in zip(*edges, strict=True))
    chunk = np.repeat(np.arange(len(edges)), [len(each[0]) for each in edges])
    up = round_of(child, parent, base=chunk, period=1, hop=hop, reduces=True)
    down = round_of(parent, child, base=chunk, period=1, hop=hop.max() - hop)
    owner = np.zeros(len(edges), dtype=np.int64)
    return call.schedule("tree", owner, (up, down), pipelined=True)


def binary_tree_parents(nodes: int, *, second: bool = False) -> Integers:
    """Return the parent of each node in NCCL's binary tree, -1 for its root.

    Odd numbers are the leaves; a parent clears the lowest set bit and sets the next. The second
    tree is the first one mirrored, or for an odd number of nodes moved by one.
    """
    number = np.arange(nodes)
    lowest = number & -number
    parent = (number ^ lowest) | (lowest << 1)
    parent = np.where(parent >= nodes, number ^ lowest, parent)
    parent[0] = -1
    if not second or nodes < 2:
        return parent
    if nodes % 2 == 0:
        mirrored = parent[::-1]
        return np.where(mirrored < 0, -1, nodes - 1 - mirrored)
    moved = np.roll(parent, 1)
    return np.where(moved < 0, -1, (moved + 1) % nodes)


def _edges(
    members: list[Integers], *, channel: int, second: bool
) -> tuple[Integers, Integers, Integers]:
    """Return child, parent and hop of every edge, hops counted upwards from the leaves."""
    parents = binary_tree_parents(len(members), second=second)
    places = [channel % len(each) for each in members]
    longest = max(map(len, members))
    child, parent, hop = [], [], []
    for each, place in zip(members, places, strict=True):
        chain = np.roll(each, -place)
        child.append(chain[1:])
        parent.append(chain[:-1])
        hop.append(longest - 1 - np.arange(1, len(chain)))
    leaders = np.array([each[place] for each, place in zip(members, places, strict=True)])
    below = np.flatnonzero(parents >= 0)
    child.append(leaders[below])
    parent.append(leaders[parents[below]])
    hop.append(longest - 1 + _heights(parents)[below])
    return np.concatenate(child), np.concatenate(parent), np.concatenate(hop)


def _heights(parents: Integers) -> Integers:
    """Return the longest path down from each node."""
    height = np.zeros(len(parents), dtype=np.int64)
    below = np.flatnonzero(parents >= 0)
    while True:
        raised = height.copy()
        np.maximum.at(raised, parents[below], height[below] + 1)
        if np.array_equal(raised, height):
            return height
        height = raised

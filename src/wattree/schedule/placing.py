"""Assigns nodes to each task of a schedule and finds tasks that share uplinks of leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.schedule.problem import Problem, TaskStart

#: Nodes of each task, by its number.
Nodes = Mapping[int, tuple[int, ...]]


def placed(problem: Problem, starts: Sequence[TaskStart], leaf_nodes: int) -> Nodes:
    """Return the nodes of each task: in one leaf if it fits, else in as few leaves as possible.

    Any nodes that are free will do, as the schedule never takes more than there are.
    """
    until = [0] * problem.nodes
    found: dict[int, tuple[int, ...]] = {}
    for start in sorted(starts, key=lambda each: (each.slot, each.task)):
        way = problem.way(start)
        free: dict[int, list[int]] = {}
        for node, slot in enumerate(until):
            if slot <= start.slot:
                free.setdefault(node // leaf_nodes, []).append(node)
        chosen = _chosen(list(free.values()), way.nodes)
        for node in chosen:
            until[node] = start.slot + problem.slots_of(way)
        found[start.task] = tuple(sorted(chosen))
    return found


def _chosen(leaves: list[list[int]], count: int) -> list[int]:
    """Return nodes of the fullest leaf that fits all, or of the emptiest leaves."""
    room = [leaf for leaf in leaves if len(leaf) >= count]
    if room:
        return min(room, key=len)[:count]
    chosen: list[int] = []
    for leaf in sorted(leaves, key=len, reverse=True):
        chosen += leaf[: count - len(chosen)]
    assert len(chosen) == count, "the schedule takes more nodes than there are"
    return chosen


def meeting(
    problem: Problem, starts: Sequence[TaskStart], nodes: Nodes, leaf_nodes: int
) -> dict[int, tuple[int, ...]]:
    """Return, for each task that spans leaves, the largest set of tasks that share its uplinks.

    Args:
        nodes: As `placed` returns them.
    """
    leaves = {task: {node // leaf_nodes for node in own} for task, own in nodes.items()}
    spans = {
        s.task: (s.slot, s.slot + problem.slots_of(problem.way(s)))
        for s in starts
        if len(leaves[s.task]) > 1
    }
    found = {}
    for task, (first, end) in spans.items():
        others = [t for t in spans if t != task and leaves[t] & leaves[task]]
        moments = [first, *(spans[t][0] for t in others if first <= spans[t][0] < end)]
        at_once = [
            tuple(t for t in others if spans[t][0] <= moment < spans[t][1]) for moment in moments
        ]
        found[task] = max(at_once, key=len)
    return found

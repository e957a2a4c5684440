"""Explains why a graph stopped before its end: the tasks that are stuck and what they wait for."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph

_SHOWN = 12  # waits of a cycle, or stuck tasks: more would not be read


def halt_error(graph: ExecutionGraph, started: Flags, ended: Flags) -> SimulationError:
    """Return the error that names the stuck tasks: running without progress, or waiting in a cycle.

    Args:
        started, ended: Whether each task came to its start and its end, `(T,)`; at least one did
            not end.
    """
    resting = np.flatnonzero(started & ~ended)
    if len(resting):
        return _standstill_error(graph, resting, waiting=int((~started).sum()))
    return _deadlock_error(graph, ended)


def _standstill_error(graph: ExecutionGraph, resting: Integers, *, waiting: int) -> SimulationError:
    tasks = [f"{_label(graph, task)}{_surroundings(graph, task)}" for task in resting[:_SHOWN]]
    return SimulationError(
        f"no progress: {len(resting)} of {graph.tasks} tasks have started and never end: "
        f"{', '.join(tasks)}{_more(resting)}; {waiting} more wait for them; their rate is 0 or no "
        "number, or they end after more seconds than a number holds; look at the bandwidths, "
        "rates and times that they are given"
    )


def _surroundings(graph: ExecutionGraph, task: int) -> str:
    """Return what sets a task's rate: its work and its load on each link."""
    flows = slice(*graph.flow_offsets[task : task + 2])
    asked = [
        f"{width:g} of {graph.link_bandwidth_bytes_per_s[link]:g} B/s of '{graph.link_names[link]}'"
        for link, width in zip(graph.flow_links[flows], graph.flow_bytes_per_s[flows], strict=True)
    ]
    what = [f"{graph.latency_s[task]:g} s + {graph.work_s[task]:g} s", *asked[:_SHOWN]]
    return f" ({', '.join(what)})"


def _deadlock_error(graph: ExecutionGraph, ended: Flags) -> SimulationError:
    stuck = np.flatnonzero(~ended)
    names = ", ".join(_label(graph, task) for task in stuck[:_SHOWN])
    return SimulationError(
        f"deadlock: {len(stuck)} of {graph.tasks} tasks never start: {names}{_more(stuck)}; "
        f"each of these waits for the next: {_cycle(graph, ended)}; "
        "remove a dependency or let the streams agree on one order"
    )


def _more(tasks: Integers) -> str:
    return f" and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""


def _label(graph: ExecutionGraph, task: int) -> str:
    return f"'{graph.names[graph.name_ids[task]]}' (task {task})"


def _cycle(graph: ExecutionGraph, ended: Flags) -> str:
    """Return a cycle of waits. Each stuck task waits for another, so walking back finds one."""
    blocker = _blockers(graph, ended)
    task, reason = int(np.flatnonzero(~ended)[0]), ""
    walked: dict[int, str] = {}
    while task not in walked:
        waiting = task
        task, reason = blocker[task]
        walked[waiting] = reason
    waits = list(walked.items())[list(walked).index(task) :]
    steps = [f"{_label(graph, waiting)} ({reason})" for waiting, reason in waits[:_SHOWN]]
    rest = [f"… {len(waits) - _SHOWN} more"] if len(waits) > _SHOWN else []
    return " → ".join([*steps, *rest, _label(graph, task)])


def _blockers(graph: ExecutionGraph, ended: Flags) -> dict[int, tuple[int, str]]:
    """Return one unfinished task that each unfinished task waits for, and why it waits."""
    blocker: dict[int, tuple[int, str]] = {}
    holder: dict[int, int] = {}
    for task in map(int, np.flatnonzero(~ended)):
        for stream in graph.stream_ids[slice(*graph.stream_offsets[task : task + 2])]:
            if stream in holder:
                rank_class = graph.class_names[graph.stream_class[stream]]
                blocker.setdefault(
                    task, (holder[stream], f"next on stream {stream} of {rank_class} after")
                )
            holder[stream] = task
    for task in map(int, np.flatnonzero(~ended)):
        for successor in graph.successors[slice(*graph.successor_offsets[task : task + 2])]:
            blocker[int(successor)] = (task, "depends on")
    return blocker

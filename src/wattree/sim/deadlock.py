"""Why a graph came to a halt before its end, said so that the cycle can be found and broken."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph

__all__ = ["deadlock_error"]

_SHOWN = 12  # waits of a cycle, or stuck tasks: more would not be read


def deadlock_error(graph: ExecutionGraph, ended: NDArray[np.bool_]) -> SimulationError:
    """Return the error that names tasks that never started and a cycle among them.

    Args:
        graph: What was played.
        ended: Whether each task came to its end, `(T,)`; at least one did not.
    """
    stuck = np.flatnonzero(~ended)
    names = ", ".join(_label(graph, int(task)) for task in stuck[:_SHOWN])
    more = f" and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
    return SimulationError(
        f"deadlock: {len(stuck)} of {graph.tasks} tasks never start: {names}{more}; "
        f"each of these waits for the next: {_cycle(graph, ended)}; "
        "remove a dependency or let the streams agree on one order"
    )


def _label(graph: ExecutionGraph, task: int) -> str:
    return f"'{graph.names[graph.name_ids[task]]}' (task {task})"


def _cycle(graph: ExecutionGraph, ended: NDArray[np.bool_]) -> str:
    """Return a cycle of waits. Every stuck task waits for a stuck one, so walking back meets it."""
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


def _blockers(graph: ExecutionGraph, ended: NDArray[np.bool_]) -> dict[int, tuple[int, str]]:
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

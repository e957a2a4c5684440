"""What a step would take were its communication wholly hidden, or wholly exposed.

The two frame what the executor simulates: their distance is what overlap is worth in a job, and
what a factor in its place would have to guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattree.accounts.breakdown import busy_spans, covered_s, tasks_by_class
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import execute


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Step times at the two ends. [s]

    Attributes:
        hidden_s: No collective and no transfer takes any time.
        exposed_s: None runs alongside computation of a rank that takes part: the step without
            mutual slowdown, and the time that the rank with most of it computed and communicated at
            once.
    """

    hidden_s: float
    exposed_s: float


def exposure(graph: ExecutionGraph) -> Exposure:
    """Play a graph at both ends.

    Dependencies, streams and sharing of links stay as they are. What `exposed_s` adds up is done
    one after the other by one rank; what others wait for meanwhile is not followed.

    Raises:
        SimulationError: The graph cannot be executed.
    """
    communicates = (graph.kind == TaskKind.COLLECTIVE) | (graph.kind == TaskKind.TRANSFER)
    silent = replace(
        graph,
        latency_s=np.where(communicates, 0.0, graph.latency_s),
        work_s=np.where(communicates, 0.0, graph.work_s),
    )
    trace = execute(graph, mutual_slowdown=False)
    at_once_s = 0.0
    for tasks in tasks_by_class(trace, len(graph.class_ranks)):
        computing = busy_spans(trace, tasks[graph.kind[tasks] == TaskKind.COMPUTE])
        communicating = busy_spans(trace, tasks[communicates[tasks]])
        of_one, of_either = covered_s([computing, communicating])
        of_other = covered_s([communicating])[0]
        at_once_s = max(at_once_s, float(of_one + of_other - of_either))
    return Exposure(
        hidden_s=execute(silent, mutual_slowdown=False).makespan_s,
        exposed_s=trace.makespan_s + at_once_s,
    )

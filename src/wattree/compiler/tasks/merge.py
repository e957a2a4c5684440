"""Pass 5b: merge undisturbed runs of compute tasks.

Between two points where communication starts from, or ends into, the compute stream, its tasks
run back to back whatever else happens, so one task with the sum of their work gives the same
times. Energy is not the same: a device's limit then applies to the mean power of a run instead of
to each operator's, so the energy of a merged graph is up to some percent higher. Validation and
calibration simulate merged graphs; what is shown to people keeps every operator.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers
from wattree.compiler.tasks.table import TaskTable
from wattree.distinct import distinct
from wattree.graph import OperatorClass, TaskKind
from wattree.lowering.streams import Stream

_SUMMED = ("work_s", "flop", "traffic_bytes")


def merged(table: TaskTable) -> TaskTable:
    """Return `table` with every run of undisturbed compute tasks as one task."""
    tasks = table.tasks
    if not len(tasks):
        return table
    leader = _leaders(table)
    kept = np.flatnonzero(leader == np.arange(len(tasks)))
    number = np.empty(len(tasks), dtype=np.int64)
    number[kept] = np.arange(len(kept))
    number = number[leader]
    result = tasks[kept].copy()
    for name in _SUMMED:
        result[name] = np.bincount(number, weights=tasks[name], minlength=len(kept))
    mixed = number[tasks["operator_class"] != result["operator_class"][number]]
    result["operator_class"][mixed] = OperatorClass.OPERATORS
    worst = _merge_memory(tasks, number, result)
    edges = number[table.edges]
    edges = distinct(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return TaskTable(
        tasks=result,
        edges=edges,
        entries=tuple(sorted({int(number[entry]) for entry in table.entries})),
        exit=int(number[table.exit]) if table.exit >= 0 else -1,
        ledger=_merged_ledger(table.ledger, number, worst),
    )


def _leaders(table: TaskTable) -> Integers:
    """Return for each task the first task of its run, or itself if it is not in a run."""
    tasks = table.tasks
    in_order = tasks["stream"] == Stream.COMPUTE
    compute = in_order & (tasks["kind"] == TaskKind.COMPUTE)
    before, after = table.edges[:, 0], table.edges[:, 1]
    waits = np.zeros(len(tasks), dtype=bool)  # for something that is not compute
    waits[after[~compute[before]]] = True
    waits[list(table.entries)] = True
    feeds = np.zeros(len(tasks), dtype=bool)
    feeds[before[~compute[after]]] = True
    if table.exit >= 0:
        feeds[table.exit] = True
    leader = np.arange(len(tasks))
    for earlier, task in pairwise(np.flatnonzero(in_order)):
        same = tasks["phase"][earlier] == tasks["phase"][task]
        same = same and compute[earlier] and compute[task]
        if same and not waits[task] and not feeds[earlier]:
            leader[task] = leader[earlier]
    return leader


def _merge_memory(tasks: NDArray[np.void], number: Integers, result: NDArray[np.void]) -> Integers:
    """Let each run allocate its internal peak and free the surplus, in place.

    Returns the task of each run that reaches its peak.
    """
    level = np.zeros(len(result))
    peak = np.zeros(len(result))
    worst = np.full(len(result), -1)
    for index, run in enumerate(number):
        level[run] += tasks["alloc_bytes"][index]
        if level[run] > peak[run]:
            peak[run], worst[run] = level[run], index
        level[run] -= tasks["free_bytes"][index]
    result["alloc_bytes"] = peak
    result["free_bytes"] = peak - level
    return worst


def _merged_ledger(ledger: NDArray[np.void], number: Integers, worst: Integers) -> NDArray[np.void]:
    """Return the ledger of the runs: a run starts with the tensors of its tasks at its peak."""
    if not len(ledger):
        return ledger
    result = ledger.copy()
    result["task"] = number[ledger["task"]]
    at_peak = worst[result["task"]]
    result["at_end"] = np.where(
        ledger["at_end"], ledger["task"] >= at_peak, ledger["task"] > at_peak
    )
    return result

"""Tasks of the input pipeline: reads, workers and copies of a step.

One step of many is compiled, in which nothing begins cold. Storage, workers and copies each do
their share of a step, all at once on batches that are needed later, so their tasks wait for each
other as little as for the step's own work, and nothing in it waits for them; but it is over when
all of them are. In steady state the step so takes as long as the slowest of them, if its own work
does not take longer.
Copies out of pageable memory are no part of that: computation waits for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.tasks.table import NO_TASKS, TASK
from wattree.cost.loading import copy_bytes_per_s, storage_bytes_per_s
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.loading import Loading
from wattree.lowering.streams import CATEGORIES, Copy, Stream

_INPUT = CATEGORIES.index("input")
Names = Callable[[str], int]


def input_ahead(loading: Loading, count: int, name: Names) -> NDArray[np.void]:
    """Return the input tasks concurrent with a step's work, for so many micro-batches."""
    parts = loading.times_s()
    rows = [_read(loading, parts["storage"], name), _workers(parts, name)]
    if loading.loader.pinned:
        rows.append(_copy(loading, parts["copies"], name, Phase.PREFETCH))
    if "decoder" in parts:
        rows.append(_host(name("input.decode on device"), Stream.DECODER, parts["decoder"]))
    rows = [row for row in rows if row["work_s"][0] > 0]
    if not rows:
        return NO_TASKS
    tasks = np.tile(np.concatenate(rows), count)
    tasks["micro_batch"] = np.repeat(np.arange(count), len(rows))
    return tasks


def input_copies(loading: Loading, count: int, name: Names) -> NDArray[np.void]:
    """Return the copies that computation waits for, one per micro-batch."""
    if loading.loader.pinned or not loading.loader.copied_bytes:
        return NO_TASKS
    copies_s = loading.times_s()["copies"]
    return np.tile(_copy(loading, copies_s, name, Phase.MATERIALS), count)


def _read(loading: Loading, shared_s: float, name: Names) -> NDArray[np.void]:
    size = loading.device_samples * loading.loader.sample_bytes
    alone_s = size / storage_bytes_per_s(loading.loader, loading.node)
    task = _moving(name("input.read"), Stream.STORAGE, size / loading.ranks, Phase.PREFETCH)
    task["copy"] = Copy.FROM_STORAGE if loading.simulates_links else Copy.NONE
    task["work_s"] = alone_s if loading.simulates_links else shared_s
    return task


def _workers(parts: Mapping[str, float], name: Names) -> NDArray[np.void]:
    # Workers wait for reads and for cores; with more of them than cores, these decide.
    busy_s = max(parts["workers"], parts["cores"])
    return _host(name("input.decode"), Stream.WORKERS, busy_s)


def _copy(loading: Loading, shared_s: float, name: Names, phase: Phase) -> NDArray[np.void]:
    size = loading.device_samples * loading.loader.copied_bytes
    task = _moving(name("input.copy"), Stream.INPUT_COPY, size / loading.ranks, phase)
    task["copy"] = Copy.FROM_HOST if loading.simulates_links else Copy.NONE
    alone_s = size / copy_bytes_per_s(loading.loader, loading.node)
    task["work_s"] = alone_s if loading.simulates_links else shared_s
    task["traffic_bytes"] = size
    return task


def _host(name: int, stream: int, work_s: float) -> NDArray[np.void]:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, stream, -1
    task["phase"], task["stage"] = Phase.PREFETCH, StageLabel.MATERIALS
    task["name"], task["work_s"] = name, work_s
    task["operator_class"] = OperatorClass.PREPARING
    return task


def _moving(name: int, stream: int, size_bytes: float, phase: Phase) -> NDArray[np.void]:
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.TRANSFER, stream, -1
    task["phase"], task["stage"] = phase, StageLabel.MATERIALS
    task["category"], task["name"], task["wire_bytes"] = _INPUT, name, size_bytes
    is_read = stream == Stream.STORAGE
    task["operator_class"] = OperatorClass.READING if is_read else OperatorClass.COPYING
    return task

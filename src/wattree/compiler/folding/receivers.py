"""Pass 11a: the receivers of the transfers of a stage's classes, and their links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiler.folding.kernels import Receivers
from wattree.compiler.folding.stage_classes import StageClasses, TransferCosts
from wattree.compiler.folding.task_costs import BY_CLASS
from wattree.compiler.folding.task_instances import TaskInstances

#: How far the stage lies that gets the transfers of `BY_CLASS`.
HEADINGS = (1, -1, 0)


def peers_of(stage: StageClasses, heading: int) -> Integers:
    """Return the classes that those of a stage send to, counted from their stage's first."""
    if heading:
        return stage.next_class if heading > 0 else stage.previous_class
    none = np.zeros((1, len(stage.ranks)), dtype=np.int64)
    return none if stage.mirror_class is None else stage.mirror_class


def peers(classes: Sequence[StageClasses], heading: int) -> Integers:
    """Return the same for all stages, `(P, C)`; -1 for none."""
    return _side_by_side([peers_of(stage, heading) for stage in classes], -1)


def receivers(
    tasks: TaskInstances,
    loads: Sequence[str],
    by_class: Floats,
    twins: Floats,
    pipelines: Sequence[int],
) -> Receivers:
    """Return the receivers of the classes' transfers.

    Exchanges with the mirror stage go both ways at once, as a collective does: a class's own links
    stand for the peer's.

    Args:
        loads: Kind of load of each link and direction.
        by_class: What the classes send per byte, `(rows, D, C)`.
        twins: Ranks that one class has on one link, `(D, C)`.
        pipelines: Stages of each job.
    """
    base, count = tasks.class_base[:-1], np.diff(tasks.class_base)
    ends = np.cumsum(pipelines)[:-1]
    ahead, behind = (
        np.concatenate([np.roll(stages, by) for stages in np.split(base, ends)]) for by in (-1, 1)
    )
    rows = [
        _over_all(peers(tasks.classes, heading), np.repeat(stages, count))
        for heading, stages in zip(HEADINGS, (ahead, behind), strict=False)
    ]
    rows.append(np.arange(int(tasks.class_base[-1]))[None])
    most = max(map(len, rows))
    found = np.stack([_padded(row, most, -1) for row in rows])
    brought = np.repeat(by_class[:, None], most, axis=1)
    flows = np.swapaxes(twins[:, np.maximum(found, 0)], 0, 1).swapaxes(1, 2)
    flows = np.ascontiguousarray(flows)
    start = 0
    for stage in tasks.classes:
        own = slice(start, start := start + len(stage.ranks))
        for row, name in enumerate(BY_CLASS):
            costs: TransferCosts | None = getattr(stage, name)
            if costs is None or costs.inward is None or costs.flows is None:
                continue
            for link, load in enumerate(loads):
                if load in costs.inward:
                    width = len(costs.inward[load])
                    brought[row, :width, link, own] = costs.inward[load]
                    flows[row, :width, link, own] = costs.flows[load]
    return Receivers(peer=found, brought=brought, flows=flows)


def _over_all(of_stage: Integers, first: Integers) -> Integers:
    return np.where(of_stage < 0, -1, of_stage + first)


def _side_by_side(parts: Sequence[NDArray[Any]], missing: int) -> Integers:
    most = max(len(part) for part in parts)
    return np.concatenate([_padded(part, most, missing) for part in parts], axis=1)


def _padded(rows: NDArray[Any], count: int, missing: int) -> NDArray[Any]:
    if len(rows) == count:
        return rows
    return np.pad(rows, ((0, count - len(rows)), (0, 0)), constant_values=missing)

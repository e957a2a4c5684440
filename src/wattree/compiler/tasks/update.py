"""Tasks of the optimizer: an update on the device, or on the host with its copies both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.tasks.copies import copy_task
from wattree.compiler.tasks.table import TASK
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.movement import Movement
from wattree.lowering.storage import Storage
from wattree.lowering.streams import CATEGORIES, GRADIENTS, Stream

_PARAMETERS, _OPTIMIZER = map(CATEGORIES.index, ("parameters", "optimizer"))

Names = Callable[[str], int]


def update_tasks(
    storages: Sequence[Storage], moves: Movement, name: Names
) -> list[NDArray[np.void]]:
    """Return the update of blocks, one task after another.

    On the device, one pass over memory. On the host, one pass over the memory that holds the
    state, then a copy of the updated parameters back, unless they wait there too. What does not
    outlast a step of the gradients goes when a device has updated, after what the update needed.

    Args:
        name: String → number.
    """
    elements = float(sum(storage.updated_elements[0] for storage in storages))
    traffic = moves.update_traffic_bytes(elements, _first_rank(storages, "wider_state"))
    task = np.zeros(1, TASK)
    task["axes"], task["micro_batch"] = -1, -1
    task["phase"], task["stage"] = Phase.OPTIMIZER, StageLabel.COMPUTING
    task["name"], task["operator_class"] = name("optimizer"), OperatorClass.OPTIMIZER
    tier = moves.offload.optimizer
    if tier is None:
        task["kind"], task["stream"] = TaskKind.COMPUTE, Stream.COMPUTE
        tier2 = 0.0
        if moves.tier2_offload.tables is not None:  # of which the device updates all rows itself
            tier2 = moves.update_traffic_bytes(_first_rank(storages, "tier2_elements"), 0.0)
        task["work_s"] = traffic / moves.memory_bytes_per_s + tier2 / moves.tier2_bytes_per_s
        task["traffic_bytes"] = traffic + tier2
        task["flop"] = flop = _first_rank(storages, "update_flop")
        task["work_s"] += moves.update_products_s(flop)
        dropped = task
        if moves.update_working_bytes:  # on every rank, though some may update nothing
            working = elements * moves.update_working_bytes
            task["category"], task["alloc_bytes"], task["free_bytes"] = _OPTIMIZER, working, working
            dropped = _instant(name("gradients.drop"), Phase.OPTIMIZER)
        dropped["category"], dropped["free_bytes"] = GRADIENTS, _passing(storages, moves)
        return [task] if dropped is task else [task, dropped]
    rate = moves.tiers[tier].update_bytes_per_s
    assert rate is not None
    task["kind"], task["stream"] = TaskKind.HOST, Stream.HOST_UPDATE
    task["work_s"] = traffic / rate
    if moves.offload.parameters is not None:
        return [task]
    back = copy_task(
        moves.tiers[tier],
        elements * moves.parameter_bytes,
        out=False,
        name=name("parameters.copy in"),
        phase=Phase.OPTIMIZER,
        category=_PARAMETERS,
    )
    return [task, back]


def table_updates(
    storages: Sequence[Storage], moves: Movement, name: Names
) -> list[NDArray[np.void]]:
    """Return the host's update of rows of offloaded tables, if there are any."""
    tier2 = [float(s.tier2_elements[0]) for s in storages if s.tier2_elements is not None]
    if not tier2 or moves.offload.tables is None:
        return []
    rate = moves.tiers[moves.offload.tables].update_bytes_per_s
    assert rate is not None
    task = np.zeros(1, TASK)
    task["axes"], task["micro_batch"] = -1, -1
    task["phase"], task["stage"] = Phase.OPTIMIZER, StageLabel.COMPUTING
    task["name"], task["operator_class"] = name("tables.update"), OperatorClass.OPTIMIZER
    task["kind"], task["stream"] = TaskKind.HOST, Stream.HOST_UPDATE
    task["work_s"] = moves.update_traffic_bytes(sum(tier2), 0.0) / rate
    return [task]


def gradient_copies(
    storages: Sequence[Storage], moves: Movement, name: Names, *, first: bool
) -> list[NDArray[np.void]]:
    """Return the copy of reduced gradients to the host for updates; it frees the device's.

    Args:
        first: Of the step; to others the sum so far is copied in first, if devices add it up.
    """
    assert moves.offload.optimizer is not None
    tier = moves.tiers[moves.offload.optimizer]

    def copied(some: Sequence[Storage], *, out: bool) -> NDArray[np.void]:
        size = float(sum(storage.updated_elements[0] for storage in some)) * moves.gradient_bytes
        way = name(f"gradients.copy {'out' if out else 'in'}")
        task = copy_task(tier, size, out=out, name=way, phase=Phase.OPTIMIZER, category=GRADIENTS)
        task["micro_batch"] = -1
        return task

    task = copied(storages, out=True)
    task["free_bytes"] = _passing(storages, moves)
    often = [storage for storage in storages if moves.sends_often(storage)]
    sums_here = bool(often) and moves.accumulates == "both" and not first
    return [copied(often, out=False), task] if sums_here else [task]


def gradients_taken(storage: Storage, moves: Movement, name: Names) -> NDArray[np.void]:
    """Return the zero-time task at which a block's gradients are allocated."""
    task = _instant(name("gradients.take"), Phase.BACKWARD)
    task["category"], task["alloc_bytes"] = GRADIENTS, moves.passing_gradients(storage)
    return task


def _instant(name: int, phase: Phase) -> NDArray[np.void]:
    """Return a task of no time."""
    task = np.zeros(1, TASK)
    task["kind"], task["stream"], task["axes"] = TaskKind.HOST, Stream.HOST, -1
    task["phase"], task["stage"] = phase, StageLabel.COMPUTING
    task["name"], task["operator_class"] = name, OperatorClass.HOST
    return task


def _first_rank(storages: Sequence[Storage], name: str) -> float:
    """Return the sum of a figure that not all blocks have."""
    every = (getattr(storage, name) for storage in storages)
    return sum(float(each[0]) for each in every if each is not None)


def _passing(storages: Sequence[Storage], moves: Movement) -> float:
    return sum(moves.passing_gradients(storage) for storage in storages)

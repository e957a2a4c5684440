"""Tasks of copies between a device and the memory behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.tasks.table import TASK
from wattree.graph import OperatorClass, Phase, StageLabel, TaskKind
from wattree.lowering.streams import Copy, Stream
from wattree.lowering.tiers import Tier

#: Tier → the copies to it and from it.
COPIES = {"host": (Copy.TO_HOST, Copy.FROM_HOST), "cxl": (Copy.TO_CXL, Copy.FROM_CXL)}


def copy_task(
    tier: Tier, size_bytes: float, *, out: bool, name: int, phase: Phase, category: int
) -> NDArray[np.void]:
    """Return the task of a copy out of or into the device. It allocates and frees nothing."""
    task = np.zeros(1, TASK)
    task["kind"], task["axes"] = TaskKind.TRANSFER, -1
    task["stream"] = Stream.COPY_OUT if out else Stream.COPY_IN
    task["copy"] = COPIES[tier.name][0 if out else 1]
    task["phase"], task["stage"] = phase, StageLabel.COMMUNICATING
    task["category"], task["name"] = category, name
    task["operator_class"] = OperatorClass.OFFLOAD
    task["latency_s"] = tier.latency_s
    task["work_s"] = size_bytes / tier.copy_bytes_per_s
    task["wire_bytes"] = task["traffic_bytes"] = size_bytes
    return task

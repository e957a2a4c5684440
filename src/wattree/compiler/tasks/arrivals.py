"""Collectives of a stage's ranks on the parts that ranks of another mesh send them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.compiler.tasks.chunk import ChunkContext, sync_tasks
from wattree.compiler.tasks.table import TaskTable, joined
from wattree.graph import OperatorClass, Phase
from wattree.lowering.mesh_borders import Arrival
from wattree.lowering.streams import Stream


def arrival_table(
    arrivals: Sequence[Arrival], context: ChunkContext, *, backward: bool
) -> TaskTable | None:
    """Return the collectives of one micro-batch, one after another; None if there are none.

    They wait on the stream of transfers: what the blocks exchange meanwhile need not wait for them.
    """
    parts = [
        sync_tasks(
            arrival.kind,
            arrival.axes,
            arrival.size_bytes,
            context,
            label="stage boundary",
            stream=Stream.SEND_PREVIOUS if backward else Stream.SEND_NEXT,
        )
        for arrival in arrivals
    ]
    if not any(len(part) for part in parts):
        return None
    tasks = joined(parts)
    tasks["phase"] = Phase.BACKWARD if backward else Phase.FORWARD
    tasks["operator_class"] = OperatorClass.PIPELINE_TRANSFER
    chain = np.array([(i, i + 1) for i in range(len(tasks) - 1)], dtype=np.int64).reshape(-1, 2)
    return TaskTable(tasks=tasks, edges=chain, exit=len(tasks) - 1)

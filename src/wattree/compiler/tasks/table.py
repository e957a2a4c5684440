"""Tables of tasks under construction: one record per task, edges as index pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats, Integers
from wattree.compiler.tasks.ledger import NO_ENTRIES, Numbering
from wattree.lowering.streams import COPY_LOADS

#: One task of one rank class. `axes`: index of the mesh-axes set a collective runs over, -1: none.
#: `in_turn`: a collective's ports and network work one after the other, not at the same time.
TASK = np.dtype(
    [
        ("kind", np.int8),
        ("stream", np.int8),
        ("axes", np.int16),
        ("overlaps", np.bool_),
        ("in_turn", np.bool_),
        ("phase", np.int8),
        ("stage", np.int8),
        ("category", np.int8),
        ("copy", np.int8),
        ("operator_class", np.int8),
        ("name", np.int32),
        ("micro_batch", np.int32),
        ("latency_s", np.float64),
        ("work_s", np.float64),
        ("scale_up_bytes", np.float64),
        ("adapter_bytes", np.float64),
        ("uplink_bytes", np.float64),
        ("alloc_bytes", np.float64),
        ("free_bytes", np.float64),
        ("flop", np.float64),
        ("traffic_bytes", np.float64),
        ("wire_bytes", np.float64),
    ]
)


#: No task at all.
NO_TASKS = np.zeros(0, TASK)


#: Of tasks.
Names = Numbering[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTable:
    """Tasks in program order with dependencies among them.

    Attributes:
        tasks: Records of dtype `TASK`.
        edges: Index pairs (before, after), shape `(E, 2)`.
        entries: Tasks that wait for what the table is given.
        exit: Task whose end completes what it hands on; -1 if none.
        prefetch: First parameter gathers, which wait for earlier compute (see `chunk`).
        a_chunk_ahead: They wait for what comes before the first micro-batch of the chunk before.
        tails: Last compute tasks of the last blocks, the very last one at the end.
        stored: Copies out of what blocks keep, in the order of the blocks.
        fetched: Copies in of what was stored; the first one is of the block that was stored last.
        early: Copies in that wait for compute before the table: (copy, how many blocks back).
        ledger: What the bytes of its tasks are made of, dtype `ledger.ENTRY`.
    """

    tasks: NDArray[np.void]
    edges: Integers
    entries: tuple[int, ...] = ()
    exit: int = -1
    prefetch: tuple[int, ...] = ()
    a_chunk_ahead: bool = False
    tails: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()
    fetched: tuple[int, ...] = ()
    early: tuple[tuple[int, int], ...] = ()
    ledger: NDArray[np.void] = field(default_factory=lambda: NO_ENTRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTasks:
    """Tasks of a block's forward and of its backward (with recomputation).

    Attributes:
        forward, backward: Each as a whole.
        input_gradient, weight_gradient: The backward in two pieces, if a schedule asks for them.
        cached: Item and bytes of what forward makes and the end of its chunk frees.
    """

    forward: TaskTable
    backward: TaskTable
    input_gradient: TaskTable | None = None
    weight_gradient: TaskTable | None = None
    cached: tuple[tuple[int, float], ...] = ()

    def changed(self, change: Callable[[TaskTable], TaskTable]) -> BlockTasks:
        """Return the tasks with `change` made to every table."""
        pieces = (self.input_gradient, self.weight_gradient)
        inputs, weights = (None if piece is None else change(piece) for piece in pieces)
        return replace(
            self,
            forward=change(self.forward),
            backward=change(self.backward),
            input_gradient=inputs,
            weight_gradient=weights,
        )


def load_bytes(tasks: NDArray[np.void], load: str) -> Floats:
    """Return the bytes of tasks on links of a kind: a field, or one of `COPY_LOADS`."""
    if load in COPY_LOADS:
        if not tasks["copy"].any():
            return np.zeros(len(tasks))
        return np.where(np.isin(tasks["copy"], COPY_LOADS[load]), tasks["wire_bytes"], 0.0)
    return np.asarray(tasks[load])


def joined(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return the tasks of all parts, concatenated."""
    # As bytes, because numpy copies records field by field.
    return np.frombuffer(bytearray().join([part.tobytes() for part in parts]), TASK)

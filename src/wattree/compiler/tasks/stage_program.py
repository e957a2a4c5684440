"""The result of pass 9: the program of one rank of a pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers
from wattree.compiler.tasks.ledger import Piece


class StageTransfer(NamedTuple):
    """A tensor that one chunk sends another: a micro-batch's output, or its input's gradient."""

    chunk: int
    micro_batch: int
    backward: bool


#: What the copies of a chunk exchange at the step's end: its gradients.
MIRROR = StageTransfer(-1, -1, True)


class Send(NamedTuple):
    """A transfer to another stage.

    Attributes:
        task: The task that sends.
        heading: +1 to the next stage's ranks, -1 to the previous one's, 0 to the mirror's.
        transfer: What the receiver calls it.
    """

    task: int
    stage: int
    heading: int
    transfer: StageTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """Tasks of one rank of a stage, in program order, and the ends of its transfers.

    Attributes:
        records: What its tasks are, each once for all micro-batches, of dtype `TASK`.
        rows: Which of the records each task is, `(T,)`.
        micro_batches: Of each task, `(T,)`; -1 for none.
        edges: Index pairs inside the stage.
        sends: Its transfers to other stages.
        receives: Transfers that it receives → the tasks that wait for them.
        pieces: Its slots' tables with their ledgers.
        levels: The same records with the figures of ranks of every other level: by the tokens of
            their experts, or by the kind of their device and place.
    """

    records: NDArray[np.void]
    rows: Integers
    micro_batches: NDArray[np.int32]
    edges: NDArray[np.int32]
    sends: tuple[Send, ...]
    receives: Mapping[StageTransfer, tuple[int, ...]]
    pieces: tuple[Piece, ...] = ()
    levels: tuple[NDArray[np.void], ...] = ()

    def behind(self, stages: int) -> StageProgram:
        """Return a copy with stage indices shifted by `stages`."""
        if not stages:
            return self
        sends = tuple(send._replace(stage=send.stage + stages) for send in self.sends)
        return replace(self, sends=sends)

"""The tensors alive on a rank when its memory peaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.ledger import MemoryLedger, Piece
from wattree.predict.breakdown import tasks_of
from wattree.predict.moment import Moment, moment_of_start
from wattree.trace import AliveTensors, Trace

__all__ = ["alive_tensors"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: What sums of tens of thousands of sizes may be off by, as a share of what went in.
_ROUNDING = 1e-9


def alive_tensors(trace: Trace, ledger: MemoryLedger, rank_class: int) -> tuple[AliveTensors, ...]:
    """Return what `rank_class` holds at its peak, largest first; the bytes add up to the peak.

    Args:
        trace: A play of the graph.
        ledger: Of the same compilation.
        rank_class: Any class of the graph.
    """
    moment = moment_of_start(trace, int(trace.peak_task[rank_class]))
    tasks = tasks_of(trace, rank_class)
    stage = ledger.stages[int(ledger.stage_of_class[rank_class])]
    found = [
        AliveTensors(**ledger.items[held.item]._asdict(), tensors=held.tensors, bytes=held.bytes)
        for held in stage.holdings
    ]
    found += _passing(stage.pieces, tasks, moment, ledger)
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _passing(
    pieces: Sequence[Piece], tasks: Integers, moment: Moment, ledger: MemoryLedger
) -> list[AliveTensors]:
    """Return what came and has not gone."""
    micro_batches = 1 + max((piece.micro_batch for piece in pieces), default=0)
    shape = len(ledger.items), micro_batches
    held, moved, tensors = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    started, ended = moment.started[tasks], moment.ended[tasks]
    for piece in pieces:
        lines = piece.ledger
        rows = lines["task"] if piece.rows is None else piece.rows[lines["task"]]
        rows = rows + piece.offset
        done = np.where(lines["at_end"], ended[rows], started[rows])
        if not done.any():
            continue
        lines = lines[done]
        item = lines["item"]
        held[:, piece.micro_batch] += np.bincount(item, lines["bytes"], minlength=shape[0])
        moved[:, piece.micro_batch] += np.bincount(item, np.abs(lines["bytes"]), minlength=shape[0])
        tensors[:, piece.micro_batch] += np.bincount(
            item, lines["tensors"], minlength=shape[0]
        ).astype(np.int64)
    alive = held > _ROUNDING * moved
    return [
        AliveTensors(
            **ledger.items[item]._asdict(),
            tensors=int(tensors[item, alive[item]].sum()),
            micro_batches=int(alive[item].sum()),
            bytes=float(held[item, alive[item]].sum()),
        )
        for item in np.flatnonzero(alive.any(axis=1)).tolist()
    ]

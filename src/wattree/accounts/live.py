"""The live tensors on a rank when its memory peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattree.accounts.breakdown import tasks_of
from wattree.accounts.moment import Moment, moment_of_start
from wattree.accounts.reserved import reserved_for
from wattree.arrays import Integers
from wattree.compiler.tasks.ledger import MemoryLedger, Piece
from wattree.errors import UnknownNameError
from wattree.trace import LiveTensors, MemoryUse, Trace

#: What sums of tens of thousands of sizes may be off by, as a share of what went in.
_ROUNDING = 1e-9
#: Kinds that outlive the micro-batch which brings them.
_LASTING = frozenset({"stored", "gathered", "buffer"})
#: The ranks that need most memory.
FULLEST = "fullest"


def with_live_tensors(
    memory: MemoryUse,
    trace: Trace,
    ledger: MemoryLedger,
    *,
    fullest: int,
    allocator: str,
    overhead_bytes: float,
    asked: str | None,
) -> MemoryUse:
    """Return `memory` with the live tensors at the peak of the fullest ranks, or those asked for.

    Args:
        fullest: The class that needs most.
        allocator: Which one holds the tensors.
        overhead_bytes: Memory that the allocator cannot use: context, communicators. [B]
        asked: Name of a rank class, or `FULLEST`; without it, the allocator is not simulated.

    Raises:
        UnknownNameError: No rank class has that name.
    """
    rank_class = fullest if asked in {None, FULLEST} else _class_called(str(asked), trace)
    live = live_tensors(trace, ledger, rank_class)
    return replace(
        memory,
        live=live,
        live_on=trace.graph.class_names[rank_class],
        live_bytes=float(sum(row.bytes for row in live)),
        allocator=None
        if asked is None
        else reserved_for(
            trace,
            ledger,
            rank_class,
            allocator,
            capacity_bytes=memory.capacity_bytes - overhead_bytes,
        ),
    )


def _class_called(name: str, trace: Trace) -> int:
    """Return the fullest rank class with that name, or of the stage with that name.

    The number of ranks may be left out, as in `stage 3.1` for `stage 3.1 (2 ranks)`.
    """
    names = trace.graph.class_names
    short = [known.split(" (")[0] for known in names]
    called = [
        index
        for index, known in enumerate(names)
        if name in {known, short[index], short[index].rsplit(".", 1)[0]}
    ]
    if not called:
        raise UnknownNameError(kind="rank class", name=name, known=[FULLEST, *short])
    return max(called, key=lambda index: float(trace.peak_bytes[index]))


def live_tensors(trace: Trace, ledger: MemoryLedger, rank_class: int) -> tuple[LiveTensors, ...]:
    """Return what `rank_class` holds at its peak, largest first; the bytes add up to the peak.

    Args:
        rank_class: Any class of the graph.
    """
    moment = moment_of_start(trace, int(trace.peak_task[rank_class]))
    tasks = tasks_of(trace, rank_class)
    stage = ledger.stages[int(ledger.stage_of_class[rank_class])]
    found = [
        LiveTensors(**ledger.items[held.item]._asdict(), tensors=held.tensors, bytes=held.bytes)
        for held in stage.holdings
    ]
    found += _passing(stage.pieces, tasks, moment, ledger)
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _passing(
    pieces: Sequence[Piece], tasks: Integers, moment: Moment, ledger: MemoryLedger
) -> list[LiveTensors]:
    """Return the tensors that were allocated and not freed."""
    micro_batches = 1 + max((piece.micro_batch for piece in pieces), default=0)
    shape = len(ledger.items), micro_batches
    held, moved, tensors = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    started, ended = moment.started[tasks], moment.ended[tasks]
    passing = np.array([item.kind not in _LASTING for item in ledger.items], dtype=np.int64)
    for piece in pieces:
        lines = piece.ledger
        rows = lines["task"] if piece.rows is None else piece.rows[lines["task"]]
        rows = rows + piece.offset
        done = np.where(lines["at_end"], ended[rows], started[rows])
        if not done.any():
            continue
        lines = lines[done]
        of = lines["item"], passing[lines["item"]] * piece.micro_batch
        np.add.at(held, of, lines["bytes"])
        np.add.at(moved, of, np.abs(lines["bytes"]))
        np.add.at(tensors, of, lines["tensors"])
    live = held > _ROUNDING * moved
    return [
        LiveTensors(
            **ledger.items[item]._asdict(),
            tensors=int(tensors[item, live[item]].sum()),
            micro_batches=int(live[item].sum()),
            bytes=float(held[item, live[item]].sum()),
        )
        for item in np.flatnonzero(live.any(axis=1)).tolist()
    ]

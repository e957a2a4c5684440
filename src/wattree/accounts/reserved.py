"""Memory reserved by an allocator for one rank: its ledger replayed through a model of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.breakdown import tasks_of
from wattree.arrays import Integers
from wattree.compiler.tasks.ledger import ENTRY, MemoryLedger, StageLedger
from wattree.sim.allocator import CachingAllocator, allocator_policy
from wattree.trace import AllocatorUse, Trace

#: Events of one rank that are executed at most, in order: about half a second of work. Pipelines
#: and accumulated gradients repeat themselves long before.
MOST_EVENTS = 50_000


def reserved_for(
    trace: Trace,
    ledger: MemoryLedger,
    rank_class: int,
    name: str,
    capacity_bytes: float = math.inf,
) -> AllocatorUse:
    """Replay the tensors of one rank class through the allocator called `name`.

    Parameters, gradients and optimizer state come first, one tensor per block and kind. Parameters
    that are gathered live on a stream of their own, as FSDP gathers them.

    Args:
        rank_class: Any class of the graph.
        capacity_bytes: What it can have; beyond that it gives back what it only caches. [B]
    """
    stage = ledger.stages[int(ledger.stage_of_class[rank_class])]
    allocator = CachingAllocator(allocator_policy(name), capacity_bytes)
    level = 0.0
    for held in stage.holdings:
        for _ in range(held.tensors):
            allocator.take(held.bytes / held.tensors)
        level += held.bytes
    peak, executed = level, 0
    lines = _lines(trace, stage, tasks_of(trace, rank_class))
    live: dict[tuple[Any, ...], list[Any]] = {}
    for key, size, stream in _events(lines, ledger):
        executed += 1
        level += size
        if size > 0:
            peak = max(peak, level)
            live.setdefault(key, []).append((size, allocator.take(size, stream)))
        else:
            for block in _ended(live, key, -size):
                allocator.give(block)
    return AllocatorUse(
        name=name,
        tensor_bytes=peak,
        allocated_bytes=float(allocator.peak_allocated),
        reserved_bytes=float(allocator.peak_reserved),
        fragmentation_bytes=allocator.peak_reserved - peak,
        retries=allocator.retries,
        events=executed,
        complete=executed == len(lines),
    )


def _ended(live: dict[tuple[Any, ...], list[Any]], key: tuple[Any, ...], size: float) -> list[Any]:
    """Remove and return the block of that size, or all parts that a tensor was made in."""
    held = live.get(key, [])
    for place, (taken, block) in enumerate(held):
        if taken == size:
            del held[place]
            return [block]
    return [block for _, block in live.pop(key, [])]


_LINE = np.dtype([*ENTRY.descr, ("chunk", np.int64), ("micro_batch", np.int64)])


def _lines(trace: Trace, stage: StageLedger, tasks: Integers) -> NDArray[np.void]:
    """Return all lines of a stage's ledger in the order in which they happen."""
    parts = []
    for piece in stage.pieces:
        part = np.zeros(len(piece.ledger), _LINE)
        for name in ENTRY.names or ():
            part[name] = piece.ledger[name]
        rows = piece.ledger["task"]
        part["task"] = tasks[piece.offset + (rows if piece.rows is None else piece.rows[rows])]
        part["chunk"], part["micro_batch"] = piece.chunk, piece.micro_batch
        parts.append(part)
    lines = np.concatenate(parts) if parts else np.zeros(0, _LINE)
    task, at_end = lines["task"], lines["at_end"]
    start_s, end_s = trace.start_s[task], trace.end_s[task]
    # At one instant ends come first, then starts by task; a task of no time ends as it starts.
    turn = np.where(at_end & (end_s > start_s), 0, 1)
    order = np.lexsort((at_end, task, turn, np.where(at_end, end_s, start_s)))
    return lines[order]


def _events(
    lines: NDArray[np.void], ledger: MemoryLedger
) -> Iterator[tuple[tuple[int, ...], float, str]]:
    """Yield (tensor, bytes taken or given, stream) of the first lines."""
    streams = ["gather" if item.category == "gathered" else "" for item in ledger.items]
    lines = lines[:MOST_EVENTS]
    columns = [lines[name].tolist() for name in ("item", "chunk", "micro_batch", "block", "bytes")]
    for item, chunk, micro_batch, block, size in zip(*columns, strict=True):
        yield (item, chunk, micro_batch, block), size, streams[item]

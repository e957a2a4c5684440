"""Workers that load batches for many steps, event by event: slow, plain, and not ours to reuse.

As PyTorch's loader does it: batch `k` of a rank is made by worker `k mod W`, which gets its number
when batch `k - W x prefetch` is taken. A worker reads a sample, then decodes it, then takes the
next. Reads share the storage of the node and decoders its cores, evenly. Samples take unequal core
time, or all workers would march in step for ever. All ranks end a step together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["Queue", "steady_period_s"]

#: Spread of the core time of samples: half to twice the mean.
_LEAST, _MOST = 0.5, 1.5


@dataclass(frozen=True)
class Queue:
    """A node with its loaders, and what takes their batches."""

    workers: int
    prefetch: int
    samples: int  # of a micro-batch
    micro_batches: int  # of a step
    read_s: float  # of a sample, when no one else reads
    core_s: float  # of a sample, on average
    ranks: int  # on the node
    cores: int
    own_s: float  # of a step without waiting


@dataclass
class _Worker:
    following: int  # its next batch
    batch: int = -1  # in the making
    left: int = 0  # samples of it
    reads: bool = False
    left_s: float = 0.0


@dataclass
class _Rank:
    workers: list[_Worker]
    taken: int = 0
    ready: set[int] = field(default_factory=set)
    free_at: float = 0.0
    is_done: bool = False  # with the step


def steady_period_s(queue: Queue, steps: int = 40, seed: int = 0) -> float:
    """Return the mean time of a step, once nothing is left of the start."""
    draw = random.Random(seed)
    ranks = [_Rank([_Worker(n) for n in range(queue.workers)]) for _ in range(queue.ranks)]
    now, ends = 0.0, list[float]()
    while len(ends) < steps:
        for rank in ranks:
            _begin(queue, rank)
            _take(queue, rank, now)
        if all(rank.is_done and rank.free_at <= now for rank in ranks):
            ends.append(now)
            for rank in ranks:
                rank.is_done = False
            continue
        now += _run(queue, ranks, now, draw)
    half = steps // 2
    return (ends[-1] - ends[half - 1]) / (steps - half)


def _begin(queue: Queue, rank: _Rank) -> None:
    """Let idle workers begin their next batch, if it is open."""
    for worker in rank.workers:
        if worker.batch < 0 and worker.following < rank.taken + queue.workers * queue.prefetch:
            worker.batch, worker.left = worker.following, queue.samples
            worker.reads, worker.left_s = True, queue.read_s
            worker.following += queue.workers


def _take(queue: Queue, rank: _Rank, now: float) -> None:
    """Let a rank take its next micro-batch, if it is there and the one before is done."""
    if rank.is_done or rank.free_at > now or rank.taken not in rank.ready:
        return
    rank.ready.discard(rank.taken)
    rank.taken += 1
    rank.free_at = now + queue.own_s / queue.micro_batches
    rank.is_done = rank.taken % queue.micro_batches == 0
    _begin(queue, rank)


def _run(queue: Queue, ranks: list[_Rank], now: float, draw: random.Random) -> float:
    """Go on to the next event; return how long that takes."""
    busy = [(rank, w) for rank in ranks for w in rank.workers if w.batch >= 0]
    reading = sum(worker.reads for _, worker in busy)
    read = 1.0 / max(reading, 1)
    decode = min(1.0, queue.cores / max(len(busy) - reading, 1))
    until = [worker.left_s / (read if worker.reads else decode) for _, worker in busy]
    until += [rank.free_at - now for rank in ranks if rank.free_at > now]
    span = min(until)
    for rank, worker in busy:
        worker.left_s -= span * (read if worker.reads else decode)
        if worker.left_s > 1e-12:
            continue
        if worker.reads:
            worker.reads = False
            worker.left_s = queue.core_s * draw.uniform(_LEAST, _MOST)
        elif worker.left > 1:
            worker.left, worker.reads, worker.left_s = worker.left - 1, True, queue.read_s
        else:
            rank.ready.add(worker.batch)
            worker.batch = -1
    return span

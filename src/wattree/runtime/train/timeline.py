"""The last steps of all ranks as a `Trace`, the type that simulations make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.graph.assembly import Assembly, Task, graph_of
from wattree.runtime.train.account import RankAccount
from wattree.runtime.train.record import Span
from wattree.trace import Trace

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer": Phase.OPTIMIZER}


class _Task(NamedTuple):
    """What a rank did on one of its streams, on the clock that all ranks began by. [s]"""

    rank: int
    lane: tuple[StreamKind, int]
    name: str
    phase: Phase
    begin_s: float
    end_s: float


def measured_trace(accounts: Sequence[RankAccount]) -> Trace:
    """Return the last measured steps, one rank class for each rank; times from their first.

    Computation is what ran between waits. Collectives last from when they are started until they
    have been waited for; those in flight together are on streams of their own.
    """
    found = [task for account in accounts for task in _tasks(account)]
    first_s = min((task.begin_s for task in found), default=0.0)
    found.sort(key=lambda task: (task.begin_s, task.rank))
    start_s = np.array([task.begin_s - first_s for task in found])
    end_s = np.array([task.end_s - first_s for task in found])
    peaks = np.array([account.peak_bytes for account in accounts])
    return Trace(
        graph=_graph(found, end_s - start_s, accounts, peaks),
        start_s=start_s,
        end_s=end_s,
        peak_bytes=peaks,
        peak_task=np.full(len(accounts), -1, dtype=np.int64),
        events=0,
    )


def _graph(
    found: Sequence[_Task],
    lengths_s: Floats,
    accounts: Sequence[RankAccount],
    peaks: Floats,
) -> ExecutionGraph:
    """Return tasks in order, each on the stream of its lane; nothing of it is simulated."""
    lanes = sorted({(task.rank, task.lane) for task in found})
    streams = {lane: number for number, lane in enumerate(lanes)}
    tasks = [
        Task(
            name=task.name,
            kind=_KINDS[task.lane[0]][0],
            work_s=float(length_s),
            streams=(streams[task.rank, task.lane],),
            phase=task.phase,
            stage=_KINDS[task.lane[0]][1],
        )
        for task, length_s in zip(found, lengths_s, strict=True)
    ]
    return graph_of(
        Assembly(
            tasks=tasks,
            before=[()] * len(tasks),
            stream_kinds=[kind for _, (kind, _) in lanes],
            stream_ranks=[rank for rank, _ in lanes],
            rank_names=[f"rank {account.rank}" for account in accounts],
            categories=("process",),
            static_bytes=peaks,
            static_by_category=peaks[:, None],
        )
    )


_KINDS = {
    StreamKind.COMPUTE: (TaskKind.COMPUTE, StageLabel.COMPUTING),
    StreamKind.COMMUNICATION: (TaskKind.COLLECTIVE, StageLabel.COMMUNICATING),
    StreamKind.HOST: (TaskKind.HOST, StageLabel.MATERIALS),
}


def _tasks(account: RankAccount) -> Iterator[_Task]:
    spans = [span for step in account.steps for span in step]
    phases = [span for span in spans if span.kind == "phase"]
    waits = sorted(
        (span.begin_s, span.end_s) for span in spans if span.kind in {"waiting", "materials"}
    )

    def task(
        kind: StreamKind, span: Span, phase: Phase, times: tuple[float, float], lane: int = 0
    ) -> _Task:
        begin_s, end_s = (time_s - account.origin_s for time_s in times)
        return _Task(account.rank, (kind, lane), span.what, phase, begin_s, end_s)

    for span in phases:
        for times in _between(span, waits):
            yield task(StreamKind.COMPUTE, span, _PHASES[span.what], times)
    in_flight = (span for span in spans if span.kind == "communicating")
    ends: list[float] = []
    for span in sorted(in_flight, key=lambda span: span.begin_s):
        lane = next((n for n, end_s in enumerate(ends) if end_s <= span.begin_s), len(ends))
        ends[lane : lane + 1] = [span.end_s]
        times = (span.begin_s, span.end_s)
        yield task(StreamKind.COMMUNICATION, span, _phase_at(span, phases), times, lane)
    for span in spans:
        if span.kind == "materials":
            yield task(StreamKind.HOST, span, Phase.MATERIALS, (span.begin_s, span.end_s))


def _between(span: Span, waits: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the parts of a phase in which nothing was waited for."""
    at_s = span.begin_s
    for begin_s, end_s in waits:
        if end_s <= at_s or begin_s >= span.end_s:
            continue
        if begin_s > at_s:
            yield at_s, begin_s
        at_s = max(at_s, end_s)
    if at_s < span.end_s:
        yield at_s, span.end_s


def _phase_at(span: Span, phases: Sequence[Span]) -> Phase:
    if span.what == "gradients":
        return Phase.SYNCHRONIZATION
    within = (each for each in phases if each.begin_s <= span.begin_s <= each.end_s)
    found = next(within, None)
    return Phase.SYNCHRONIZATION if found is None else _PHASES[found.what]

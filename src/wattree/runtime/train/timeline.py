"""The last steps of all ranks as a `Trace`, the type that simulations make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.graph.assembly import Assembly, Task, graph_of
from wattree.runtime.train.account import RankAccount
from wattree.runtime.train.record import Span
from wattree.trace import Trace

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer": Phase.OPTIMIZER}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    rank: int
    lane: tuple[StreamKind, int]
    name: str
    phase: Phase
    stage: StageLabel
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
            kind=_KINDS[task.lane[0]],
            work_s=float(length_s),
            streams=(streams[task.rank, task.lane],),
            phase=task.phase,
            stage=task.stage,
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
    StreamKind.COMPUTE: TaskKind.COMPUTE,
    StreamKind.COMMUNICATION: TaskKind.COLLECTIVE,
    StreamKind.HOST: TaskKind.HOST,
}


def _tasks(account: RankAccount) -> Iterator[_Task]:
    spans = [span for step in account.steps for span in step]
    phases = [span for span in spans if span.kind == "phase"]
    waits = sorted(
        (span.begin_s, span.end_s) for span in spans if span.kind in {"waiting", "materials"}
    )
    for span in phases:
        for times in _between(span, waits):
            yield _task(
                account,
                StreamKind.COMPUTE,
                times,
                name=span.what,
                phase=_PHASES[span.what],
                stage=StageLabel.COMPUTING,
            )
    in_flight = (span for span in spans if span.kind == "communicating")
    ends: list[float] = []
    for span in sorted(in_flight, key=lambda span: span.begin_s):
        lane = next((n for n, end_s in enumerate(ends) if end_s <= span.begin_s), len(ends))
        ends[lane : lane + 1] = [span.end_s]
        yield _task(
            account,
            StreamKind.COMMUNICATION,
            (span.begin_s, span.end_s),
            name=span.what,
            phase=_phase_at(span, phases),
            stage=StageLabel.COMMUNICATING,
            lane=lane,
        )
    for span in spans:
        if span.kind == "materials":
            yield _task(
                account,
                StreamKind.HOST,
                (span.begin_s, span.end_s),
                name=span.what,
                phase=Phase.MATERIALS,
                stage=StageLabel.MATERIALS,
            )


def _task(
    account: RankAccount,
    kind: StreamKind,
    times: tuple[float, float],
    *,
    name: str,
    phase: Phase,
    stage: StageLabel,
    lane: int = 0,
) -> _Task:
    return _Task(
        rank=account.rank,
        lane=(kind, lane),
        name=name,
        phase=phase,
        stage=stage,
        begin_s=times[0] - account.origin_s,
        end_s=times[1] - account.origin_s,
    )


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

"""Compile kernels in parallel before the first run: each process simulates one step of one task."""

from __future__ import annotations

import numpy as np

from wattree.compiled import compile_elsewhere
from wattree.graph import ExecutionGraph, TaskKind
from wattree.graph.assembly import Assembly, Task, graph_of
from wattree.sim import checks, engine, occupancy, prune, sweep
from wattree.trace import Trace

_OTHERS = (
    checks._all_sound,  # noqa: SLF001 - kernels are called by their modules alone
    prune._add_up,  # noqa: SLF001
    occupancy._count,  # noqa: SLF001
    occupancy._pack,  # noqa: SLF001
    sweep.sweep,
)


def kernels_are_compiled() -> bool:
    """Return whether the machine code of all kernels is cached on disk."""
    return all(each.is_compiled() for each in (engine.PLAYER, *_OTHERS))


def compile_ahead() -> None:
    """Start compiling the kernels that are not cached on disk, in separate processes."""
    compile_elsewhere(_execute, engine.PLAYER)  # takes as long as all others together
    compile_elsewhere(_add_up, *_OTHERS)


def _execute() -> None:
    engine.executed(_step(flows=0), "max-min", np.empty(0, np.int64))


def _add_up() -> None:
    graph = _step(flows=1)
    checks.check_graph(graph)
    prune.crowdable_flows(graph)
    trace = Trace(
        graph=graph,
        start_s=np.zeros(1),
        end_s=np.ones(1),
        peak_bytes=np.zeros(1),
        peak_task=np.zeros(1, np.int64),
        events=2,
    )
    occupancy.occupancy(trace, np.zeros(1), np.ones(1), starved=(0.0, 0.0))


def _step(*, flows: int) -> ExecutionGraph:
    """Return a transfer of 1 s on one stream, over the given number of links."""
    transfer = Task(
        name="transfer",
        kind=TaskKind.TRANSFER,
        work_s=1.0,
        streams=(0,),
        flows=((0, 1.0),) * flows,
    )
    return graph_of(
        Assembly(
            tasks=[transfer],
            before=[()],
            stream_kinds=[0],
            stream_ranks=[0],
            rank_names=["rank"],
            link_names=["link"] * flows,
            link_bytes_per_s=[1.0] * flows,
            categories=["none"],
            static_bytes=np.zeros(1),
            static_by_category=np.zeros((1, 1)),
        )
    )

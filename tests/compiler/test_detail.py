"""Merging runs of compute changes nothing but the number of tasks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense, mixture
from wattree.compiler.tasks.merge import merged
from wattree.compiler.tasks.table import TASK, TaskTable
from wattree.lowering.streams import Stream
from wattree.sim import execute
from wattree.strategy import ExpertLoad, StrategyOptions
from wattree.trace import Trace

CASES = {
    "ddp": StrategyOptions(dp=8),
    "zero1": StrategyOptions(dp=8, sharding="zero1"),
    "fsdp": StrategyOptions(fsdp=8, sharding="zero3"),
    "megatron": StrategyOptions(dp=2, tp=4, sequence_parallel=True),
    "tensor without overlap": StrategyOptions(dp=2, tp=4, overlap_tensor=False),
    "context": StrategyOptions(dp=2, cp=4),
    "ring": StrategyOptions(dp=2, cp=4, context="ring"),
    "ulysses": StrategyOptions(dp=2, cp=4, context="ulysses"),
    "pipeline": StrategyOptions(dp=2, pp=4),
    "interleaved": StrategyOptions(dp=2, tp=2, pp=2, virtual_stages=2),
    "recomputed": StrategyOptions(dp=4, tp=2, recompute="full"),
    "selective": StrategyOptions(dp=4, tp=2, recompute="selective"),
    "experts": StrategyOptions(dp=2, ep=4),
    "experts of uneven load": StrategyOptions(ep=4, expert_load=ExpertLoad(imbalance=1.5)),
    "experts and tensor": StrategyOptions(dp=2, ep=2, tp=2, sequence_parallel=True),
}


def both(name: str) -> tuple[Trace, Trace]:
    """Return the run with a task per operator and the one with merged tasks."""
    model = mixture(4) if name.startswith("experts") else dense(4)
    job = Job.of(model, CASES[name])
    detailed, coarse = (execute(job.compiled(detail=detail).graph) for detail in (True, False))
    return detailed, coarse


@pytest.mark.parametrize("name", CASES)
def test_merged_tasks_take_the_same_time(name: str) -> None:
    """Between two points where communication meets it, compute runs back to back anyway."""
    detailed, coarse = both(name)

    assert coarse.graph.tasks < detailed.graph.tasks
    assert coarse.makespan_s == pytest.approx(detailed.makespan_s, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_merged_tasks_do_the_same_work(name: str) -> None:
    """FLOP and bytes are conserved."""
    detailed, coarse = both(name)

    for item in ("flop", "memory_traffic_bytes", "link_traffic_bytes", "work_s"):
        found, expected = (getattr(trace.graph, item).sum() for trace in (coarse, detailed))
        assert found == pytest.approx(expected, rel=1e-12), item


@pytest.mark.parametrize("name", CASES)
def test_merged_tasks_need_the_memory_of_the_run_at_its_worst(name: str) -> None:
    """A run takes its own peak at once, so the level is never below the detailed one.

    It is above it only by gathered parameters whose life begins or ends inside the run.
    """
    detailed, coarse = both(name)
    gathered = coarse.graph.alloc_bytes[coarse.graph.memory_category == 4]
    most_gathered = 3 * gathered.max(initial=0.0)  # one in use and two ahead

    assert np.all(coarse.peak_bytes >= detailed.peak_bytes * (1 - 1e-12))
    assert np.all(coarse.peak_bytes <= detailed.peak_bytes * (1 + 1e-12) + most_gathered)


def test_a_run_ends_where_communication_starts_from_it() -> None:
    """Three products, the second of which feeds an all-reduce that the last waits for."""
    tasks = np.zeros(4, TASK)
    tasks["work_s"] = [1.0, 2.0, 4.0, 8.0]
    tasks["stream"] = [Stream.COMPUTE, Stream.COMPUTE, Stream.TENSOR, Stream.COMPUTE]
    tasks["alloc_bytes"], tasks["free_bytes"] = [5, 3, 0, 1], [4, 0, 0, 2]
    edges = np.array([[0, 1], [1, 2], [2, 3]])

    found = merged(TaskTable(tasks=tasks, edges=edges, entries=(0,), exit=3))

    assert found.tasks["work_s"].tolist() == [3.0, 4.0, 8.0]
    assert found.tasks["alloc_bytes"].tolist() == [5.0, 0.0, 1.0]
    assert found.tasks["free_bytes"].tolist() == [1.0, 0.0, 2.0]
    assert found.edges.tolist() == [[0, 1], [1, 2]]
    assert (found.entries, found.exit) == ((0,), 2)

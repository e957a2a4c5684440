"""The compiled expansion of stage programs against the same in plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from wattree.compiler import compile as compiling
from wattree.compiler.folding.arrays import execution_graph
from wattree.compiler.folding.stage_classes import StageClasses
from wattree.compiler.folding.task_instances import TaskInstances
from wattree.compiler.tasks.stage_program import StageProgram
from wattree.graph import ExecutionGraph, TaskKind
from wattree.lowering.streams import STREAMS
from wattree.strategy import StrategyOptions

JOBS = {
    "tensor": (StrategyOptions(dp=2, tp=4), {}),
    "pipeline": (StrategyOptions(dp=2, pp=2, tp=2), {}),
    "uneven reach": (StrategyOptions(dp=2, pp=2, tp=2), {"per_node": 4}),
    "straggler": (StrategyOptions(dp=4, tp=2), {"slowdown": {3: 1.5}}),
    "mirrored": (StrategyOptions(dp=2, pp=2, tp=2, schedule="dualpipe"), {}),
    "experts": (StrategyOptions(dp=2, ep=4), {}),
}


@pytest.fixture(params=[(name, fold) for name in JOBS for fold in (True, False)], ids=str)
def expansion(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[ExecutionGraph, Sequence[StageProgram], Sequence[StageClasses]]:
    """A compiled graph and what it was expanded from."""
    name, fold = request.param
    options, shape = JOBS[name]
    given: list[Any] = []

    def remembered(tasks: TaskInstances, **rest: Any) -> ExecutionGraph:
        given.extend([tasks.programs, tasks.classes])
        return execution_graph(tasks, **rest)

    monkeypatch.setattr(compiling, "execution_graph", remembered)
    model = mixture(4) if name == "experts" else dense(4)
    job = Job.of(model, options, cluster=small_cluster(options.ranks, **shape))  # type: ignore[arg-type]
    graph = job.compiled(fold=fold).graph
    return graph, given[0], given[1]


def _copies(program: StageProgram, classes: StageClasses) -> list[list[int]]:
    """Return the copy of each task that each class takes part in."""
    alone = list(range(len(classes.ranks)))
    return [
        [int(c) for c in classes.orbits.get(int(axes), alone)]
        for axes in program.records["axes"][program.rows]
    ]


def _numbers(
    programs: Sequence[StageProgram], classes: Sequence[StageClasses]
) -> list[list[list[int]]]:
    """Return the instance of each (stage, task, class)."""
    result, first = [], 0
    for program, stage in zip(programs, classes, strict=True):
        numbers = []
        for copies in _copies(program, stage):
            numbers.append([first + copy for copy in copies])
            first += max(copies) + 1
        result.append(numbers)
    return result


def test_streams_are_those_of_the_classes_that_share_an_instance(expansion: Any) -> None:
    """Every class that shares a task has it on its own stream."""
    graph, programs, classes = expansion
    expected: list[set[int]] = [set() for _ in range(graph.tasks)]
    base = 0
    for program, stage, numbers in zip(programs, classes, _numbers(programs, classes), strict=True):
        for stream, instances in zip(program.records["stream"][program.rows], numbers, strict=True):
            for rank_class, instance in enumerate(instances):
                expected[instance].add((base + rank_class) * len(STREAMS) + int(stream))
        base += len(stage.ranks)

    found = np.split(graph.stream_ids, graph.stream_offsets[1:-1])

    assert [row.tolist() for row in found] == [sorted(row) for row in expected]


def test_edges_lead_to_the_same_class_and_to_its_peers(expansion: Any) -> None:
    """Edges inside a stage stay in the class; transfers go to the peer."""
    graph, programs, classes = expansion
    numbers = _numbers(programs, classes)
    expected: set[tuple[int, int]] = set()
    for own, program, stage in zip(numbers, programs, classes, strict=True):
        for before, after in program.edges:
            expected |= set(zip(own[before], own[after], strict=True))
        peers = {1: stage.next_class, -1: stage.previous_class, 0: stage.mirror_class}
        for send in program.sends:
            for entry in programs[send.stage].receives[send.transfer]:
                there = numbers[send.stage][entry]
                for rank_class, instance in enumerate(own[send.task]):
                    (peer,) = peers[send.heading][:, rank_class]
                    expected.add((instance, there[peer]))

    before = np.repeat(np.arange(graph.tasks), np.diff(graph.successor_offsets))

    assert set(zip(before.tolist(), graph.successors.tolist(), strict=True)) == expected


def test_links_of_a_task_ascend_and_differ(expansion: Any) -> None:
    """No task uses a link twice, and compute uses none."""
    graph, _, _ = expansion
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))

    same_task = task[1:] == task[:-1]

    assert (graph.flow_links[1:] > graph.flow_links[:-1])[same_task].all()
    assert (graph.flow_bytes_per_s > 0).all()
    assert (graph.kind[task] != TaskKind.COMPUTE).all()


def test_a_class_computes_at_its_own_speed(expansion: Any) -> None:
    """A straggler alone is slower."""
    graph, programs, classes = expansion
    for program, stage, numbers in zip(programs, classes, _numbers(programs, classes), strict=True):
        for record, instances in zip(program.records[program.rows], numbers, strict=True):
            if record["kind"] == TaskKind.COMPUTE:
                assert (graph.work_s[instances] == record["work_s"] * stage.slowdown).all()

"""Schedules against exhaustive search, and against what no schedule may break."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedule_exhaustive import drawn, exhaustive
from wattree.schedule.placing import meeting, placed
from wattree.schedule.problem import OBJECTIVES, Problem, QueuedTask, Tariff, TaskStart, Way
from wattree.schedule.rules import cost_of, first_come, inserted
from wattree.schedule.solve import solve


def taken(problem: Problem, starts: tuple[TaskStart, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and power beyond rest in each slot."""
    nodes, power_w = np.zeros(problem.slots), np.zeros(problem.slots)
    for start in starts:
        way = problem.way(start)
        run = slice(start.slot, start.slot + problem.slots_of(way))
        nodes[run] += way.nodes
        power_w[run] += problem.power_of(way)
    return nodes, power_w


def test_no_schedule_is_better() -> None:
    """Lateness first, then the objective, on queues small enough to try every schedule."""
    for seed in range(25):
        problem = drawn(seed, tasks=2 + seed % 4)
        best = exhaustive(problem)
        found = solve(problem)

        assert (found is None) == (best is None), seed
        if found is None or best is None:
            continue
        assert found.lateness == pytest.approx(problem.lateness(best), abs=1e-6), seed
        assert found.cost == pytest.approx(cost_of(problem, best), rel=1e-6), seed
        assert found.gap < 1e-4, seed


def test_nothing_is_taken_twice() -> None:
    """Nodes, power, release and horizon are kept; bounds are below what is found."""
    for seed in range(40):
        problem = drawn(seed, tasks=8)
        found = solve(problem, limit_s=60.0)
        if found is None:
            continue
        nodes, power_w = taken(problem, found.starts)

        assert nodes.max() <= problem.nodes
        assert power_w.max() <= problem.spare_w * (1 + 1e-9)
        assert [start.task for start in found.starts] == list(range(len(problem.tasks)))
        for start in found.starts:
            assert start.slot * problem.slot_s >= problem.tasks[start.task].release_s - 1e-6
        assert found.least_cost <= found.cost
        assert found.least_lateness <= found.lateness


def test_a_plain_queue_is_never_better() -> None:
    """First come, first served is one of the schedules."""
    for seed in range(20):
        problem = drawn(seed, tasks=6)
        plain, found = first_come(problem), solve(problem)
        if plain is None or found is None:
            continue
        assert found.lateness <= problem.lateness(plain) + 1e-6
        if found.lateness == pytest.approx(problem.lateness(plain)):
            assert found.cost <= cost_of(problem, plain) * (1 + 1e-6)


def test_rules_alone_are_no_worse_than_a_plain_queue() -> None:
    """What is answered where the solver finds nothing in its time."""
    for seed in range(60):
        problem = drawn(seed, tasks=12, slots=40)
        plain, found = first_come(problem), inserted(problem)
        if plain is None:
            continue
        assert found is not None
        ours, theirs = (problem.lateness(each) for each in (found, plain))
        assert ours <= theirs, seed
        if ours == theirs:
            assert cost_of(problem, found) <= cost_of(problem, plain), seed


def test_nodes_of_a_leaf_are_kept_together() -> None:
    """Each task has nodes of its own, of one leaf where one has room."""
    for seed in range(20):
        problem = drawn(seed, tasks=8)
        found = solve(problem, limit_s=60.0)
        if found is None:
            continue
        nodes = placed(problem, found.starts, 2)
        met = meeting(problem, found.starts, nodes, 2)
        for slot in range(problem.slots):
            running = [
                s.task
                for s in found.starts
                if s.slot <= slot < s.slot + problem.slots_of(problem.way(s))
            ]
            held = [node for task in running for node in nodes[task]]
            assert len(held) == len(set(held))
        for task, others in met.items():
            assert len({node // 2 for node in nodes[task]}) > 1
            assert task not in others


def one(way: Way, **more: object) -> QueuedTask:
    """Return a task with one way."""
    return QueuedTask(name="one", ways=(way,), **more)  # type: ignore[arg-type]


def test_a_task_waits_for_clean_hours() -> None:
    """Carbon of 1 in all hours but the third: a task of an hour runs in it."""
    way = Way(nodes=1, duration_s=3600.0, energy_j=3600.0)
    problem = Problem(
        tasks=(one(way),),
        nodes=1,
        slot_s=3600.0,
        slots=6,
        objective="carbon",
        carbon=Tariff((1.0, 1.0, 0.2, 1.0, 1.0, 1.0)),
    )
    found = solve(problem)

    assert found is not None
    assert found.starts == (TaskStart(task=0, way=0, slot=2),)
    assert problem.total("carbon", found.starts) == pytest.approx(720.0)


def test_a_deadline_is_worth_more_than_the_objective() -> None:
    """A fast way that takes more energy is chosen where the thrifty one would be late."""
    fast = Way(nodes=2, duration_s=10.0, energy_j=100.0)
    thrifty = Way(nodes=1, duration_s=30.0, energy_j=50.0)
    for deadline_s, expected in ((None, 1), (30.0, 1), (29.0, 0), (5.0, 0)):
        task = QueuedTask(name="a", ways=(fast, thrifty), deadline_s=deadline_s)
        found = solve(Problem(tasks=(task,), nodes=2, slot_s=1.0, slots=60))

        assert found is not None
        assert found.starts[0].way == expected, deadline_s


def test_the_cap_counts_nodes_at_rest() -> None:
    """Two tasks of 60 W over rest with two nodes of 20 W at rest do not fit under 150 W at once."""
    way = Way(nodes=1, duration_s=1.0, energy_j=80.0)
    for cap_w, ends_s in ((160.0, 1.0), (150.0, 2.0)):
        problem = Problem(
            tasks=(one(way), one(way)),
            nodes=2,
            slot_s=1.0,
            slots=5,
            power_cap_w=cap_w,
            idle_w=20.0,
            objective="makespan",
        )
        found = solve(problem)

        assert found is not None
        assert problem.total("makespan", found.starts) == ends_s


def test_every_objective_is_solved() -> None:
    """Each objective's schedule has the least of it among the schedules of all objectives."""
    base = drawn(3, tasks=6, deadlines=False)
    totals: dict[str, dict[str, float]] = {}
    for objective in OBJECTIVES:
        problem = Problem(
            **{
                name: getattr(base, name)
                for name in ("tasks", "nodes", "slot_s", "slots", "power_cap_w", "idle_w")
            },
            objective=objective,
            carbon=base.carbon,
            price=base.price,
        )
        found = solve(problem)
        assert found is not None
        totals[objective] = {name: problem.total(name, found.starts) for name in OBJECTIVES}
    for objective, own in totals.items():
        for other in totals.values():
            assert own[objective] <= other[objective] * (1 + 2e-4)

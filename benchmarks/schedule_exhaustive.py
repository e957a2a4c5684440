"""Every schedule of a small queue, tried one by one; and queues drawn at random."""

from __future__ import annotations

import numpy as np

from wattree.schedule.problem import (
    OBJECTIVES,
    Problem,
    QueuedTask,
    StartTable,
    Tariff,
    TaskStart,
    Way,
)
from wattree.schedule.rules import Timetable


def drawn(
    seed: int, *, tasks: int, slots: int = 14, nodes: int = 4, deadlines: bool = True
) -> Problem:
    """Return a queue, with a cap and hourly carbon and price in half of the cases each."""
    draw = np.random.default_rng(seed)

    def way(nodes: int) -> Way:
        duration_s = float(draw.uniform(300.0, 3 * 3600.0)) / nodes**0.8
        power_w = nodes * float(draw.uniform(4e3, 10e3))
        return Way(
            nodes=nodes,
            duration_s=duration_s,
            energy_j=power_w * duration_s,
            fixed_usd=float(draw.uniform(0.0, 2.0)),
        )

    def task(number: int) -> QueuedTask:
        due = float(draw.uniform(1.0, 9.0)) * 3600.0
        return QueuedTask(
            name=f"job {number}",
            ways=tuple(way(int(nodes)) for nodes in draw.choice([1, 2, 4], size=2, replace=False)),
            release_s=float(draw.integers(0, 3)) * 1800.0,
            deadline_s=due if deadlines and draw.random() < 0.5 else None,
            priority=float(draw.uniform(0.5, 3.0)),
        )

    hourly = draw.random() < 0.5
    return Problem(
        tasks=tuple(task(number) for number in range(tasks)),
        nodes=nodes,
        slot_s=3600.0,
        slots=slots,
        power_cap_w=11e3 * nodes if draw.random() < 0.5 else None,
        idle_w=1e3,
        objective=OBJECTIVES[seed % len(OBJECTIVES)],
        carbon=Tariff(tuple(draw.uniform(1e-5, 1e-4, 24 if hourly else 1))),
        price=Tariff(tuple(draw.uniform(-1e-8, 1e-7, 24 if hourly else 1))),
    )


def exhaustive(problem: Problem) -> tuple[TaskStart, ...] | None:
    """Return the best of all schedules; None where there is none.

    Starts of a task are tried from the best on; they are left where the tasks placed so far, and
    each other one at its own best, come to no less than the best schedule found.
    """
    options: list[list[tuple[float, float, float, StartTable, int]]] = [[] for _ in problem.tasks]
    for choice in problem.choices:
        columns = zip(choice.lateness, choice.value, choice.end_s, strict=True)
        options[choice.task] += [
            (float(late), float(value), float(end), choice, choice.first + at)
            for at, (late, value, end) in enumerate(columns)
        ]
    if not all(options):
        return None
    for own in options:
        own.sort(key=lambda each: each[:2])
    after = [
        (sum(own[0][0] for own in options[n:]), sum(min(e[1] for e in own) for own in options[n:]))
        for n in range(len(options) + 1)
    ]
    makespan = problem.objective == "makespan"
    table = Timetable(problem)
    best: list[tuple[float, float, tuple[TaskStart, ...] | None]] = [(np.inf, np.inf, None)]

    def search(
        number: int, late: float, value: float, last: float, starts: tuple[TaskStart, ...]
    ) -> None:
        if number == len(options):
            best[0] = late, value + (last if makespan else 0.0), starts
            return
        for own_late, own_value, own_end, choice, slot in options[number]:
            lateness = late + own_late + after[number + 1][0]
            end = max(last, own_end)
            cost = value + own_value + after[number + 1][1] + (end if makespan else 0.0)
            if lateness > best[0][0] + 1e-9:
                break
            if (lateness, cost) >= best[0][:2] or not table.free(choice)[slot - choice.first]:
                continue
            table.take(choice, slot)
            start = TaskStart(task=number, way=choice.way, slot=slot)
            search(number + 1, late + own_late, value + own_value, end, (*starts, start))
            table.give_back(choice, slot)

    search(0, 0.0, 0.0, 0.0, ())
    return best[0][2]

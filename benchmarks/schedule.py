"""Schedules: small queues against every schedule there is, and a large one against the clock.

python -m benchmarks.schedule [--json P]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.frame import plain_table, report_parser, show_report
from benchmarks.schedule_exhaustive import drawn, exhaustive
from wattree.schedule.problem import OBJECTIVES
from wattree.schedule.rules import cost_of, first_come
from wattree.schedule.solve import solve

#: Queues that are compared, of 3 to 8 jobs.
_QUEUES = 50
#: Jobs of the large queue, nodes that they crowd, and slots of its horizon.
_JOBS, _NODES, _SLOTS = 200, 16, 84
_HEAD = ("queues", "jobs", "objective", "optimal", "worst gap", "time", "saved")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    options = report_parser(__doc__).parse_args(arguments)
    small = [_small(seed) for seed in range(_QUEUES)]
    large = [_large(seed) for seed in range(len(OBJECTIVES))]
    lines = [_small_line(objective, small) for objective in OBJECTIVES]
    lines += [_large_line(each) for each in large]
    table = plain_table(
        "Schedules; saved: objective against first come, first served, where neither is late",
        _HEAD,
        lines,
        left=3,
    )
    show_report({"small": small, "large": large}, options.json_path, table, width=100)
    return 0


def _small(seed: int) -> dict[str, Any]:
    problem = drawn(seed, tasks=3 + seed // len(OBJECTIVES) % 6)
    found, best = solve(problem), exhaustive(problem)
    both = found is not None and best is not None
    return {
        "objective": problem.objective,
        "jobs": len(problem.tasks),
        "agree": (found is None) == (best is None)
        and not (
            both
            and (
                found.lateness > problem.lateness(best) + 1e-6
                or found.cost > cost_of(problem, best) * (1 + 1e-6)
            )
        ),
        "gap": found.gap if found is not None else 0.0,
    }


def _large(seed: int) -> dict[str, Any]:
    problem = drawn(seed, tasks=_JOBS, slots=_SLOTS, nodes=_NODES, deadlines=bool(seed % 2))
    began = time.perf_counter()
    found = solve(problem)
    plain = first_come(problem)
    assert found is not None
    assert plain is not None
    ours, theirs = (problem.total(problem.objective, each) for each in (found.starts, plain))
    return {
        "objective": problem.objective,
        "time_s": time.perf_counter() - began,
        "gap": found.gap,
        "lateness_s": found.lateness,
        "first_come_lateness_s": problem.lateness(plain),
        "saved": 1 - ours / theirs,
    }


def _small_line(objective: str, small: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    own = [each for each in small if each["objective"] == objective]
    jobs = [each["jobs"] for each in own]
    return (
        f"{len(own)}",
        f"{min(jobs)} to {max(jobs)}",
        objective,
        f"{sum(each['agree'] for each in own)}",
        f"{100 * max(each['gap'] for each in own):.2g} %",
        "",
        "",
    )


def _large_line(each: dict[str, Any]) -> tuple[str, ...]:
    late = each["first_come_lateness_s"] or each["lateness_s"]
    return (
        "1",
        f"{_JOBS}",
        each["objective"],
        "",
        f"{100 * each['gap']:.2g} %",
        f"{each['time_s']:.0f} s",
        "late" if late else f"{100 * each['saved']:.1f} %",
    )


if __name__ == "__main__":
    sys.exit(main())

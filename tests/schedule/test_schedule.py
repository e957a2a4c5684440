"""A queue from its file to its schedule: predictions, deadlines, caps, fabrics, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedule.test_queue import JOB, queue, waiting
from tests.search.jobs import FEWEST
from wattree import Job, plan, simulate
from wattree.cli.main import run
from wattree.errors import InfeasibleError, JobError
from wattree.schedule import QueueSchedule, schedule
from wattree.schedule.contention import slowdowns
from wattree.schedule.problem import above_rest_w
from wattree.schedule.queue_file import queue_from_mapping
from wattree.schedule.schedule_result import busy
from wattree.schedule.ways import predicted_ways
from wattree.search.plan_result import Plan
from wattree.units import format_time


def found(mapping: dict[str, Any]) -> QueueSchedule:
    """Return the schedule of a queue."""
    return schedule(queue_from_mapping(mapping, folder=Path()), limit_s=120.0)


def cap(alone: QueueSchedule, jobs: float) -> str:
    """Return a cap of two nodes under which so many jobs like one can run at once."""
    job, rest_w = alone.jobs[0], alone.idle_w
    above_w = above_rest_w(job.power_w, len(job.nodes), rest_w, alone.switch_w)
    return f"{2 * rest_w + jobs * above_w:.3f} W"


def test_nodes_at_rest_draw_their_idle_power() -> None:
    """DGX H100, for each node: boards, host at rest, fans, losses of supplies; switch ports."""
    at_rest_w = 1.56 * ((8 * 72.5 + 571) * 1.12 * 1.024 + 8 * 116)
    lone_w = 1.56 * (8 * 72.5 + 571) * 1.12 * 1.024
    found_two, found_one = (
        found({**queue(waiting(nodes=1)), "cluster": {"node": "dgx-h100", "nodes": nodes}})
        for nodes in (2, 1)
    )

    assert found_two.idle_w == pytest.approx(at_rest_w)
    assert found_one.idle_w == pytest.approx(lone_w)


def test_switches_draw_whether_nodes_are_at_rest_or_run_a_job_of_one_node() -> None:
    """Its own energy has none, as `simulate` has it; the cap is of all that is on."""
    result = found(queue(waiting(nodes=1)))
    job = result.jobs[0]
    _, power_w = busy(result, np.array([job.start_s]))
    boards_w = result.idle_w - result.switch_w

    assert result.switch_w == pytest.approx(1.56 * 8 * 116)
    assert power_w == pytest.approx(job.power_w + boards_w + 2 * result.switch_w)


def test_figures_are_those_of_simulate() -> None:
    """A job alone: its steps one after another, from the beginning."""
    made = {"device": "150 kgCO2e", "node": "1300 kgCO2e", "lifetime": "4 y"}
    mapping = queue(waiting(nodes=1), energy={"embodied": made})
    own = queue_from_mapping(mapping, folder=Path())
    step = simulate(own.job(own.jobs[0], 1)).result.in_run
    (job,) = found(mapping).jobs

    assert job.start_s == 0.0
    assert job.end_s == pytest.approx(100 * step.time_s)
    assert job.energy_j == pytest.approx(100 * step.energy_j)
    assert job.cost_usd == pytest.approx(100 * step.cost_usd)
    assert job.carbon_gco2e == pytest.approx(100 * step.carbon_gco2e)
    assert job.end_interval_s[0] < job.end_s < job.end_interval_s[1]


def test_more_nodes_where_time_counts_fewer_where_energy_does() -> None:
    """One job, both nodes or one."""
    nodes = {
        objective: len(found(queue(waiting(), objective=objective)).jobs[0].nodes)
        for objective in ("makespan", "energy")
    }

    assert nodes == {"makespan": 2, "energy": 1}


def test_a_power_limit_saves_energy_until_a_deadline_forbids_it() -> None:
    """400 W instead of 700 W."""
    jobs = waiting(steps=1000, nodes=1)
    loose = found(queue(jobs, power_limits=["400 W"]))
    end_s = found(queue(jobs)).jobs[0].end_s
    tight = found(queue({**jobs, "deadline": f"{end_s + 1e-3:.3f} s"}, power_limits=["400 W"]))

    assert loose.jobs[0].power_limit_w == 400.0
    assert loose.jobs[0].end_s > end_s
    assert loose.totals.energy_j < tight.totals.energy_j
    assert tight.jobs[0].power_limit_w is None
    assert tight.meets_deadlines


def test_what_keeps_a_job_from_its_deadline_is_told() -> None:
    """Its own length; others that have the nodes; the cap."""
    alone = found(queue(waiting(nodes=1)))
    alone_s = alone.jobs[0].end_s
    both = [waiting(name, nodes=2, deadline=f"{0.9 * alone_s:.3f} s") for name in "ab"]
    cases: list[tuple[dict[str, Any], str]] = [
        (queue(waiting(deadline="1 s", nodes=1)), "its own length: started at once it would be"),
        (queue(*both), "the nodes: others"),
        (
            queue(
                *(waiting(name, nodes=1, deadline=f"{1.2 * alone_s:.3f} s") for name in "ab"),
                power_cap=cap(alone, 1.5),
            ),
            "the power cap: without it less is late",
        ),
    ]
    for mapping, expected in cases:
        late = [job.late_because for job in found(mapping).jobs if job.late_s]
        assert late
        assert any(reason.startswith(expected) for reason in late), (expected, late)


def test_a_job_that_is_too_long_and_waits_is_late_for_both() -> None:
    """What each of them adds is told."""
    jobs = found(queue(*(waiting(name, nodes=2, deadline="1 s") for name in "ab"))).jobs
    first, second = sorted(jobs, key=lambda job: job.late_s)

    assert "more" not in first.late_because
    assert second.late_because.startswith("its own length: started at once it would be")
    assert second.late_because.endswith(
        f"{format_time(second.late_s - first.late_s)} more, the nodes: others with deadlines or "
        "higher priority have them"
    )


def test_jobs_that_cannot_run_are_all_told() -> None:
    """Memory, and a cap below what one job draws."""
    large = {**JOB, "model": "llama-3.1-70b"}
    mapping = queue(
        {"name": "large", "job": large, "steps": 1, "nodes": 1},
        waiting("hungry", nodes=1),
        power_cap=cap(found(queue(waiting(nodes=1))), 0.5),
    )
    with pytest.raises(InfeasibleError) as error:
        found(mapping)
    assert "large: 1 node: needs" in str(error.value)
    assert "hungry: the cluster draws at least" in str(error.value)

    with pytest.raises(InfeasibleError, match=r"2 nodes draw .* W at rest"):
        found(queue(waiting(), power_cap="2 kW"))
    with pytest.raises(InfeasibleError, match="a: the cluster draws at least"):
        found(queue(waiting(nodes=1), power_cap=cap(found(queue(waiting(nodes=1))), 0.5)))
    with pytest.raises(InfeasibleError, match="horizon: not all jobs end by"):
        found(queue(waiting("a", nodes=2), waiting("b", nodes=2), horizon="1 s"))


def test_mistakes_in_jobs_are_told_when_the_queue_is_read() -> None:
    """What is wrong on every number of nodes is a mistake, not a job that does not fit."""
    jobs = (waiting("odd", job={**JOB, "strategy": {"tp": 3}}), waiting(job={**JOB, "modle": 1}))
    with pytest.raises(JobError) as error:
        queue_from_mapping(queue(*jobs), folder=Path())
    assert "jobs[0].job: " in error.value.problems[0]
    assert "jobs[1].job: unknown key 'modle'" in error.value.problems[1]

    unknown = [waiting(name, job={**JOB, "model": name}) for name in ("gpt22", "gpt23")]
    with pytest.raises(JobError) as error:
        found(queue(*unknown))
    assert [line.split(";")[0] for line in error.value.problems] == [
        f"jobs[{n}].job: model: unknown model '{name}'" for n, name in enumerate(("gpt22", "gpt23"))
    ]


def test_jobs_that_cannot_keep_apart_take_longer_and_the_bound_does_not(tmp_path: Path) -> None:
    """Three nodes to a leaf, two jobs of two nodes and one of each leaf's rest."""
    narrow(tmp_path, leaf_nodes=3)
    mapping = {
        "cluster": {"node": "dgx-a100", "nodes": 6, "fabric": "fabric.yaml"},
        "jobs": [waiting(name, nodes=2) for name in "abc"],
        "objective": "makespan",
    }
    own = queue_from_mapping(mapping, folder=tmp_path)
    alone_s = predicted_ways(own)[0][0][0].way.duration_s
    result = schedule(own, limit_s=120.0)
    across = [job for job in result.jobs if len({node // 3 for node in job.nodes}) > 1]

    for job in result.jobs:
        assert job.end_s - job.start_s == pytest.approx(alone_s * job.slowdown)
    assert across, "one of three has nodes of both leaves"
    assert any(job.slowdown > 1.01 for job in result.jobs)
    assert result.least < result.totals.makespan_s * 0.999
    assert result.gap > 1e-3
    assert any("were simulated" in note for note in result.notes)
    assert any(note.startswith("rent of dgx-a100: $") for note in result.notes)


def test_jobs_that_differ_in_length_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lasts as long as it is, with the checkpoints of its own length."""
    planned = []

    def few(job: Job, **kept: Any) -> Plan:
        planned.append(job)
        return plan(job, limits=FEWEST, **kept)

    monkeypatch.setattr("wattree.schedule.ways.plan", few)
    job = {**JOB, "strategy": "auto"}
    mapping = queue(waiting("a", job=job, steps=100), waiting("b", job=job, steps=100_000))
    ways, _ = predicted_ways(queue_from_mapping(mapping, folder=Path()))
    short, long = (found[0] for found in ways)

    assert len(planned) == len(ways[0])
    assert short.step_time_s == long.step_time_s
    assert [each.job.training.steps for each in (short, long)] == [100, 100_000]


def narrow(folder: Path, leaf_nodes: int) -> None:
    """Write a fabric with an eighth of the uplinks that its leaves could fill."""
    (folder / "fabric.yaml").write_text(
        "name: narrow\ntitle: small leaves\nkind: fat-tree\nsources: {test: made up}\n"
        "oversubscription: {value: 8, source: test}\n"
        f"leaf_nodes: {{value: {leaf_nodes}, source: test}}\n"
        'switch_latency: {value: "0.7 us", source: test}\n'
        'switch_power_per_nic: {value: "116 W", source: test}\n'
    )


def test_jobs_on_one_oversubscribed_fabric_slow_each_other(tmp_path: Path) -> None:
    """Their steps are simulated together on the nodes that they have."""
    narrow(tmp_path, leaf_nodes=2)
    mapping = {
        "cluster": {"node": "dgx-a100", "nodes": 4, "fabric": "fabric.yaml"},
        "jobs": [waiting(name, nodes=2) for name in "ab"],
    }
    own = queue_from_mapping(mapping, folder=tmp_path)
    ways, _ = predicted_ways(own)
    taken = {0: ways[0][0], 1: ways[1][0]}

    crossed = slowdowns(own.cluster, taken, {0: (0, 2), 1: (1, 3)}, {0: (1,), 1: (0,)})
    assert all(factor.time > 1.05 for factor in crossed.values())
    # Waits take about the mean power of this step, a third of which only launches kernels.
    for factor in crossed.values():
        assert factor.energy == pytest.approx(factor.time, rel=0.01)
    # The schedule gives each a leaf of its own, and then nothing is slower.
    assert all(job.slowdown == 1.0 for job in schedule(own, limit_s=120.0).jobs)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, JSON and a report; exit code 3 where a deadline is missed, 2 for a mistake."""
    file, out, page = (tmp_path / name for name in ("q.yaml", "q.json", "q.html"))
    file.write_text(json.dumps(queue(waiting(), waiting("b", deadline="10 h"))))

    assert run(["schedule", str(file), "--json", str(out), "--report", str(page)]) == 0
    text = capsys.readouterr().out
    assert "2 jobs end in time" in text
    assert "first come" in text
    value = json.loads(out.read_text())
    assert [job["name"] for job in value["jobs"]] == ["a", "b"]
    assert value["gap"] < 1e-3
    assert "Jobs on nodes over time" in page.read_text()

    file.write_text(json.dumps(queue(waiting(deadline="1 s"))))
    assert run(["schedule", str(file)]) == 3
    assert "its own length" in capsys.readouterr().out
    file.write_text("jobs: 3\n")
    assert run(["schedule", str(file)]) == 2
    assert "cluster: is missing" in capsys.readouterr().err

"""Queue files: what they say, and every misfit of them at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.schedule.queue_file import load_queue, queue_from_mapping, queue_schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue" / "queue.yaml"
JOB = {"model": "gpt2", "data": {"sequence_length": 1024, "global_batch": 64}, "strategy": "ddp"}


def queue(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a queue file of two nodes."""
    return {"cluster": {"node": "dgx-h100", "nodes": 2}, "jobs": list(jobs), **more}


def waiting(name: str = "a", **more: Any) -> dict[str, Any]:
    """Return a job of a queue."""
    return {"name": name, "job": JOB, "steps": 100, **more}


def refused(mapping: object) -> list[str]:
    """Return the problems of a queue."""
    with pytest.raises(JobError) as error:
        queue_from_mapping(mapping, folder=Path())
    return list(error.value.problems)


def test_the_example_is_read() -> None:
    """Quantities in SI, nodes as numbers, jobs without sections that are the queue's."""
    found = load_queue(EXAMPLE)

    assert [job.name for job in found.jobs] == [
        "pretrain-8b",
        "fine-tune-8b",
        "pretrain-1b",
        "vision",
    ]
    assert found.jobs[0].nodes == (1, 2, 4)
    assert (found.jobs[0].tokens, found.jobs[0].deadline_s) == (2e9, 108_000.0)
    assert found.jobs[3].release_s == 14_400.0
    assert found.power_cap_w == 40_000.0
    assert found.limits_w == (None, 500.0)
    assert "cluster" not in found.jobs[1].mapping
    assert found.terms.series is not None
    assert found.job(found.jobs[2], 2).cluster.nodes == 2
    for queued in found.jobs:  # no checkpoints are farther apart than a run is long
        job = found.job(queued, 1)
        of_sample = 1 if queued.tokens is None else job.data.sequence_length
        seen = job.training.steps * job.data.global_batch * of_sample
        asked = queued.tokens or queued.steps * job.data.global_batch
        assert 0 <= seen - asked < job.data.global_batch * of_sample
    vision = found.jobs[3]
    in_samples = replace(
        vision, steps=0, samples=vision.steps * 1.0 * found.job(vision, 1).data.global_batch
    )
    assert found.job(in_samples, 1).training.steps == vision.steps
    own_batches = {"preset": "ddp", "processes_per_device": 2, "batch_rule": "fixed-per-process"}
    vision = replace(vision, mapping={**vision.mapping, "strategy": own_batches})
    assert found.job(vision, 1).training.steps == vision.steps  # with twice the samples in each


def test_the_schema_takes_the_example_and_refuses_what_the_reader_refuses() -> None:
    """`wattree schema queue`."""
    validator = Draft202012Validator(queue_schema())

    assert not list(validator.iter_errors(read_yaml(EXAMPLE)))
    assert list(validator.iter_errors(queue(waiting(), colour="red")))
    assert list(validator.iter_errors(queue({"name": "a"})))


def test_numbers_of_nodes_are_powers_of_two_where_none_are_given() -> None:
    """As many as the cluster has."""
    mapping = {**queue(waiting()), "cluster": {"node": "dgx-h100", "nodes": 6}}

    assert queue_from_mapping(mapping, folder=Path()).jobs[0].nodes == (1, 2, 4)


def test_every_misfit_is_told_at_once(tmp_path: Path) -> None:
    """Of values, of names, of jobs that are files."""
    (tmp_path / "study.yaml").write_text("workloads: {}\naxes: {}\n")
    mapping = queue(
        waiting(tokens="1B"),
        waiting("b", nodes="1, 3"),
        waiting("b", release="2 h", deadline="1 h", priority=-1),
        waiting("c", deadline="1 h", release="2 h"),
        {"name": "d", "job": "study.yaml", "steps": 1},
        {"name": "e", "job": "absent.yaml", "steps": 1},
        {"name": "f", "job": JOB},
        waiting("g", steps=-3),
        waiting("b"),
    )
    with pytest.raises(JobError) as error:
        queue_from_mapping(mapping, folder=tmp_path)
    text = "\n".join(error.value.problems)

    for part in (
        "jobs[0]: found steps and tokens, expected one of steps, tokens, samples",
        "jobs[1].nodes: found 1, 3, expected numbers from 1 to 2, the nodes of the cluster",
        "jobs[2].priority: found -1, expected a factor above 0",
        "jobs[3].deadline: is not after release; set it later",
        "this is a design study, expected a job",
        "there is no such file",
        "jobs[6]: found none, expected one of steps, tokens, samples",
        "jobs[7].steps: found -3, expected a whole number",
        "found the name 'b' 2 times; each job needs its own",
    ):
        assert part in text


def test_faults_of_a_queue_hide_none_of_its_jobs() -> None:
    """Nor do faults of one job hide those of another's job file."""
    unknown = waiting("b", job={**JOB, "modle": 1})
    jobs = refused(queue(waiting(tokens="1B"), unknown, waiting("c", nodes=3)))
    assert [line.split(":")[0] for line in jobs] == ["jobs[0]", "jobs[2].nodes", "jobs[1].job"]
    assert "unknown key 'modle'" in jobs[2]

    assert [line.split(":")[0] for line in refused(queue(waiting(tokens="1B"), slot="0 h"))] == [
        "slot",
        "jobs[0]",
    ]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (queue(), "jobs: found 0, expected 1 to 1,000 jobs"),
        (queue(waiting(), powercap="1 kW"), "unknown key 'powercap'; did you mean 'power_cap'?"),
        (queue(waiting(), power_cap="60"), "power_cap: found '60', expected a number and a unit"),
        (queue(waiting(), slot="0 h"), "slot: found '0 h', expected a finite quantity above zero"),
        (
            {**queue(waiting()), "cluster": {"node": "dgx-h1000"}},
            "cluster.node: unknown node 'dgx-h1000'",
        ),
        ({"model": "gpt2", "data": {}, "cluster": {}}, "this is a job, expected a queue"),
        (queue(3), "jobs[0]: found 3, expected a mapping of name, job"),  # type: ignore[arg-type]
        (
            queue(waiting(), power_limits=["400 W", "5 W"]),
            "power_limits[1].power_limit: 5 W is not above",
        ),
        ([1], "found a list of 1 items, expected a mapping"),
        (queue(waiting(), objective="speed"), "objective: found 'speed', expected energy, cost"),
        (
            {
                **queue(waiting()),
                "cluster": {
                    "pools": [{"node": "dgx-h100"}, {"node": "dgx-a100"}],
                    "fabric": "infiniband-ndr-fat-tree",
                },
            },
            "cluster.pools: found several kinds of nodes, expected one kind",
        ),
    ],
    ids=range(11),
)
def test_what_is_no_queue(mapping: object, expected: str) -> None:
    """Where, found, expected."""
    assert any(expected in line for line in refused(mapping)), refused(mapping)

"""Places and neighbours in job files: which devices, and what is refused in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.job import Job, load_job, ranges

BASE: dict[str, Any] = {
    "model": "gpt2",
    "data": {"sequence_length": 512, "global_batch": 64},
    "cluster": {"node": "dgx-h100", "nodes": 4},
    "strategy": {"preset": "ddp", "dp": 8},
}


def write(folder: Path, name: str, **changes: Any) -> Path:
    """Write a job; a key that is None is left out."""
    content = {k: v for k, v in {**BASE, **changes}.items() if v is not None}
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def load(folder: Path, **changes: Any) -> Job:
    """Return the job of `a.yaml`."""
    return load_job(write(folder, "a.yaml", **changes))


@pytest.mark.parametrize(
    ("place", "devices"),
    [
        ({"nodes": 1}, tuple(range(8, 16))),
        ({"nodes": "3"}, tuple(range(24, 32))),
        ({"devices": "0-12:4, 1-13:4"}, (0, 4, 8, 12, 1, 5, 9, 13)),
        ({"devices": "31-31, 0-6"}, (31, 0, 1, 2, 3, 4, 5, 6)),
        ({"first_device": 4}, tuple(range(4, 12))),
    ],
)
def test_a_place_says_the_device_of_every_rank(
    tmp_path: Path, place: dict[str, Any], devices: tuple[int, ...]
) -> None:
    """In the order of ranks; from the first device on as many as the strategy has ranks."""
    assert load(tmp_path, place=place).devices == devices


def test_degrees_left_over_fill_the_place(tmp_path: Path) -> None:
    """A preset without `dp` takes what it is given, not the whole cluster."""
    job = load(tmp_path, place={"nodes": "0-2:2"}, strategy={"preset": "ddp"})
    assert job.devices == (*range(8), *range(16, 24))
    assert not isinstance(job.strategy, str)


def test_the_whole_cluster_in_order_is_no_place(tmp_path: Path) -> None:
    """So that it can be planned, and compiles as ever."""
    assert load(tmp_path, place={"nodes": "0-3"}, strategy="ddp").devices is None


def test_neighbours_are_packed_unless_they_say_where(tmp_path: Path) -> None:
    """The first job takes the first devices, each other one the first that are free."""
    write(tmp_path, "b.yaml", cluster={"node": "dgx-h100", "nodes": 2}, strategy="ddp")
    write(tmp_path, "c.yaml", cluster=None, strategy={"preset": "ddp", "dp": 4})
    job = load(
        tmp_path,
        neighbours=[
            {"job": "b.yaml"},
            {"job": "c.yaml", "first_device": 26, "offset": "250 ms"},
        ],
    )

    assert job.devices == tuple(range(8))
    assert [other.job.devices for other in job.neighbours] == [
        tuple(range(8, 24)),
        tuple(range(26, 30)),
    ]
    assert [other.offset_s for other in job.neighbours] == [None, 0.25]


def test_a_job_may_stand_beside_itself_and_name_each_other(tmp_path: Path) -> None:
    """Neighbours of neighbours are not followed, so no circle arises; strangers are warned of."""
    write(tmp_path, "b.yaml", neighbours=[{"job": "a.yaml"}, {"job": "x.yaml"}])
    job = load(tmp_path, neighbours=[{"job": "a.yaml"}, {"job": "b.yaml"}])

    assert [other.job.devices for other in job.neighbours] == [
        tuple(range(8, 16)),
        tuple(range(16, 24)),
    ]
    assert [line.partition("neighbours: ")[2] for line in job.warnings] == [
        "x.yaml not followed; name every job that runs alongside this one here"
    ]


def test_a_neighbour_keeps_its_power_cap_and_loses_its_stragglers(tmp_path: Path) -> None:
    """The first job's cluster is the truth; how a job caps its devices is its own affair."""
    own = {"node": "dgx-h100", "power_limit": "400 W", "slowdown": {"0": 2}}
    write(tmp_path, "b.yaml", cluster=own)
    job = load(tmp_path, neighbours=[{"job": "b.yaml"}])

    (other,) = job.neighbours
    assert other.job.cluster.power_limit_w == 400.0
    assert other.job.cluster.slowdown == {}
    assert "cluster.slowdown: has no effect on a neighbour" in job.warnings[0]
    assert job.capped(500.0).neighbours[0].job.cluster.power_limit_w == 500.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"place": {}}, "place: found none of them, expected one of first_device, devices and"),
        (
            {"place": {"nodes": "0", "first_device": 3}},
            "place: found first_device and nodes, expected one of",
        ),
        ({"place": {"nodes": "3-9"}}, "place.nodes: found 4-9, expected numbers from 0 to 3, as"),
        ({"place": {"devices": "0-3, 2"}}, "place.devices: found 2 more than once, expected each"),
        ({"place": {"devices": "5-2"}}, "place.devices: found '5-2', expected a number, or FIRST"),
        ({"place": {"devices": "0-6:0"}}, "place.devices: found '0-6:0', expected a number, or"),
        ({"place": {"devices": True}}, "place.devices: found true, expected numbers such as"),
        ({"place": {"first_device": -1}}, "place.first_device: found -1, expected a whole number"),
        (
            {"place": {"devices": "0-6"}},
            "strategy: the degrees multiply to 8 ranks (dp 8), expected 7, the devices of its",
        ),
        ({"neighbours": []}, "neighbours: found an empty list, expected a list of 1 to 64"),
        ({"neighbours": {"job": "b.yaml"}}, "neighbours: found a mapping of 1 keys, expected a"),
        ({"neighbours": [{"nodes": 1}]}, "neighbours[0].job: is missing, expected the path of"),
        (
            {"neighbours": [{"job": "gone.yaml"}]},
            "gone.yaml: there is no such file; check the path",
        ),
        (
            {"neighbours": [{"job": "b.yaml", "first_device": 7}]},
            "neighbours[0]: found devices 7 for {b}, which {a} has; expected devices that no other",
        ),
        (
            {"neighbours": [{"job": "b.yaml", "first_device": 32}]},
            "neighbours[0].first_device: found 32, expected numbers from 0 to 31, as the cluster",
        ),
        (
            {"neighbours": [{"job": "b.yaml", "offset": "-1 s"}]},
            "neighbours[0].offset: found '-1 s', expected",
        ),
        (
            {"neighbours": [{"job": "b.yaml"}], "strategy": "ddp"},
            "neighbours[0].job: {b}: found no device left on the cluster of {a}, expected some",
        ),
        (
            {"neighbours": [{"job": "auto.yaml"}]},
            "strategy: found 'auto', expected a strategy: a neighbour of {a} is executed as it is",
        ),
        (
            {"neighbours": [{"job": "a100.yaml"}]},
            "cluster.node: found dgx-a100, expected dgx-h100, the node of {a}, on whose cluster",
        ),
        (
            {"neighbours": [{"job": "ether.yaml"}]},
            "cluster.fabric: found ethernet-100g, expected",
        ),
        (
            {"neighbours": [{"job": "large.yaml"}]},
            "cluster.nodes: found 32 devices, expected at most 24: what is left of the cluster of",
        ),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Where, what was found, what was expected; in one line each."""
    write(tmp_path, "b.yaml", cluster=None)
    write(tmp_path, "auto.yaml", cluster=None, strategy="auto")
    write(tmp_path, "a100.yaml", cluster={"node": "dgx-a100"})
    write(tmp_path, "ether.yaml", cluster={"node": "dgx-h100", "fabric": "ethernet-100g"})
    write(tmp_path, "large.yaml", strategy="ddp")
    with pytest.raises(JobError) as caught:
        load(tmp_path, **changes)

    expected = message.format(a=tmp_path / "a.yaml", b=tmp_path / "b.yaml")
    assert any(expected in line for line in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1, 2, 3], "0-3"),
        ([0, 2, 4, 6], "0-6:2"),
        ([0, 1, 8, 9], "0-1, 8-9"),
        ([3, 1, 7], "3, 1, 7"),
        ([0, 8], "0, 8"),
    ],
)
def test_lists_are_written_as_they_are_read(numbers: list[int], text: str) -> None:
    """Short enough for a message and a table."""
    assert ranges(numbers) == text

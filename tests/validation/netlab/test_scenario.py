"""Scenario files: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.validation.netlab import bundled_scenarios, load_folder, load_scenario


def raw(**changes: Any) -> dict[str, Any]:
    """Return a scenario of one message, with changes at the top level."""
    return {
        "id": "one",
        "topology": {
            "hosts": ["h0", "h1"],
            "switches": ["s0"],
            "links": [
                {"ends": ["h0", "s0"], "rate_mbit_per_s": 100},
                {"ends": ["h1", "s0"], "rate_mbit_per_s": 100},
            ],
        },
        "communicators": {"c": {"hosts": ["h0", "h1"]}},
        "tasks": [
            {
                "id": "flow",
                "kind": "send_recv",
                "communicator": "c",
                "source": "h0",
                "destination": "h1",
                "size_bytes": 4096,
            }
        ],
    } | changes


def refusal(folder: Path, scenario: dict[str, Any]) -> str:
    """Return the message with which a scenario is refused, its own path left out."""
    path = folder / "one.json"
    path.write_text(json.dumps(scenario), encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_scenario(path)
    return str(caught.value).replace(str(path), "FILE")


def test_a_scenario_without_a_measurement_is_read(tmp_path: Path) -> None:
    """It can be predicted all the same."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(raw()), encoding="utf-8")

    scenario = load_scenario(path)

    assert scenario.measured is None
    assert scenario.tasks[0].hosts == ("h0", "h1")
    assert scenario.tasks[0].stream == "c"
    assert scenario.cables[0].rate_bit_per_s == 100e6


def test_the_recorded_scenarios_are_all_there() -> None:
    """60 files, each with a measurement of every task on every host."""
    scenarios = bundled_scenarios()

    assert len(scenarios) == 60
    for one in scenarios:
        assert one.measured is not None
        assert {*one.measured.end_s} == {(t.name, h) for t in one.tasks for h in t.hosts}


TASK = raw()["tasks"][0]
SMALL_RING = {"kind": "all_gather", "communicator": "c", "id": "g"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": []}, "FILE: tasks: found none, expected at least one"),
        (
            {"tasks": [TASK | {"kind": "send_recieve"}]},
            "FILE: task flow.kind: found 'send_recieve', expected one of compute, matmul, "
            "send_recv, all_reduce, all_gather, reduce_scatter, broadcast, all_to_all; "
            "did you mean 'send_recv'?",
        ),
        (
            {"tasks": [TASK | {"strem": "x"}]},
            "FILE: tasks[0]: unknown key 'strem'; did you mean 'stream'?",
        ),
        (
            {"tasks": [TASK | {"destination": "h0"}]},
            "FILE: task flow.destination: found 'h0', expected another host than the source",
        ),
        (
            {"tasks": [TASK | {"communicator": "d"}]},
            "FILE: task flow.communicator: found 'd', expected one of: c",
        ),
        (
            {"tasks": [TASK | {"after": ["later"]}]},
            "FILE: task flow.after: found 'later', expected an earlier task that shares a host "
            "with it",
        ),
        (
            {"tasks": [TASK, TASK]},
            "FILE: task flow.id: found 'flow', expected a name that is not taken",
        ),
        (
            {"tasks": [TASK | {"size_bytes": 0}]},
            "FILE: task flow.size_bytes: found '0', expected a whole number from 1 to "
            "1099511627776",
        ),
        (
            {"tasks": [SMALL_RING | {"size_bytes": 12}]},
            "FILE: task g.size_bytes: found '12', expected a multiple of 4 B x 2 ranks",
        ),
        (
            {"tasks": [{"id": "w", "kind": "compute", "hosts": ["h0"], "duration_s": -1}]},
            "FILE: task w.duration_s.h0: found '-1', expected a number from 0 to 86400",
        ),
        (
            {"communicators": {"c": {"hosts": ["h1", "h0"]}}},
            "FILE: communicators.c.hosts: found \"['h1', 'h0']\", expected hosts of the topology, "
            "in its order, as ranks",
        ),
        (
            {"measured": {"makespan_s": 0}},
            "FILE: measured.makespan_s: found '0.0', expected a time above 0 s",
        ),
    ],
)
def test_a_fault_is_named_with_its_place(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Each message says where, what was found and what was expected."""
    assert refusal(tmp_path, raw(**changes)) == message


def test_all_faults_of_the_network_are_listed_at_once(tmp_path: Path) -> None:
    """One run of the tool per fault would be tedious."""
    links = [
        {"ends": ["h0", "nowhere"], "rate_mbit_per_s": 100},
        {"ends": ["h1", "s0"], "rate_mbit_per_s": 0},
    ]
    topology = raw()["topology"] | {"links": links, "queueing": "random"}

    found = refusal(tmp_path, raw(topology=topology)).splitlines()

    assert found[1:] == [
        "  topology.links[0].ends: found \"['nowhere']\", expected names of hosts or switches",
        "  topology.links[1].rate_mbit_per_s: found '0.0', expected a rate above 0 Mbit/s",
        "  topology.queueing: found 'random', expected fair or fifo",
    ]


def test_keys_of_no_concern_here_are_left_alone(tmp_path: Path) -> None:
    """The tool that measures leaves them alone, too."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(raw(recorded_by="somebody")), encoding="utf-8")

    assert load_scenario(path).name == "one"


def test_a_folder_without_scenarios_is_refused(tmp_path: Path) -> None:
    """An empty table would look like success."""
    with pytest.raises(JobError, match=r"holds no scenarios/\*\.json"):
        load_folder(tmp_path)


def test_a_folder_is_read_through_its_folder_of_scenarios(tmp_path: Path) -> None:
    """The layout of the tool that measures."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "one.json").write_text(json.dumps(raw()), encoding="utf-8")

    assert [one.name for one in load_folder(tmp_path)] == ["one"]

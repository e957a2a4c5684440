"""Scenario files: what is read, and what is refused with which words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.netlab import bundled_scenarios, load_folder, load_scenario
from wattree.errors import JobError


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
        ({"tasks": []}, "FILE: tasks: found an empty list, expected a list of tasks"),
        (
            {"tasks": [TASK | {"kind": "send_recieve"}]},
            "FILE: tasks.0.kind: found 'send_recieve', expected one of compute, matmul, "
            "send_recv, all_reduce, all_gather, reduce_scatter, broadcast, all_to_all",
        ),
        (
            {"tasks": [TASK | {"strem": "x"}]},
            "FILE: tasks.0: unknown key 'strem'; did you mean 'stream'?",
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
            "FILE: tasks.0.size_bytes: found 0, expected a whole number from 1 to 1099511627776",
        ),
        (
            {"tasks": [SMALL_RING | {"size_bytes": 12}]},
            "FILE: task g.size_bytes: found 12, expected a multiple of 4 B x 2 ranks",
        ),
        (
            {"tasks": [{"id": "w", "kind": "compute", "hosts": ["h0"], "duration_s": -1}]},
            "FILE: task w.duration_s: found -1.0, expected a number from 0 to 86400 for every host",
        ),
        (
            {"communicators": {"c": {"hosts": ["h1", "h0"]}}},
            "FILE: communicators.c.hosts: found ['h1', 'h0'], expected hosts of the topology, "
            "in its order, as ranks",
        ),
        (
            {"measured": {"makespan_s": 0}},
            "FILE: measured.makespan_s: found 0, expected a number above 0 and up to 86400",
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
        {"ends": ["h0", "s0"], "rate_mbit_per_s": "fast"},
        {"ends": ["h1", "s0"], "rate_mbit_per_s": 0},
    ]
    topology = raw()["topology"] | {"links": links, "queueing": "random"}

    found = refusal(tmp_path, raw(topology=topology)).splitlines()

    assert found[1:] == [
        "  topology.links.0.rate_mbit_per_s: found 'fast', expected a number above 0 and up to 1e9",
        "  topology.links.1.rate_mbit_per_s: found 0, expected a number above 0 and up to 1e9",
        "  topology.queueing: found 'random', expected fair or fifo",
    ]


LINK = raw()["topology"]["links"][0]


@pytest.mark.parametrize(
    ("scenario", "problems"),
    [
        (
            {},
            [
                "id: is missing, expected a name",
                "topology: is missing, expected a mapping of hosts, switches and links",
                "tasks: is missing, expected a list of tasks",
            ],
        ),
        ({**raw(), "topology": []}, ["topology: found an empty list, expected a mapping of"]),
        ({**raw(), "id": 3}, ["id: found 3, expected a name"]),
        (
            {"id": "a", "topology": {"hosts": ["h0"]}},
            ["tasks: is missing, expected a list of tasks"],
        ),
        (
            {"id": "a", "topology": {"links": 3}, "tasks": [TASK]},
            [
                "topology.hosts: is missing, expected a list of names",
                "topology.links: found 3, expected a list of links",
            ],
        ),
        (
            raw(tasks=[TASK | {"communicator": ["c"]}]),
            ["tasks.0.communicator: found a list of 1 items, expected a name"],
        ),
        (
            raw(communicators={"c": {}}),
            ["communicators.c.hosts: is missing, expected a list of at"],
        ),
        (
            raw(topology=raw()["topology"] | {"links": [LINK, LINK]}),
            ["topology.links.1.ends: found ['h0', 's0'], expected two names that no other link"],
        ),
        (
            raw(topology=raw()["topology"] | {"links": [LINK]}),
            ["communicators.c.hosts: no link of the network touches 'h1'"],
        ),
        (
            raw(topology=raw()["topology"] | {"links": [LINK, LINK | {"ends": ["h1", "x"]}]}),
            ["topology.links.1.ends: found ['x'], expected names of hosts or switches"],
        ),
        (
            raw(measured=[1]),
            ["measured: found a list of 1 items, expected a mapping of makespan_s"],
        ),
    ],
)
def test_wrong_parts_are_named(
    tmp_path: Path, scenario: dict[str, Any], problems: list[str]
) -> None:
    """What is missing is called so; hosts that cannot reach each other are no communicator."""
    found = refusal(tmp_path, scenario).removeprefix("FILE: ").splitlines()
    lines = [line.strip() for line in found if not line.endswith(" problems:")]

    assert [line[: len(start)] for line, start in zip(lines, problems, strict=False)] == problems


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(data=st.data())
def test_any_part_may_be_anything(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Never an error of another kind."""
    scenario = copy.deepcopy(raw(measured={"makespan_s": 1.0, "tasks": []}))
    holder: Any = scenario
    while True:
        keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = data.draw(JSON)
    path = tmp_path_factory.mktemp("fuzz") / "one.json"
    path.write_text(json.dumps(scenario), encoding="utf-8")
    try:
        found = load_scenario(path).name
    except JobError as error:
        found = str(error)

    assert isinstance(found, str)


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

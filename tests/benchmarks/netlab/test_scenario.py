"""Scenario files: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.netlab import bundled_scenarios, load_folder
from benchmarks.netlab.scenario import load_scenario
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tasks": [{"hosts": []}]}, "'kind'"), ({"topology": {}}, "'hosts'"), ({"tasks": 3}, "int")],
)
def test_what_is_no_scenario_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """By its file, and by what could not be read of it."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(raw(**changes)), encoding="utf-8")

    with pytest.raises(JobError, match=message):
        load_scenario(path)


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

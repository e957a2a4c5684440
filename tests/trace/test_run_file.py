"""Files of runs: what is written is what is read, and every fault has its key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import OutputError, RunError
from wattree.trace import (
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    RunOrigin,
    StageUse,
    Work,
    read_run,
    write_run,
)
from wattree.trace.run_file import read_runs

RUN = Run(
    name="vgg",
    origin=RunOrigin.MEASURED,
    activity=Activity.TRAINING,
    model="vgg16",
    node="two sockets",
    nodes=2,
    devices_per_node=1,
    wall_s=10.0,
    iterations=40,
    work=Work(samples=64, flop=3.0e12, gradient_bytes=5.5e8),
    stages={
        "materials": StageUse(busy_s=6.0, exposed_s=1.0, energy_j=150.0),
        "computing": StageUse(busy_s=7.0, exposed_s=7.0, energy_j=800.0),
        "communicating": StageUse(busy_s=3.0, exposed_s=2.0),
    },
    meters=(
        MeterReading(domain="node0/gpu0", meter="nvml", energy_j=900.5, resolution_j=0.001),
        MeterReading(domain="node0/cpu0", meter="estimate", energy_j=1.0, is_estimate=True),
    ),
    missing=("node0/dram0: permission denied",),
    power=(PowerSeries(domain="node0/gpu0", at_s=(0.1, 0.2), watts=(90.0, 91.5)),),
    utilization={"cpu": 0.25},
    rated_w=700.0,
    exit_code=None,
    command=("python", "train.py"),
    notes=("interrupted",),
)

positive = st.floats(0, 1e15)


def written(tmp_path: Path, **changes: Any) -> Path:
    """Return a file of `RUN` as JSON with some of its keys changed; None takes a key out."""
    path = tmp_path / "run.json"
    write_run(RUN, path)
    found = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        if value is None:
            del found[key]
        else:
            found[key] = value
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """Return the message with which a file is refused, without the file's name."""
    with pytest.raises(RunError) as caught:
        read_run(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Nothing is lost or rounded on the way."""
    write_run(RUN, tmp_path / "run.json")

    assert read_run(tmp_path / "run.json") == RUN


@given(
    at=st.lists(st.floats(0, 10), unique=True, max_size=8).map(sorted),
    watts=st.lists(st.floats(0, 1e9), min_size=8, max_size=8),
    samples=st.none() | positive,
)
def test_any_numbers_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    at: list[float],
    watts: list[float],
    samples: float | None,
) -> None:
    """JSON keeps every bit of a finite number."""
    path = tmp_path_factory.mktemp("runs") / "run.json"
    series = PowerSeries(domain="total", at_s=tuple(at), watts=tuple(watts[: len(at)]))
    run = replace(RUN, power=(series,), work=Work(samples=samples))
    write_run(run, path)

    assert read_run(path) == run


def test_what_a_file_leaves_out_has_its_default(tmp_path: Path) -> None:
    """A run written by hand needs little; its name is then that of the file."""
    path = tmp_path / "idle.json"
    path.write_text('{"schema": "wattree-run/1", "origin": "measured", "wall_s": 60}')

    assert read_run(path) == Run(name="idle", origin=RunOrigin.MEASURED, wall_s=60.0)


def test_several_runs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """Fits weigh runs by their place in the list that the user gave."""
    for name in ("b", "a"):
        write_run(replace(RUN, name=name), tmp_path / f"{name}.json")

    assert [run.name for run in read_runs([tmp_path / "b.json", tmp_path / "a.json"])] == ["b", "a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "wattree-run/9"}, "schema: found 'wattree-run/9', expected 'wattree-run/1'"),
        ({"schema": None}, "schema: is missing, expected 'wattree-run/1'"),
        ({"wall_s": None}, "wall_s: is missing"),
        ({"wall_s": 0}, "wall_s: found 0.0, expected a length above 0"),
        ({"wall_s": "10 s"}, 'wall_s: found "10 s", expected a number'),
        ({"nodes": 1.5}, "nodes: found 1.5, expected a whole number"),
        ({"nodes": True}, "nodes: found true, expected a whole number"),
        ({"nodes": 0}, "nodes: found 0, expected at least 1"),
        ({"origin": "guessed"}, 'origin: found "guessed", expected one of measured, estimated'),
        ({"energy": 5}, "energy: unknown key; known: "),
        ({"wal_s": 5}, "wal_s: unknown key; did you mean 'wall_s'? known: "),
        ({"work": {"flops": 5}}, "work.flops: unknown key; did you mean 'flop'? known: "),
        ({"work": {"flop": -1}}, "work.flop: found -1.0, expected 0 or more, or null"),
        ({"work": []}, "work: found a list, expected an object"),
        ({"meters": {}}, "meters: found an object, expected a list"),
        ({"meters": [3]}, "meters[0]: found 3, expected an object"),
        ({"meters": [{"domain": "a", "meter": "b"}]}, "meters[0].energy_j: is missing"),
        (
            {"meters": [{"domain": "a", "meter": "b", "energy_j": -2}]},
            "meters[0].energy_j: found -2.0, expected 0 or more (a)",
        ),
        (
            {"meters": [{"domain": "a", "meter": "b", "energy_j": 2}] * 2},
            "meters[1].domain: found 'a' a second time, expected each domain once",
        ),
        ({"utilization": {"cpu": 25}}, "utilization.cpu: found 25.0, expected a share between"),
        (
            {"power": [{"domain": "total", "at_s": [1, 2], "watts": [5, -5]}]},
            "power[0].watts[1]: found -5.0, expected 0 or more; leave out the times",
        ),
        (
            {"power": [{"domain": "total", "at_s": [1], "watts": [float("nan")]}]},
            "power[0].watts[0]: found nan, expected a finite number",
        ),
        (
            {"power": [{"domain": "total", "at_s": [2, 1], "watts": [5, 5]}]},
            "power[0].at_s[1]: found 1.0 after 2.0, expected ascending times",
        ),
        (
            {"power": [{"domain": "total", "at_s": [1, 2], "watts": [5]}]},
            "power[0]: found 2 times and 1 powers (total), expected as many",
        ),
        (
            {"stages": {"compute": {"busy_s": 10, "exposed_s": 10}}},
            "stages.compute: unknown stage; known: materials, computing, communicating",
        ),
        (
            {"stages": {"computing": {"busy_s": 5, "exposed_s": 5}}},
            "stages: found 5 s exposed in all, expected wall_s, 10 s",
        ),
    ],
)
def test_a_fault_is_told_with_its_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A user mends a file by the key that the message names."""
    assert refusal(written(tmp_path, **changes)).startswith(message)


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """Mending one fault after the other costs a run of the program each."""
    message = refusal(written(tmp_path, wall_s="x", nodes="y", color="red"))

    assert [line.split(":")[0].strip() for line in message.splitlines()] == [
        "3 problems",
        "nodes",
        "wall_s",
        "color",
    ]


def test_faults_of_several_files_are_told_with_their_files(tmp_path: Path) -> None:
    """A fit reads dozens of runs; the first bad one must not hide the others."""
    bad = written(tmp_path, wall_s=-1.0)
    gone = tmp_path / "gone.json"
    with pytest.raises(RunError) as caught:
        read_runs([bad, gone])

    assert str(caught.value).splitlines() == [
        "2 files of runs: 2 problems:",
        f"  {bad}: wall_s: found -1.0, expected a length above 0",
        f"  {gone}: there is no such file; check the path",
    ]


def test_a_run_that_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    """A file that was written and cannot be read is a measurement lost."""
    path = tmp_path / "run.json"
    with pytest.raises(RunError, match="wall_s: found nan, expected a length above 0"):
        write_run(replace(RUN, wall_s=float("nan")), path)

    assert not path.exists()


def test_a_place_that_cannot_be_written_is_an_error_of_output(tmp_path: Path) -> None:
    """As for every other file that is written."""
    with pytest.raises(OutputError):
        write_run(RUN, tmp_path / "no such folder" / "run.json")


def test_a_nodes_own_meter_contains_its_parts() -> None:
    """The meter at the wall reads the processor's joules, too: they count once."""
    board = MeterReading(domain="node0/board", meter="csv", energy_j=2000.0)
    other = MeterReading(domain="node1/gpu0", meter="nvml", energy_j=10.0)

    assert replace(RUN, meters=(*RUN.meters, board, other)).energy_j == pytest.approx(2010.0)

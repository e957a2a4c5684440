"""The executor against recorded traffic, and one live measurement where the machine allows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.netlab import (
    Comparison,
    bundled_scenarios,
    compare,
    load_folder,
    load_machine,
    network_of,
    predict,
    summary,
)
from benchmarks.netlab.graph import build_graph
from benchmarks.netlab.machine import MACHINE_FILE
from benchmarks.netlab.scenario import load_scenario
from wattree.errors import JobError


@pytest.fixture(scope="module")
def compared() -> list[Comparison]:
    """Return predictions of all recorded scenarios alongside their measurements."""
    machine = load_machine()
    return [compare(one, predict(one, machine)) for one in bundled_scenarios()]


def test_makespans_are_within_the_wanted_errors(compared: list[Comparison]) -> None:
    """A plain max-min model reaches 0.5 % in the mean and 2.0 % at worst."""
    found = summary(one for one in compared if not one.multiplies)

    assert found.count == 54 + 2
    assert found.mean_abs_error is not None
    assert found.mean_abs_error <= 0.005
    assert found.worst is not None
    assert found.worst <= 0.02, found.worst_id


def test_tasks_end_when_they_ended(compared: list[Comparison]) -> None:
    """2.2 % of the makespan is wanted; senders that go on early are part of it."""
    found = summary(one for one in compared if not one.multiplies)

    assert found.mean_end_error is not None
    assert found.mean_end_error <= 0.01


def test_products_beside_traffic_are_predicted_from_the_two_alone(
    compared: list[Comparison],
) -> None:
    """8 % is wanted; one calibration of the machine holds for all."""
    overlapped = [one.error for one in compared if one.name.endswith("-overlapped")]

    assert len(overlapped) == 2
    assert all(error is not None and abs(error) <= 0.05 for error in overlapped)


def test_scenarios_measured_after_the_fit_are_predicted_as_well() -> None:
    """Sixteen, half of them random, measured later: no constant has seen them."""
    machine = load_machine()
    unseen = load_folder(Path(__file__).parent / "unseen")
    found = [compare(one, predict(one, machine)) for one in unseen]
    quiet = summary(one for one in found if not one.multiplies)
    products = summary(one for one in found if one.multiplies)

    assert (quiet.count, products.count) == (14, 2)
    assert quiet.median_abs_error is not None
    assert quiet.median_abs_error <= 0.005
    assert quiet.worst is not None
    assert quiet.worst <= 0.03
    assert products.worst is not None
    assert products.worst <= 0.05


def test_queues_on_the_way_back_hold_connections_up() -> None:
    """One queue per link and flows both ways, measured on a busy machine; max-min misses 23 %."""
    machine = load_machine()
    duplex = load_folder(Path(__file__).parent / "duplex")
    found = summary(compare(one, predict(one, machine)) for one in duplex)

    assert found.count == 5
    assert found.mean_abs_error is not None
    assert found.mean_abs_error <= 0.015
    assert found.worst is not None
    assert found.worst <= 0.035


def test_a_prediction_does_not_look_at_the_measurement() -> None:
    """The same scenario without one is predicted alike, to the last bit."""
    machine = load_machine()
    for one in bundled_scenarios()[::9]:
        blind = predict(replace(one, measured=None), machine)
        assert blind.end_s == predict(one, machine).end_s


@pytest.mark.parametrize(
    "name", ["allreduce-4x16m", "allgather-8x12m-tree", "broadcast-8x4m", "alltoall-8x8m-tree"]
)
def test_links_carry_the_bytes_that_were_counted(root: Path, name: str) -> None:
    """Data, headers and acknowledgements on every direction of every link, within 0.5 %."""
    path = root / "validation" / "netlab" / f"{name}.json"
    counted = json.loads(path.read_text(encoding="utf-8"))["measured"]["link_bytes"]
    scenario, machine = load_scenario(path), load_machine()
    graph = build_graph(scenario, machine).graph
    links = network_of(scenario, machine).links
    carried: Counter[str] = Counter()
    for task in range(graph.tasks):
        for k in range(*graph.flow_offsets[task : task + 2]):
            carried[links[graph.flow_links[k]].name] += graph.link_traffic_bytes[task]

    # The counters see one header of 66 B per burst of two packets.
    headers = 66 / (2 * 8948)
    for link, found in counted.items():
        if found > 100_000:
            data = carried[link]
            assert data * (1 + headers) == pytest.approx(found, rel=5e-3), link


def test_a_calibration_without_a_constant_is_refused(tmp_path: Path) -> None:
    """A slip of the editor is named."""
    text = MACHINE_FILE.read_text(encoding="utf-8").replace("  wake_s:", "  wakes_s:")
    (tmp_path / "machine.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(JobError, match="wakes_s"):
        load_machine(tmp_path / "machine.yaml")


@pytest.mark.root
@pytest.mark.slow
def test_a_live_run_ends_when_predicted(shared: Path, tmp_path: Path) -> None:
    """Built, run and counted on this machine, by the tool that recorded the others."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program} (iproute2)")
    if subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    path = tmp_path / "p2p-256k-x20.json"
    shutil.copyfile(shared / "netlab" / "scenarios" / path.name, path)
    tool = [sys.executable, str(shared / "netlab" / "netlab.py"), "run", str(path), "--update"]
    options = ["--out", str(tmp_path / "rows.csv"), "--max-spread", "0.1"]
    done = subprocess.run([*tool, *options], capture_output=True, text=True, check=False)
    if done.returncode:  # a busy machine, or a kernel without the queues
        pytest.skip(f"the tool could not measure here: {done.stderr.strip()[:200]}")

    scenario = load_scenario(path)
    error = compare(scenario, predict(scenario, load_machine())).error

    assert error is not None
    # Other tests run alongside it; how exact predictions are, recordings of quiet machines tell.
    assert abs(error) < 0.5

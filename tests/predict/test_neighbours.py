"""A job with its neighbors, from job files: slower where they share, by what they share."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from wattree.accounts.bill import occupied_nodes
from wattree.accounts.neighbours import PHASES
from wattree.cli.main import run
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping, load_job
from wattree.predict import Prediction, simulate
from wattree.report import show_result
from wattree.search import plan
from wattree.trace import NeighbourEffect

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "shared-fabric.yaml"
MODEL = {"layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 32000}
FABRIC = """
name: tight
title: "Leaves of two nodes, eight to one"
kind: fat-tree
sources: {made: "Made up for a test"}
oversubscription: {value: 8, source: made}
leaf_nodes: {value: 2, source: made}
switch_latency: {value: "1 us", source: made}
switch_power_per_nic: {value: "20 W", source: made}
"""


def mapping(**changes: Any) -> dict[str, Any]:
    """Return a job of 32 ranks on 8 nodes that only computes a little."""
    return {
        "model": {"transformer": MODEL},
        "data": {"sequence_length": 1024, "global_batch": 32},
        "cluster": {"node": "dgx-h100", "nodes": 8, "fabric": "tight.yaml"},
        "strategy": {"preset": "ddp", "dp": 32},
        "traits": {"overlap_gradients": False},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the fabric and a neighbour."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "tight.yaml").write_text(FABRIC, encoding="utf-8")
    (folder / "other.yaml").write_text(json.dumps(mapping()), encoding="utf-8")
    return folder


def beside(folder: Path, place: str, neighbour: dict[str, Any], **changes: Any) -> Job:
    """Return the job on some nodes with one neighbour."""
    return job_from_mapping(
        mapping(place={"nodes": place}, neighbours=[{"job": "other.yaml", **neighbour}], **changes),
        "first.yaml",
        folder=folder,
    )


def effect(job: Job, **options: Any) -> NeighbourEffect:
    """Return what the neighbours do."""
    found = simulate(job, **options).result.neighbours
    assert found is not None
    return found


def test_packed_jobs_disturb_nobody(folder: Path) -> None:
    """Leaves of their own: step, exposure and energy of every phase are those alone, to 1e-12."""
    job = beside(folder, "0-3", {"nodes": "4-7"})
    found = simulate(job)
    there = found.result.neighbours

    assert there is not None
    assert len(there.executions) == PHASES
    for execute in there.executions:
        assert execute.step_time_s == pytest.approx(found.result.step_time_s, rel=1e-12)
        assert execute.energy_j == pytest.approx(found.result.energy_j.total, rel=1e-12)
    assert not any(links.shared for links in there.links)
    assert there.longer_s == {}


def test_equal_jobs_in_turn_take_twice_as_long_to_reduce(folder: Path) -> None:
    """In step with each other, each gets half of the uplinks: what alone takes t takes 2 t.

    Gradients are reduced at the end and nothing hides them, so the step grows by what was
    exposed alone, but for latencies and what each step sends inside its nodes.
    """
    found = effect(beside(folder, "0-6:2", {"nodes": "1-7:2", "offset": "0 s"}))

    assert found.phases_given
    (execute,) = found.executions
    assert execute.step_time_s - found.alone_s == pytest.approx(found.exposed_alone_s, rel=0.01)
    assert found.mean_s == found.least_s == found.most_s == execute.step_time_s
    assert found.energy_mean_j > found.energy_alone_j
    (name,) = found.longer_s
    assert name == "gradients.reduce"


def test_what_is_nothing_next_to_the_delay_is_not_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nanoseconds in a list of what takes longer are noise."""
    found = "wattree.accounts.neighbours._communication_s"
    monkeypatch.setattr(
        found, lambda trace: {"much": trace.makespan_s, "little": 1e-3 * trace.makespan_s}
    )
    longer_s = effect(beside(folder, "0-6:2", {"nodes": "1-7:2", "offset": "0 s"})).longer_s
    assert set(longer_s) == {"much"}


def test_the_delay_is_that_of_the_links_that_are_shared(folder: Path) -> None:
    """Uplinks alone are shared, so with uplinks for each job the whole delay is gone."""
    found = effect(beside(folder, "0-6:2", {"nodes": "1-7:2"}))
    links = {kind.kind: kind for kind in found.links}

    assert found.most_s > found.mean_s > found.least_s
    assert links["uplink"].shared
    assert links["uplink"].delay_s == pytest.approx(found.mean_s - found.alone_s, rel=1e-9)
    assert 0 < links["uplink"].crowded_s < found.most_s
    assert not links["network"].shared
    assert found.jobs[0].place == "nodes 1-7:2"


def test_a_neighbour_that_computes_meanwhile_delays_nobody(folder: Path) -> None:
    """The phase decides: begun half a step earlier it reduces while the job computes."""
    lockstep = effect(beside(folder, "0-6:2", {"nodes": "1-7:2", "offset": "0 s"}))
    middle_s = f"{lockstep.alone_s / 2} s"

    apart = effect(beside(folder, "0-6:2", {"nodes": "1-7:2", "offset": middle_s}))

    assert lockstep.mean_s > 1.001 * lockstep.alone_s
    assert apart.mean_s == pytest.approx(apart.alone_s, rel=1e-9)


@pytest.mark.parametrize("options", [{"fold": False}, {"sharing": "proteus"}])
def test_other_ways_to_play_it(folder: Path, options: dict[str, Any]) -> None:
    """Unfolded to 1e-9; two equal flows get halves by Proteus' rule, too."""
    job = beside(folder, "0-6:2", {"nodes": "1-7:2", "offset": "0 s"})

    found, plain = effect(job, **options), effect(job)

    assert found.mean_s == pytest.approx(plain.mean_s, rel=1e-9)
    assert found.energy_mean_j == pytest.approx(plain.energy_mean_j, rel=1e-9)


def test_all_else_is_of_the_job_alone(folder: Path) -> None:
    """The result without its neighbours is that of the same place without them."""
    job = beside(folder, "0-6:2", {"nodes": "1-7:2"})
    found, alone = simulate(job).result, simulate(replace(job, neighbours=())).result

    assert found.step_time_s == alone.step_time_s
    assert found.time_s == alone.time_s
    assert found.energy_j == alone.energy_j
    assert alone.neighbours is None


def test_the_trace_shows_all_jobs(folder: Path) -> None:
    """Classes are named by the files, and the job's own step is in it."""
    found = simulate(beside(folder, "0-6:2", {"nodes": "1-7:2"}))
    assert found.shared_fabric_step is not None
    names = found.shared_fabric_step.trace.graph.class_names

    assert {name.partition(":")[0] for name in names} == {"first", "other"}
    assert (
        max(time_s for time_s, _ in found.shared_fabric_step.power)
        <= found.shared_fabric_step.trace.makespan_s
    )


def test_a_shared_node_is_paid_by_its_users(folder: Path) -> None:
    """Two jobs on halves of the same nodes: each pays for half of them, alone or together."""
    halves = [", ".join(f"{8 * n + k}-{8 * n + k + 3}" for n in range(8)) for k in (0, 4)]
    job = job_from_mapping(
        mapping(
            place={"devices": halves[0]},
            neighbours=[{"job": "other.yaml", "devices": halves[1]}],
        ),
        "first.yaml",
        folder=folder,
    )

    assert occupied_nodes(job, 32) == pytest.approx((4.0,))
    assert occupied_nodes(replace(job, neighbours=()), 32) == pytest.approx((8.0,))


def test_a_place_is_not_planned(folder: Path) -> None:
    """Closed forms know no places: `plan` says so instead of leaving them out."""
    with pytest.raises(JobError, match=r"first\.yaml: neighbours: found, expected none to plan"):
        plan(beside(folder, "0-3", {"nodes": "4-7"}))


def test_an_export_holds_the_job_alone_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting without effect warns; the traces are those of the job at its place."""
    pair = mapping(
        cluster={"node": "dgx-h100"},
        place={"devices": "0-2:2"},
        strategy={"preset": "ddp"},
        neighbours=[{"job": "job.yaml"}],
    )
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(pair), encoding="utf-8")

    code = run(["export", str(path), "--to", "chakra", str(tmp_path / "t")])

    assert code == 0
    assert "neighbours: have no effect here" in capsys.readouterr().err
    assert len(list((tmp_path / "t").glob("*.et"))) == 2


@cache
def example() -> Prediction:
    """Return the example's prediction."""
    return simulate(load_job(EXAMPLE))


def test_the_example_tells_all_of_it() -> None:
    """As text: alone, together, why; as JSON: the same figures under `neighbours`."""
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        show_result(example().result, console)
    text = captured.get()

    assert "With its neighbors (all other figures: alone)" in text
    assert "uplinks of leaves" in text
    assert "8 offsets between their steps" in text
    found = example().result.as_json()["neighbours"]
    assert found["mean_s"] > found["alone_s"] == example().result.step_time_s
    json.dumps(found)

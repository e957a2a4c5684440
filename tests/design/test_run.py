"""Studies run to their end, whatever happens on the way, with the same results everywhere."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.design.studies import small_study
from wattree.accounts.energy_use import standing_w
from wattree.design import Outcome, Results, results_json, run_study, study_from_mapping
from wattree.design.outcome import WorkloadOutcome
from wattree.errors import OutputError
from wattree.job import job_from_mapping
from wattree.report.design.basis import marks
from wattree.report.design_table import show_points
from wattree.strategy import StrategyOptions, options_in_words
from wattree.strategy.described import describe_options

HERE = Path(__file__).parents[2]


def run(folder: Path, mapping: dict[str, Any] | None = None, **options: Any) -> Results:
    """Run a study with its file in `folder`."""
    study = study_from_mapping(mapping or small_study(), str(folder / "study.yaml"))
    return run_study(study, **({"on": "here"} | options))


def plain(results: Results) -> dict[str, Any]:
    """Return results without how long they took."""
    found = results_json(results)
    for outcome in found["outcomes"]:
        del outcome["seconds"]
    loaded: dict[str, Any] = json.loads(json.dumps(found))
    return loaded


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the small study, run through in one process."""
    return plain(run(tmp_path_factory.mktemp("expected")))


def test_the_small_study_says_what_fits_and_why_the_rest_does_not(expected: dict[str, Any]) -> None:
    """Half of its points have devices with too little memory."""
    outcomes = expected["outcomes"]
    fits = [outcome["feasible"] for outcome in outcomes]
    assert fits == [False] * 4 + [True] * 4
    assert all("out of memory" in outcome["reason"] for outcome in outcomes[:4])
    times = [outcome["totals"]["time_s"] for outcome in outcomes[4:]]
    assert times == sorted(times, reverse=True)


def test_processes_find_what_one_process_finds(tmp_path: Path, expected: dict[str, Any]) -> None:
    """Points are evaluated alike wherever they are."""
    assert plain(run(tmp_path, on="processes", workers=2)) == expected


def test_a_second_call_evaluates_nothing(
    tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is kept."""
    run(tmp_path)
    monkeypatch.setattr("wattree.design.run.backend_of", None)
    assert plain(run(tmp_path, resume=True)) == expected


def test_resume_refuses_to_begin_anew(tmp_path: Path) -> None:
    """A wrong name would otherwise start hours of work."""
    with pytest.raises(OutputError, match="nothing to resume"):
        run(tmp_path, resume=True)


#: Runs a study in a process that can be killed; it tells when it has begun, and waits for a line.
PROGRAM = """
import sys
def tell(done, *_):
    print("+", flush=True)
    if not done:
        sys.stdin.readline()
sys.path[:] = sys.argv[3:]
from pathlib import Path
from tests.design.studies import small_study
from wattree.design import run_study, study_from_mapping
study = study_from_mapping(small_study(), str(Path(sys.argv[1]) / "study.yaml"))
run_study(study, on=sys.argv[2], workers=2, progress=tell)
"""


def started(folder: Path, on: str, wait_for: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Return a process that runs the small study, before its first point once it reads a line."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), on, str(HERE), *sys.path],
        stdin=wait_for,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("seed", "on"), [(1, "here"), (3, "processes"), pytest.param(2, "here", marks=pytest.mark.soak)]
)
def test_a_kill_at_any_moment_loses_nothing_that_was_finished(
    tmp_path: Path, expected: dict[str, Any], seed: int, on: str
) -> None:
    """Points reported as finished are in the file, which is sound, and the rest follows equally."""
    draw = random.Random(seed)
    process = started(tmp_path, on)
    assert process.stdout is not None
    told = 0
    for _ in range(draw.randint(1, 6)):
        told += bool(process.stdout.readline())
    time.sleep(draw.random() * 0.05)
    process.kill()
    process.wait()
    process.stdout.close()
    with sqlite3.connect(tmp_path / "study.results.sqlite") as file:
        (sound,) = file.execute("PRAGMA integrity_check").fetchone()
        (kept,) = file.execute("SELECT count(outcome) FROM points").fetchone()
    file.close()
    assert sound == "ok"
    assert kept >= told - 1  # the first line is printed before any point
    assert plain(run(tmp_path)) == expected


def test_two_calls_share_a_study(tmp_path: Path, expected: dict[str, Any]) -> None:
    """Each point is evaluated by one of them, and both return all."""
    other = started(tmp_path, "here", subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()
    own: list[int] = []

    def let_the_other_begin(done: int, *_: int) -> None:
        own.append(done)
        if done == 1:
            print(file=other.stdin, flush=True)

    mine = run(tmp_path, progress=let_the_other_begin)
    others = other.stdout.read().count("+")
    assert other.wait() == 0
    other.stdin.close()
    other.stdout.close()
    assert plain(mine) == expected
    assert len(own[1:]) + others == len(mine.outcomes)


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, expected: dict[str, Any]) -> None:
    """Ctrl-C ends workers, too, and gives back what they were at."""
    process = started(tmp_path, "processes")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=600)
    process.stdout.close()
    with sqlite3.connect(tmp_path / "study.results.sqlite") as file:
        kept, claimed = file.execute("SELECT count(outcome), count(owner) FROM points").fetchone()
    file.close()
    assert (kept >= 1, claimed) == (True, 0)
    assert plain(run(tmp_path)) == expected


def test_a_worker_that_dies_is_replaced(tmp_path: Path, expected: dict[str, Any]) -> None:
    """Once: memory may have been short for a moment."""
    from wattree.design.backends import processes

    killed: list[int] = []
    submit = processes.Processes.submit

    def submit_and_kill(pool: processes.Processes, points: Any) -> None:
        submit(pool, points)
        if not killed and pool._workers:
            killed.append(pool._workers[0].process.pid)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.Processes, "submit", submit_and_kill)
        found = plain(run(tmp_path, on="processes", workers=2))
    assert killed
    assert found == expected


@pytest.mark.parametrize("batch", [3, 16])
def test_a_guided_search_is_the_same_after_an_interruption(tmp_path: Path, batch: int) -> None:
    """Batches follow from the seed and from what is known."""
    pytest.importorskip("optuna")
    mapping = small_study(
        axes={
            "bandwidth": {"path": "node.scale_up.bandwidth", "range": ["50 GB/s", "900 GB/s"]},
            "memory": {"path": "device.memory", "values": ["1 GB", "40 GB", "80 GB"]},
        },
        sampler={"kind": "guided", "points": 9, "seed": 3, "batch": batch},
    )
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = plain(run(tmp_path / "whole", mapping))

    def stop(done: int, *_: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", mapping, progress=stop)
    parts = plain(run(tmp_path / "parts", mapping))
    assert len(whole["outcomes"]) == 9
    assert parts == whole


def test_a_run_ends_when_its_minutes_are_over(
    tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished is kept, results say why there is no more, and a later run goes on."""
    mapping, now = small_study(sampler={"minutes": 5}), [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("wattree.design.run.time", clock)

    def wait(done: int, *_: int) -> None:
        now[0] += 400.0 * (done == 3)

    first = run(tmp_path, mapping, progress=wait)
    assert (len(first), first.points, first.out_of_time) == (3, 8, True)
    assert plain(run(tmp_path, mapping)) == expected


def _check_loads(one: WorkloadOutcome, mapping: dict[str, Any]) -> None:
    """Check that a job with the strategy of a point can be read, and has that very strategy."""
    (workload,) = mapping["workloads"]
    written = {"strategy": one.strategy_json, "cluster": mapping["cluster"]}
    written |= {"place": {"devices": f"0-{one.devices - 1}"}}
    chosen = job_from_mapping(workload["job"] | written).strategy
    if isinstance(chosen, StrategyOptions):
        assert one.strategy == options_in_words(chosen)
        assert one.strategy_json == describe_options(chosen)
    else:
        assert (one.strategy, "preset" in one.strategy_json) == ("a tree of the study", False)


def test_the_tree_of_a_study_is_written_as_job_files_have_it(tmp_path: Path) -> None:
    """A study gives a tree as a job does, and its table has it back without names of presets."""
    mapping = small_study(axes={"site": {"path": "cluster.site", "values": ["sweden"]}})
    (workload,) = mapping["workloads"]
    workload["job"] |= {"model": "gpt2"}
    tree = {"layers.*": {"compute": {"batch": "dp"}}}
    workload["strategy"] = {"mesh": {"dp": 8}, "schedule": {"micro_batches": 2}, "tree": tree}

    (outcome,) = run(tmp_path, mapping).outcomes

    _check_loads(outcome.workloads[0], mapping)


@pytest.mark.parametrize("simulate", [0, 1])
def test_embodied_emissions_are_in_the_carbon_of_a_point(tmp_path: Path, simulate: int) -> None:
    """By time and node, simulated or of the closed form; a part of the devices is named."""
    found = {}
    for name, energy in (("without", {}), ("with", {"embodied": {"device": "1095 kgCO2e"}})):
        mapping = small_study(axes={"site": {"path": "cluster.site", "values": ["sweden"]}})
        (workload,) = mapping["workloads"]
        workload["search"] |= {"simulate": simulate, "fewer_devices": True, "dp": 4, "tp": 1}
        if energy:
            workload["job"]["energy"] = {"embodied": energy["embodied"] | {"lifetime": "1 y"}}
        (tmp_path / name).mkdir()
        (found[name],) = run(tmp_path / name, mapping).outcomes

    (one,) = found["with"].workloads
    extra_g = found["with"].totals["carbon_gco2e"] - found["without"].totals["carbon_gco2e"]
    assert extra_g == pytest.approx(1000.0 / 3600.0 * (one.time_s or 0.0))
    assert "on 4 of 8 devices" in one.notes
    _check_loads(one, mapping)


def test_a_study_tries_numbers_of_devices_between_those_that_divide(tmp_path: Path) -> None:
    """As `plan` does: of four nodes, three may be what the power of the site allows.

    The fourth was bought, too: its price, and what it draws at rest, count.
    """
    bought = {"capital.node": "146 USD", "capital.lifetime": "10 h"}
    bought |= {"site.energy_price": "0.1 USD/kWh"}

    def point(nodes: int, **changes: Any) -> Outcome:
        mapping = small_study(axes={"nodes": {"path": "cluster.nodes", "values": [nodes]}})
        (workload,) = mapping["workloads"]
        workload["job"] |= {"model": "gpt2", "data": {"sequence_length": 512, "global_batch": 48}}
        workload["search"] = {"sharding": "zero1", "recompute": "none", "fewer_devices": True}
        folder = tmp_path / str(nodes)
        folder.mkdir()
        (found,) = run(folder, mapping | {"changes": bought} | changes).outcomes
        return found

    three = point(3)
    study = small_study()
    job = study["workloads"][0]["job"] | {"cluster": study["cluster"] | {"nodes": 4}}
    cluster = job_from_mapping(job).cluster
    idle_w = sum(standing_w(cluster, (4.0,))) / 4.0 * cluster.site.pue
    limit = f"{1.01 * (three.totals['power_w'] + idle_w)} W"
    four = point(4, constraints={"power": limit})

    assert [outcome.workloads[0].devices for outcome in (three, four)] == [24, 24]
    time_s, energy_j = four.totals["time_s"], four.totals["energy_j"]
    assert time_s <= three.totals["time_s"]
    assert energy_j == pytest.approx(three.totals["energy_j"] + idle_w * time_s, rel=1e-3)
    cost_usd = 4 * 146.0 * time_s / 36e3 + 0.1 * energy_j / 3.6e6
    assert four.totals["cost_usd"] == pytest.approx(cost_usd)


def test_a_study_proposes_what_the_software_of_a_job_can_run(tmp_path: Path) -> None:
    """By the rule of `plan` and in its words; `search.any_software` lifts it."""
    axes = {"any": {"path": "search.any_software", "values": [False, True]}}
    mapping = small_study(axes=axes)
    (workload,) = mapping["workloads"]
    workload["job"]["software"] = "megatron-lm-2021"
    workload["search"] = {"cp": 1, "sharding": ["zero1", "none"], "tp": 1, "pp": 1, "simulate": 1}

    results = run(tmp_path, mapping)
    text = StringIO()
    show_points(results, Console(file=text, width=200))

    offered, lifted = (outcome.workloads[0] for outcome in results.outcomes)
    assert (offered.not_offered, lifted.not_offered) == (("sharding zero1",), ())
    assert "zero1" not in offered.strategy
    assert "zero1" in lifted.strategy
    words = "Not tried, because the software cannot run it"
    assert f"{words}: sharding zero1 (1 result)\n" in text.getvalue()
    assert [(mark["name"], mark["text"]) for mark in marks(results) if mark["name"] == words] == [
        (words, "sharding zero1 (1 result).")
    ]


def test_a_study_says_what_software_lacks_where_no_strategy_is_left(tmp_path: Path) -> None:
    """The batch is not what must change."""
    mapping = small_study(axes={"tp": {"path": "search.tp", "values": [1]}})
    (workload,) = mapping["workloads"]
    workload["job"]["software"] = "megatron-lm-2021"
    workload["search"] = {"cp": 1, "pp": 1, "sharding": "zero3"}

    (outcome,) = run(tmp_path, mapping).outcomes

    assert "not tried, because the software cannot run it: sharding zero3" in str(outcome.reason)


def test_a_study_leaves_as_much_memory_free_as_plan(tmp_path: Path) -> None:
    """Else it recommends clusters on which `plan` finds that nothing fits."""
    (needed,) = (o.workloads[0].memory_bytes for o in run(tmp_path, _memory("80 GB")).outcomes)
    assert needed is not None
    tight = _memory(f"{0.97 * needed / 0.95:.0f} B")
    found = {}
    for simulate in (0, 1):
        tight["workloads"][0]["search"]["simulate"] = simulate
        for margin in ({}, {"margin": 0.02}):
            folder = tmp_path / f"{simulate}{len(margin)}"
            folder.mkdir()
            (outcome,) = run(folder, tight | {"search": margin}).outcomes
            found[simulate, len(margin)] = outcome

    assert [outcome.feasible for outcome in found.values()] == [False, True, False, True]
    assert "5% left free" in str(found[0, 0].reason)


def _memory(*values: str) -> dict[str, Any]:
    """Return the small study with devices of these amounts of memory."""
    study = small_study(axes={"memory": {"path": "device.memory", "values": list(values)}})
    study["workloads"][0]["search"]["tp"] = 1
    return study


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    """With those there are."""
    with pytest.raises(OutputError, match="expected processes, here, ray"):
        run(tmp_path, on="clod")


def test_adapters_slower_than_they_could_be_are_noted_where_nodes_are_joined(
    tmp_path: Path,
) -> None:
    """As jobs are warned of ports: whoever compares clusters must know what limits them."""
    axes = {"nodes": {"path": "cluster.nodes", "values": [1, 2]}}
    cluster = {"node": "dgx-h100", "fabric": "ethernet-10g"}
    found = run(tmp_path, small_study(cluster=cluster, axes=axes))

    notes = [outcome.workloads[0].notes for outcome in found.outcomes]
    assert notes == [
        (),
        (
            "ports of ethernet-10g run at 10 Gbit/s, adapters of dgx-h100 could do 400 Gbit/s; "
            "they are computed at 10 Gbit/s",
        ),
    ]

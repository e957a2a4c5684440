"""Strategies that differ in details alone are one idea; a plan can be written as a job."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.search.jobs import FEW
from wattree.cli.main import run
from wattree.files import read_yaml
from wattree.job.written import yaml_text
from wattree.search import Plan

_MODELS = {
    "dense": {"model": "gpt3-1.3b", "software": "megatron-core"},
    "experts": {"model": "qwen1.5-moe-a2.7b", "software": "megatron-core"},
    "no software": {"model": "llama-3.2-1b"},
    "fsdp": {"model": "llama-3.2-3b", "software": "torchtitan"},
    "windowed": {
        "model": "llama-3.1-70b",
        "software": "maxtext",
        "cluster": {"node": "tpu-v5p-host", "nodes": 8},
    },
}


def _mapping(**changes: Any) -> dict[str, Any]:
    return {
        "data": {"sequence_length": 2048, "global_batch": 32},
        "cluster": {"node": "dgx-h100", "nodes": 1},
        **changes,
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan with many alike."""
    return wattree.plan(wattree.job_from_mapping(_mapping(**_MODELS["dense"])), top=4)


def test_variants_have_the_degrees_of_their_idea_and_are_near_it(plan: Plan) -> None:
    """Ten rows show ten ideas."""
    assert len(plan.ideas) <= 4
    assert any(len(idea) > 1 for idea in plan.ideas)
    for best, *others in plan.ideas:
        for other in others:
            assert other.options.parallelism.tp == best.options.parallelism.tp
            assert other.options.pp == best.options.pp
            assert other.result.step_time_s <= 1.01 * best.result.step_time_s


def test_no_strategy_is_lost_in_ideas(plan: Plan) -> None:
    """JSON has them all, each with the number of its idea."""
    found = plan.as_json()["ranked"]

    assert sum(len(idea) for idea in plan.ideas) == len(plan.ranked) == len(found)
    assert {entry["idea"] for entry in found} == set(range(1, len(plan.ideas) + 1))


@pytest.mark.parametrize("name", _MODELS)
def test_a_written_plan_simulates_as_it_was_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is a job like any other: same time, same memory, no option left to the software."""
    few = replace(FEW, axes={"cp": (1,)}, recomputations=("full",))
    monkeypatch.setattr(import_module("wattree.search.plan"), "Limits", lambda: few)
    job, out, found = (tmp_path / each for each in ("job.yaml", "best.yaml", "plan.json"))
    job.write_text(yaml_text(_mapping(**_MODELS[name])), encoding="utf-8")

    assert run(["plan", str(job), "--out", str(out), "--rank", "2", "--json", str(found)]) == 0

    ranked = json.loads(found.read_text(encoding="utf-8"))["ranked"]
    planned = next(entry for entry in ranked if entry["idea"] == 2)
    again = wattree.simulate(wattree.load_job(out)).result
    assert again.step_time_s == pytest.approx(planned["step_time_s"], rel=1e-9)
    assert again.memory.peak_bytes == pytest.approx(planned["memory"]["peak_bytes"], rel=1e-9)


@pytest.mark.usefixtures("small_space")
@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_a_written_plan_finds_the_files_of_its_job(folder: str, tmp_path: Path) -> None:
    """By their own paths beside the job, so that both can be moved; else by absolute ones."""
    job, out = tmp_path / "job.yaml", tmp_path / folder / "best.yaml"
    out.parent.mkdir(exist_ok=True)
    model = Path(__file__).parents[2] / "examples/small-llama/config.json"
    (tmp_path / "mine.json").write_text(model.read_text(encoding="utf-8"), encoding="utf-8")
    job.write_text(yaml_text(_mapping(model="mine.json")), encoding="utf-8")

    assert run(["plan", str(job), "--out", str(out)]) == 0

    written = "mine.json" if folder == "." else str(tmp_path / "mine.json")
    assert read_yaml(out)["model"] == written
    assert wattree.load_job(out).model.name == str(tmp_path / "mine.json")


@pytest.mark.usefixtures("small_space")
def test_a_rank_that_is_not_there_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written."""
    job, out = tmp_path / "job.yaml", tmp_path / "best.yaml"
    job.write_text(yaml_text(_mapping(**_MODELS["no software"])), encoding="utf-8")

    assert run(["plan", str(job), "--out", str(out), "--rank", "99"]) == 2

    assert "--rank: found 99" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.usefixtures("small_space")
def test_software_families_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best strategy of each, whatever its names; an unknown family is a mistake."""
    job = tmp_path / "job.yaml"
    job.write_text(yaml_text(_mapping(**_MODELS["fsdp"])), encoding="utf-8")

    best = tmp_path / "best.yaml"
    asked = ["--software", "torchtitan, accelerate, Torchtitan", "--out", str(best)]
    assert run(["plan", str(job), *asked]) == 0
    assert wattree.load_job(best).software in {"torchtitan", "accelerate"}
    shown, told = capsys.readouterr()
    assert "torchtitan: dp" in shown
    assert "accelerate: dp" in shown
    assert re.search(r"Why\n  (torchtitan|accelerate): the step is .* of (torchtitan|acc)", shown)
    assert "--software: torchtitan and Torchtitan are one family, torchtitan" in told
    assert run(["plan", str(job), "--software", "torchtitn"]) == 2


@pytest.mark.usefixtures("small_space")
def test_a_rank_of_software_families_is_a_row_of_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a row of the best family's own ranking, which is not shown."""
    job, out = tmp_path / "job.yaml", tmp_path / "second.yaml"
    job.write_text(yaml_text(_mapping(**_MODELS["fsdp"])), encoding="utf-8")

    words = ["--software", "torchtitan,accelerate", "--rank", "2", "--out", str(out)]
    assert run(["plan", str(job), *words, "--json", "-"]) == 0

    second = list(json.loads(capsys.readouterr().out)["software"].items())[1]
    written = wattree.load_job(out)
    step_s = wattree.simulate(written).result.step_time_s
    assert written.software == second[0]
    assert f"best of {second[0]} by time" in out.read_text(encoding="utf-8")
    assert step_s == pytest.approx(second[1]["best"]["step_time_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "2"], "--rank: found without --out"),
        (["--nodes", "1..2", "--full"], "--full: found together with --nodes"),
        (["--nodes", "1..2", "--rank", "2", "--out", "x"], "--rank: found together with --nodes"),
        (["--software", "jax", "--pareto", "time,energy"], "--pareto: found together with"),
        (["--software", "jax,nope,none"], "unknown software 'nope'"),
        (["--software", ""], "unknown software ''"),
    ],
)
def test_options_without_effect_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """The job is not even read."""
    assert run(["plan", str(tmp_path / "none.yaml"), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("small_space")
def test_families_that_fit_nothing_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where none fits, the exit code is that of nothing."""
    job = tmp_path / "job.yaml"
    keys = _MODELS["fsdp"] | {"model": "llama-3.1-405b", "cluster": {"node": "dgx-h100"}}
    job.write_text(yaml_text(_mapping(**keys)), encoding="utf-8")

    assert run(["plan", str(job), "--software", "torchtitan"]) == 3

    said = capsys.readouterr().out
    assert "torchtitan: nothing fits" in said
    assert "what would help" in said


@pytest.mark.usefixtures("small_space")
def test_a_plan_tells_of_the_run_that_was_asked_for_and_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the job's steps, which `--deadline` limits, or `--tokens`; a report is written."""
    job, out, page = (tmp_path / name for name in ("job.yaml", "best of.yaml", "r.html"))
    keys = _MODELS["no software"] | {"training": {"steps": 2000}}
    job.write_text(yaml_text(_mapping(**keys)), encoding="utf-8")
    assert run(["plan", str(job), "--deadline", "30 d"]) == 0
    assert "2,000 steps" in capsys.readouterr().out

    words = ["--tokens", "1B", "--out", str(out), "--report", str(page)]
    assert run(["plan", str(job), *words]) == 0

    shown = capsys.readouterr()
    assert "The run" in shown.out
    assert "1 billion tokens" in shown.out
    assert f"Next: wattree simulate '{out}'" in shown.err
    assert "<html" in page.read_text(encoding="utf-8")


def test_the_runner_up_is_the_second_row(plan: Plan) -> None:
    """A variant of the winner is no row of its own: its label would be nowhere on the screen."""
    assert plan.ideas[1][0].label in plan.explanation[1]


@pytest.mark.usefixtures("small_space")
@pytest.mark.parametrize("devices", [3, 16])
def test_a_plan_on_part_of_the_cluster_is_written_for_that_part(
    tmp_path: Path, devices: int
) -> None:
    """The file of a strategy on fewer devices simulates as it was planned."""
    job, out = tmp_path / "job.yaml", tmp_path / "best.yaml"
    data = {"sequence_length": 1024, "global_batch": 48}
    cluster = {"node": "dgx-h100", "nodes": 4}
    job.write_text(yaml_text(_mapping(model="gpt2", data=data, cluster=cluster)), encoding="utf-8")
    words = ["--max-devices", str(devices), "--out", str(out), "--json", str(tmp_path / "p.json")]
    assert run(["plan", str(job), *words]) == 0

    best = json.loads((tmp_path / "p.json").read_text())["best"]
    written = wattree.load_job(out)
    again = wattree.simulate(written).result
    assert (again.ranks, written.cluster.nodes) == (devices, -(-devices // 8))
    assert again.step_time_s == pytest.approx(best["step_time_s"], rel=1e-9)
    assert again.energy_j.total == pytest.approx(best["energy_j"]["total"], rel=1e-9)
    assert again.cost_usd == pytest.approx(best["cost_usd"], rel=1e-9)

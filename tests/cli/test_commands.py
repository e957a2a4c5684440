"""The command line as a user meets it: help, exit codes, what goes where."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cli.fakes import JOB, Fake, prediction, raising
from tests.samples import sample_plan, too_large
from wattree.cli.main import run
from wattree.cost import Software
from wattree.errors import InfeasibleError

COMMANDS = (
    *("plan", "design", "simulate", "profile", "train", "launch", "validate", "measure"),
    *("calibrate", "explain"),
    *("catalog", "schema", "export", "import", "replay"),
)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_as_reviewed(
    golden: Any, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help is the first page of the manual."""
    monkeypatch.setenv("COLUMNS", "100")
    code = run([*command.split(), "--help"])
    golden.check(f"help_{command or 'wattree'}.txt", capsys.readouterr().out)

    assert code == 0


def test_catalog_shows_what_software_can_run_and_every_trait_with_its_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job can replace any trait, so a reader must be able to find them."""
    code = run(["catalog", "software", "torchtitan", "--json", "-"])
    found = json.loads(capsys.readouterr().out)

    traits = {field.name for field in dataclasses.fields(Software)} - {"name", "title"}
    assert code == 0
    assert found["sharding"] == ["none", "zero2", "zero3", "hybrid"]
    assert traits <= found.keys()
    assert traits <= found["sources"].keys(), "a trait without a meaning"


def test_simulate_prints_the_report(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """The plain command answers the plain question."""
    fake(simulate=lambda *_, **__: prediction())
    code = run(["simulate", JOB])

    assert (code, "Where the step goes" in capsys.readouterr().out) == (0, True)


def test_a_dash_prints_json_and_nothing_else(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """One stray line would break every pipe."""
    fake(simulate=lambda *_, **__: prediction())
    run(["simulate", JOB, "--json", "-"])

    assert json.loads(capsys.readouterr().out)["step_time_s"] == 16.0


def test_a_schema_is_printed_as_other_json_is(capsys: pytest.CaptureFixture[str]) -> None:
    """By the option of all commands, or by none."""
    printed = []
    for options in ((), ("--json", "-")):
        assert run(["schema", "job", *options]) == 0
        printed.append(json.loads(capsys.readouterr().out))

    assert printed[0] == printed[1]


def test_a_job_without_a_strategy_is_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing will be executed."""
    path = tmp_path / "job.yaml"
    path.write_text("{model: resnet50, data: {global_batch: 8}, cluster: {node: dgx-h100}}")
    monkeypatch.setattr("wattree.sim.kernels_are_compiled", lambda: False)
    monkeypatch.setattr("wattree.sim.compile_ahead", lambda: pytest.fail("was compiled"))

    for options in ((), ("--power-limit", "sweep")):
        assert run(["simulate", str(path), *options]) == 2
        said = capsys.readouterr().err
        assert "found 'auto', expected a strategy" in said
        assert "First run" not in said


def test_simulate_writes_json_and_trace(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files and text do not exclude each other; the trace carries the power of the job."""
    fake(simulate=lambda *_, **__: prediction())
    run(["simulate", JOB, "--json", f"{tmp_path}/r.json", "--trace", f"{tmp_path}/t.json"])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    watts = [event["args"]["power"] for event in events if event["name"] == "power [W]"]

    assert (json.loads((tmp_path / "r.json").read_text())["ranks"], watts) == (8, [5000, 6000])
    assert "Step time" in capsys.readouterr().out


def test_what_does_not_fit_is_exit_code_3_with_json(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script sees that it does not fit, and can still read by how much."""
    monkeypatch.setattr("wattree.search.with_memory_fixes", lambda _, found, **__: found)
    fake(simulate=lambda *_, **__: prediction(memory=too_large()))
    code = run(["simulate", JOB, "--json", "-"])

    assert (code, json.loads(capsys.readouterr().out)["memory"]["fits"]) == (3, False)


def test_what_does_not_fit_is_said_first_with_what_would_help(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after two screens of figures of a step that cannot be."""
    monkeypatch.setattr("wattree.search.with_memory_fixes", lambda _, found, **__: found)
    fake(simulate=lambda *_, **__: prediction(memory=too_large()))
    code = run(["simulate", JOB])
    first = capsys.readouterr().out.splitlines()[0]

    assert code == 3
    assert " does not fit in memory: needs " in first
    assert "; try: " in first


def test_a_study_without_a_feasible_point_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a job that does not fit; its points are written all the same."""
    results = SimpleNamespace(feasible=np.zeros(2, dtype=bool))
    for name, found in (
        ("load_study", lambda _: None),
        ("default_store", lambda _: tmp_path / "points.sqlite"),
        ("run_study", lambda *_, **__: results),
        ("results_json", lambda _: {"points": 2}),
    ):
        monkeypatch.setattr(f"wattree.design.{name}", found)
    code = run(["design", str(tmp_path / "study.yaml"), "--json", "-"])

    assert (code, json.loads(capsys.readouterr().out)) == (3, {"points": 2})


def test_simulate_passes_its_options_on(fake: Fake) -> None:
    """An option that no one reads is a lie."""
    seen: dict[str, Any] = {}
    fake(simulate=lambda _, **options: (seen.update(options), prediction())[1])
    run(
        ["simulate", JOB, "--fold", "off", "--sharing", "proteus", "--calibration", "c.yaml",
         "--no-mutual-slowdown", "--memory", "stage 0"]
    )  # fmt: skip

    assert seen == {
        "fold": False,
        "sharing": "proteus",
        "mutual_slowdown": False,
        "calibration": Path("c.yaml"),
        "memory_of": "stage 0",
    }


def test_simulate_lists_what_is_alive_on_the_ranks_asked_for(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows add up to what is said of them, and an unknown name is refused with the known."""
    job = str(job_file(strategy={"preset": "megatron", "pp": 2}))

    code = run(["simulate", job, "--memory", "stage 1", "--json", "-"])
    memory = json.loads(capsys.readouterr().out)["memory"]
    unfolded = run(["simulate", job, "--memory", "stage 1", "--fold", "off", "--json", "-"])
    alone = json.loads(capsys.readouterr().out)["memory"]
    refused = run(["simulate", job, "--memory", "stage 2"])

    assert (code, memory["live_on"]) == (0, "stage 1 (4 ranks)")
    assert (unfolded, alone["live_on"]) == (0, "stage 1.0 (1 ranks)")
    assert alone["live_bytes"] == pytest.approx(memory["live_bytes"])
    assert sum(row["bytes"] for row in memory["live"]) == pytest.approx(memory["live_bytes"])
    # Placeholders of gradients are of no block.
    assert {row["block"] for row in memory["live"]} == {"layer", "head", ""}
    assert memory["allocator"]["reserved_bytes"] >= memory["allocator"]["tensor_bytes"]
    assert memory["allocator"]["tensor_bytes"] == pytest.approx(memory["live_bytes"])
    assert refused == 2
    assert "unknown rank class 'stage 2'" in capsys.readouterr().err


def test_plan_passes_its_options_on(fake: Fake) -> None:
    """Quantities arrive in SI."""
    seen: dict[str, Any] = {}
    fake(plan=lambda _, **options: (seen.update(options), sample_plan())[1])
    code = run(
        ["plan", JOB, "--objective", "energy", "--pareto", "time,cost", "--max-devices", "4",
         "--power-cap", "30 kW", "--deadline", "90 s", "--energy-limit",
         "20 MWh", "--carbon-limit", "10 tCO2e", "--top", "3", "--allow-approximate"]
    )  # fmt: skip
    seen.pop("progress")

    assert code == 0
    assert seen == {
        "objective": "energy",
        "pareto": ("time", "cost"),
        "max_devices": 4,
        "power_cap_w": 30_000.0,
        "deadline_s": 90.0,
        "budget_usd": None,
        "energy_limit_j": 7.2e10,
        "carbon_limit_gco2e": 1e7,
        "margin": 0.05,
        "top": 3,
        "allow_approximate": True,
        "any_software": False,
        "calibration": None,
    }


@pytest.mark.parametrize(
    "find",
    [
        lambda *_, **__: sample_plan(best=None, ranked=(), feasible=0),
        raising(InfeasibleError("nothing fits; use more nodes", {"does not fit in memory": 7})),
    ],
)
def test_a_plan_of_nothing_is_exit_code_3_with_json(
    fake: Fake, find: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """However the search says so, the JSON has the same fields."""
    fake(plan=find)
    code = run(["plan", JOB, "--json", "-"])
    found = json.loads(capsys.readouterr().out)

    assert (code, found["best"], found["ranked"], found["feasible"]) == (3, None, [], 0)
    assert found.keys() == sample_plan().as_json().keys()


def test_validate_shows_the_table(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows given on the command line reach the library in order."""
    seen: list[Any] = []
    answer = SimpleNamespace(as_json=lambda: {"rows": []}, table=lambda: "the table")
    fake(validate=lambda rows, **_: (seen.extend(rows), answer)[1])
    code = run(["validate", "--rows", "a.csv", "--rows", "b.csv"])

    assert (code, seen) == (0, [Path("a.csv"), Path("b.csv")])
    assert capsys.readouterr().out == "the table\n"


def test_validate_passes_the_rules_of_play_on(fake: Fake) -> None:
    """An ablation over measured rows is one option away."""
    seen: dict[str, Any] = {}
    answer = SimpleNamespace(as_json=lambda: {"rows": []}, table=lambda: "the table")
    fake(validate=lambda _, **options: (seen.update(options), answer)[1])
    run(["validate", "--sharing", "none", "--no-mutual-slowdown"])

    assert (seen["sharing"], seen["mutual_slowdown"]) == ("none", False)


def test_the_module_runs_as_a_program() -> None:
    """`python -m wattree` is what works where no script is on the path."""
    finished = subprocess.run(
        [sys.executable, "-m", "wattree", "--version"], capture_output=True, text=True, check=True
    )

    assert finished.stdout.startswith("wattree ")


def test_a_terminal_without_unicode_still_gets_its_answer() -> None:
    """Old consoles and odd locales must not turn a multiplication sign into a traceback."""
    finished = subprocess.run(
        [sys.executable, "-m", "wattree", "catalog", "nodes"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )

    assert b"8 ? h100-sxm-80gb" in finished.stdout


def test_help_loads_nothing_that_computes() -> None:
    """Half a second is the promise; numpy, numba or pydantic would break it."""
    code = (
        "import sys; from wattree.cli.main import run; run(['--help']); "
        "print(sorted({'numpy','numba','scipy','pydantic','ruamel','torch'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines()[-1] == "[]"

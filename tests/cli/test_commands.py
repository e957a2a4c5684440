"""The command line as a user meets it: help, exit codes, what goes where."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wattree
from tests.samples import sample_plan, sample_result, sample_trace, too_large
from wattree.capture import model_names
from wattree.cli.main import main, run
from wattree.cli.output import check_outputs
from wattree.cli.schema import SchemaKind
from wattree.cost import Software
from wattree.errors import InfeasibleError, OutputError, StrategyError
from wattree.hardware.load import device_names, fabric_names, node_names, site_names

COMMANDS = (
    *("plan", "design", "simulate", "profile", "train", "launch", "validate", "measure"),
    *("calibrate", "explain"),
    *("catalog", "schema", "export", "import", "replay"),
)
JOB = "examples/llama-3.1-8b-dgx-h100.yaml"

Fake = Callable[..., None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace library functions by ones that answer at once."""
    monkeypatch.setenv("COLUMNS", "100")

    def put(**functions: Any) -> None:
        monkeypatch.setattr(wattree, "load_job", fake_job, raising=False)
        for name, function in functions.items():
            monkeypatch.setattr(wattree, name, function, raising=False)

    return put


def fake_job(path: Path) -> SimpleNamespace:
    """Return as much of a job as the commands themselves look at."""
    model = SimpleNamespace(name="gpt2")
    training = SimpleNamespace(steps=1)
    return SimpleNamespace(
        source=str(path), warnings=(), strategy="auto", model=model, training=training
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small job file; its keys may be replaced."""

    def written(**changes: Any) -> Path:
        job = {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 16},
            "cluster": {"node": "dgx-a100"},
            "strategy": "ddp",
            **changes,
        }
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML too
        return path

    return written


def prediction(**changes: Any) -> SimpleNamespace:
    """Return what `wattree.simulate` does."""
    return SimpleNamespace(
        result=sample_result(**changes),
        trace=sample_trace(),
        power=((0.0, 5000.0), (2.0, 6000.0)),
        warnings=(),
        shared_fabric_step=None,
        curves={},
    )


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


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
    assert {row["block"] for row in memory["live"]} == {"layer", "head"}
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
         "--power-cap", "30 kW", "--deadline", "90 s", "--top", "3", "--allow-approximate"]
    )  # fmt: skip
    seen.pop("progress")

    assert code == 0
    assert seen == {
        "objective": "energy",
        "pareto": ("time", "cost"),
        "max_devices": 4,
        "power_cap_w": 30_000.0,
        "deadline_s": 90.0,
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


def test_a_users_mistake_is_one_message(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, nothing on standard output."""
    misfits = {"strategy.tp": "30 heads do not divide over 8"}
    fake(simulate=raising(StrategyError(misfits, source=JOB)))
    code = run(["simulate", JOB])
    printed = capsys.readouterr()

    assert (code, printed.out) == (2, "")
    assert printed.err == f"wattree: {JOB}: strategy.tp: 30 heads do not divide over 8\n"


def test_our_defect_is_exit_code_1_and_says_so(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user must not look for a fault of theirs; we need the traceback."""
    fake(simulate=raising(KeyError("lost")))
    code = run(["simulate", JOB])
    printed = capsys.readouterr().err

    assert code == 1
    assert "Traceback" in printed
    assert "this is a defect of Wattree, not of your input: KeyError" in printed


def test_an_interrupt_is_exit_code_130(fake: Fake) -> None:
    """The convention of shells: 128 + SIGINT."""
    fake(simulate=raising(KeyboardInterrupt()))

    assert run(["simulate", JOB]) == 130


def test_an_interrupt_before_the_command_begins_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands are prepared before they run; Ctrl-C in that instant is no traceback either."""
    place = sys.modules[main.__module__]  # `wattree.cli.main` is the function, too
    monkeypatch.setattr(place, "cached_dataclass_code", raising(KeyboardInterrupt()))
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", JOB])

    assert (ended.value.code, capsys.readouterr().err) == (130, "wattree: interrupted\n")


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", JOB, "--fold", "maybe"],
        ["simulate", JOB, "--nonsense"],
        ["nonsense"],
        ["plan", JOB, "--top", "0"],
        ["plan", JOB, "--top", "x"],
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As every command line does."""
    code = run(words)
    printed = capsys.readouterr()

    assert (code, printed.out) == (2, "")
    assert "Error" in printed.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ["--power-cap", "400 GB"],
            (
                "wattree: --power-cap: unknown unit 'GB' in '400 GB'; expected one of W, kW, MW, "
                "GW, TW, PW, EW, mW\n"
            ),
        ),
        (
            ["--deadline", "soon"],
            "wattree: --deadline: found 'soon', expected a number and a unit, such as '1 s'\n",
        ),
        (
            ["--power-cap", "0 W"],
            "wattree: --power-cap: found '0 W', expected a finite quantity above zero\n",
        ),
        (
            ["--deadline", "30"],
            "wattree: --deadline: found '30' without a unit, expected one of s, ms, us, µs, ns, "
            "min, h, d, such as '30 s'\n",
        ),
        (
            ["--pareto", "time"],
            (
                "wattree: --pareto: found 'time', expected two different ones of time, energy, "
                "cost, carbon: 'time,energy'\n"
            ),
        ),
    ],
)
def test_a_quantity_that_cannot_be_read_names_its_option(
    fake: Fake, option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three options take quantities; the message says which one."""
    fake(plan=lambda *_, **__: sample_plan())
    code = run(["plan", JOB, *option])

    assert (code, capsys.readouterr().err) == (2, message)


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-q", "2", "--with-mps", "--without-mps", "--", "true"],
        ["train", "--without-mps", "--with-mps", "examples/phantom-laptop.yaml"],
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In either order; the last one does not win in silence."""
    code = run(words)
    said = "--with-mps: found --without-mps as well, expected one of them"
    assert (code, said in capsys.readouterr().err) == (2, True)


def test_a_result_that_cannot_be_written_is_the_users_mistake(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing half-written, one message."""
    fake(simulate=lambda *_, **__: prediction())
    code = run(["simulate", JOB, "--json", f"{tmp_path}/missing/r.json"])

    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "cannot be written" in capsys.readouterr().err


def test_a_missing_job_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest mistake of all, through the real loader."""
    path = tmp_path / "job.yaml"
    code = run(["simulate", str(path)])

    assert (code, capsys.readouterr().err) == (
        2,
        f"wattree: {path}: there is no such file; check the path\n",
    )


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


# ---------------------------------------------------------------- the catalog


KINDS = {
    "devices": device_names,
    "nodes": node_names,
    "models": model_names,
    "fabrics": fabric_names,
    "sites": site_names,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_catalogue_lists_what_there_is(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name of the catalog, once, with figures and where they come from."""
    names = KINDS[kind]()
    code = run(["catalog", kind, "--json", "-"])
    entries = json.loads(capsys.readouterr().out)

    assert code == 0
    assert [entry["name"] for entry in entries] == list(names)
    assert all(entry["sources"] for entry in entries if entry["name"] != "nvlink-only")


@pytest.mark.parametrize("kind", KINDS)
def test_one_entry_says_in_json_where_each_number_comes_from(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that copies a number must be able to copy its source."""
    name = KINDS[kind]()[0]
    code = run(["catalog", kind, name, "--json", "-"])
    entry = json.loads(capsys.readouterr().out)

    assert (code, entry["name"]) == (0, name)
    if kind == "models":
        assert all(len(source) > 20 for source in entry["sources"])
    else:
        assert all(entry["sources"].values())
        assert {field.split(".")[0] for field in entry["sources"]} <= set(entry)


@pytest.mark.parametrize("kind", KINDS)
def test_the_catalogue_fits_a_terminal_of_80_columns(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is cut: names are what one copies from it."""
    monkeypatch.setenv("COLUMNS", "80")
    run(["catalog", kind])
    printed = capsys.readouterr().out
    names = KINDS[kind]()

    assert set(names) <= {line.split(" ")[0] for line in printed.splitlines()}
    assert "…" not in printed


def test_one_device_comes_with_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number without its source cannot be trusted."""
    monkeypatch.setenv("COLUMNS", "120")
    code = run(["catalog", "devices", "h100-sxm-80gb"])
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}

    assert code == 0
    assert "700 W" in lines["tdp"]
    assert "3.35 TB/s" in lines["memory bandwidth"]
    assert len(lines["tdp"].strip().split("  ")[-1]) > 10  # the source


def test_links_of_a_node_read_as_cables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directions are one cable, in units; an entry shows nothing that says nothing."""
    monkeypatch.setenv("COLUMNS", "120")
    run(["catalog", "nodes", "4x-mi250"])
    printed = capsys.readouterr().out
    cables = [
        found for line in printed.splitlines() for found in re.findall(r"d\d-d\d .*?us", line)
    ]

    assert cables == [
        "d0-d1 100 GB/s, 1.8 us",
        "d2-d3 100 GB/s, 1.8 us",
        "d0-d3 100 GB/s, 1.8 us",
        "d1-d2 100 GB/s, 1.8 us",
        "d0-d2 50 GB/s, 1.8 us",
        "d1-d3 50 GB/s, 1.8 us",
    ]
    assert "Link(" not in printed
    assert "cxl" not in printed


def test_an_unknown_device_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest name."""
    code = run(["catalog", "devices", "h100-sxm-80g"])

    assert code == 2
    assert (
        "unknown device 'h100-sxm-80g'; did you mean 'h100-sxm-80gb' or" in capsys.readouterr().err
    )


def test_outputs_never_overwrite_the_job_or_each_other(tmp_path: Path) -> None:
    """A slip of the shell must not cost the user's file."""
    job = tmp_path / "job.yaml"
    check_outputs(tmp_path / "a.json", tmp_path / "b.json", None, source=job)

    with pytest.raises(OutputError, match=r"job\.yaml: is the file that is read"):
        check_outputs(job, source=job)
    with pytest.raises(OutputError, match=r"a\.json: is named for two results"):
        check_outputs(tmp_path / "a.json", tmp_path / "a.json", source=job)


# ---------------------------------------------------------------- what a job says, and where


def test_an_unknown_model_is_named_with_its_file_and_key(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that runs twenty jobs must be able to tell which one is wrong."""
    path = job_file(model="gpt3-1.4b")
    code = run(["simulate", str(path)])

    assert code == 2
    assert capsys.readouterr().err.startswith(
        f"wattree: {path}: model: unknown model 'gpt3-1.4b'; did you mean 'gpt3-1.3b' or "
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": {"tp": 8}},
            "strategy: layers.0.attention.qkv: 12 key/value heads do not divide over axis 'tp' "
            "(8); use a degree that divides 12, such as 6",
        ),
        (
            {"model": {"name": "gpt2", "lora": {"rank": 8, "targets": ["atention.qkv"]}}},
            "model: gpt2: lora.targets: 'atention.qkv' matches no projection; did you mean "
            "'attention.qkv'?",
        ),
        (
            {"model": {"name": "gpt2", "lora": {"rank": 900}}},
            "model: gpt2: lora.rank: found 900, expected at most 768, the shorter side of the "
            "matrix of 'attention.qkv'; use a lower rank, or leave it out of lora.targets",
        ),
        (
            {"model": {"name": "gpt2", "freeze": ["*"]}},
            "model: gpt2: freeze: the patterns leave no parameter to train, found '*'; freeze "
            "fewer operators",
        ),
        (
            {"strategy": {"recompute": "block_99"}},
            "strategy.recompute: found 'block_99', every 99th layer, but the model has 12; use "
            "block_1 to block_12",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_named_with_its_file_and_key(
    changes: dict[str, Any],
    message: str,
    job_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where, what was found, what was expected, what to do."""
    path = job_file(**changes)
    code = run(["simulate", str(path)])
    lines = capsys.readouterr().err.splitlines()

    assert code == 2
    assert any(line.endswith(message) for line in lines)
    assert lines[-1].startswith((f"wattree: {path}: ", "  "))


def test_a_missing_config_is_named_with_the_job_that_names_it(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The path alone does not say who asked for it."""
    path = job_file(model="mine/config.json")
    code = run(["plan", str(path)])

    assert (code, capsys.readouterr().err) == (
        2,
        f"wattree: {path}: model: {path.parent}/mine/config.json: there is no such file; check "
        "the path\n",
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("400", "found '400', expected a number and a unit, such as '1 W'"),
        ("30 kW", "found '30 kW', expected '1 W' to '20 kW' per device"),
        ("0 W", "found '0 W', expected a finite quantity above zero"),
        ("9 W", "9 W is not above what a100-sxm-80gb draws at rest, 60 W; use a higher one"),
    ],
)
def test_a_power_limit_is_read_as_the_jobs_own(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    """The same value is right or wrong in both places, in the same words."""
    codes = [
        run(["simulate", str(job_file()), "--power-limit", option]),
        run(["simulate", str(job_file(cluster={"node": "dgx-a100", "power_limit": option}))]),
    ]

    assert codes == [2, 2]
    assert capsys.readouterr().err.splitlines() == [
        f"wattree: --power-limit: {message}",
        f"wattree: {job_file()}: cluster.power_limit: {message}",
    ]


def test_a_choice_without_effect_on_the_model_is_told(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The file alone does not tell that gpt2 has no experts."""
    path = job_file(strategy={"ep": 2})
    code = run(["simulate", str(path), "--json", "-"])

    assert code == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"wattree: {path}: warning: strategy.ep: 2 has no effect of its own: gpt2 has no experts, "
        "so these ranks are replicas like those of dp; use dp"
    )


@pytest.mark.parametrize(
    "find",
    [
        lambda *_, **__: sample_plan(warnings=("custom_op moves its bytes once",)),
        raising(InfeasibleError("none", {}, warnings=("custom_op moves its bytes once",))),
    ],
)
def test_a_plan_tells_what_is_not_known_of_the_model(
    fake: Fake, find: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing fits: that may be why."""
    fake(plan=find)
    run(["plan", JOB, "--json", "-"])
    printed = capsys.readouterr()

    assert f"wattree: {JOB}: warning: custom_op moves its bytes once" in printed.err.splitlines()
    assert json.loads(printed.out)["warnings"] == ["custom_op moves its bytes once"]


@pytest.mark.parametrize("command", ["simulate", "export"])
def test_what_a_model_has_no_use_for_is_told_by_every_command(
    job_file: Callable[..., Path], tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error and in the JSON."""
    path = job_file(model="resnet18", data={"sequence_length": 8, "global_batch": 8})
    folder = [str(tmp_path / "traces")] if command == "export" else []
    code = run([command, str(path), *folder, "--json", "-"])
    printed = capsys.readouterr()
    told = (
        "data.sequence_length: has no effect: inputs of resnet-18 are no sequences; leave it out. "
        "It only makes 1 the default of strategy.micro_batch, in place of all samples of a replica"
    )

    assert code == 0
    assert f"wattree: {path}: warning: {told}" in printed.err.splitlines()
    assert json.loads(printed.out)["warnings"] == [told]


def test_a_name_longer_than_a_file_may_be_called_is_one_message(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The system refuses to look for it, which must not end in a traceback."""
    codes = [run(["simulate", str(job_file(model=name))]) for name in ("a" * 5000, "a/" * 3000)]

    assert codes == [2, 2]
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_of_a_job_are_printed_and_the_result_too(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, so that JSON on standard output stays JSON."""
    path = job_file(strategy={"sequence_parallel": True, "schedule": "gpipe"})
    code = run(["simulate", str(path), "--json", "-"])
    printed = capsys.readouterr()

    assert (code, json.loads(printed.out)["ranks"]) == (0, 8)
    assert [line for line in printed.err.splitlines() if "warning" in line] == [
        f"wattree: {path}: warning: strategy.sequence_parallel: true has no effect with tp 1: it "
        "splits over tensor-parallel ranks; set tp above 1",
        f"wattree: {path}: warning: strategy.schedule: 'gpipe' has no effect with pp 1: there is "
        "no pipeline; set pp above 1",
    ]


def test_no_printed_line_ends_in_a_blank(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables pad their cells; pasted into a file or a report that is noise."""
    fake(simulate=lambda *_, **__: prediction(), plan=lambda *_, **__: sample_plan())
    for words in (["simulate", JOB], ["plan", JOB], ["catalog", "devices"]):
        run(words)
    monkeypatch.setenv("FORCE_COLOR", "1")  # codes of color must not hide the blanks
    monkeypatch.setenv("TERM", "xterm-256color")
    run(["plan", JOB])
    coloured = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)

    assert "\x1b[" in coloured
    assert [line for line in plain.splitlines() if line.endswith(" ")] == []


def test_the_json_of_a_plan_that_found_nothing_has_sentences_and_its_time(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the cap in the unit of the input, without the layout of the report."""
    path = job_file()
    code = run(["plan", str(path), "--power-cap", "3 W", "--json", "-"])
    found = json.loads(capsys.readouterr().out)

    assert code == 3
    assert found["wall_s"] > 0
    assert found["explanation"][0] == (
        "Nothing fits: no strategy for gpt2 on 1 x dgx-a100 meets every constraint."
    )
    assert any("above the cap of 3 W." in sentence for sentence in found["explanation"])
    assert all(
        sentence[0].isupper() and sentence.endswith(".") and str(path) not in sentence
        for sentence in found["explanation"]
    )


def test_a_sweep_of_power_limits_names_its_knee(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Text and JSON say the same."""
    path = tmp_path / "sweep.json"
    job = str(job_file(strategy={"preset": "ddp"}))

    assert run(["simulate", job, "--power-limit", "400 W, 300 W,350 W", "--json", str(path)]) == 0

    found = json.loads(path.read_text(encoding="utf-8"))
    limits = [step["power_limit_w"] for step in found["power_limits"]]
    least = min(found["power_limits"], key=lambda step: step["energy_j"])
    assert limits == [400.0, 350.0, 300.0]
    assert found["knee"]["least_energy_w"] == least["power_limit_w"]
    assert f"Least energy at {least['power_limit_w']:g} W" in capsys.readouterr().out


def test_a_sweep_that_saves_nothing_says_so(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that a limit takes 0 % less than itself; a limit above the rated one is no limit."""
    job = str(job_file(strategy={"preset": "ddp"}))

    assert run(["simulate", job, "--power-limit", "600 W, 100 W"]) == 0
    printed = capsys.readouterr()
    assert "Least energy at 600 W per device, the highest of these limits" in printed.out
    assert "600 W has no effect: the devices are rated at 400 W; set it below" in printed.err


def test_a_misspelt_sweep_is_no_quantity(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The word is what was meant; a length keeps its spelling, too."""
    assert run(["simulate", str(job_file()), "--power-limit", "sweeep"]) == 2
    assert "--power-limit: found 'sweeep', expected 'sweep' alone" in capsys.readouterr().err
    assert run(["simulate", str(job_file()), "--shift", "1e9 d"]) == 2
    assert "--shift: found '1e9 d', expected a time up to 100 years" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--trace", "t.json"),
        ("--memory", "fullest"),
        ("--plot", "power=p.png"),
        ("--report", "p.html"),
        ("--tokens", "1T"),
        ("--samples", "1M"),
    ],
)
def test_what_shows_one_step_is_refused_beside_a_sweep(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    """There are several."""
    assert run(["simulate", str(job_file()), "--power-limit", "sweep", option, value]) == 2
    assert capsys.readouterr().err.strip() == (
        f"wattree: {option}: is of one step, but --power-limit names several; give one limit"
    )


# ---------------------------------------------------------------- schemas of files


def test_files_that_ship_fit_the_schemas_that_are_printed(tmp_path: Path) -> None:
    """Editors would mark what is right."""
    import jsonschema

    from wattree.cost import calibration_file
    from wattree.files import read_yaml
    from wattree.hardware.load import CATALOG

    folders = {"device": "devices", "node": "nodes", "fabric": "fabrics", "site": "sites"}
    files = {kind: list((CATALOG / name).glob("*.yaml")) for kind, name in folders.items()}
    files["job"] = list(Path("examples").glob("*.yaml"))
    files["study"] = [Path("examples/design/own-prices.yaml")]
    files["queue"] = [Path("examples/queue/queue.yaml")]
    files["calibration"] = [Path(calibration_file.__file__).with_name("calibration.yaml")]
    files["run"] = list(Path("validation/runs").glob("*.json"))
    unfit = []
    for kind in SchemaKind:
        out = tmp_path / f"{kind}.schema.json"
        assert run(["schema", kind, "--out", str(out)]) == 0
        schema = json.loads(out.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        checker = jsonschema.Draft202012Validator(schema)
        assert files[kind], kind
        for file in files[kind]:
            is_json = file.suffix == ".json"
            found = json.loads(file.read_text(encoding="utf-8")) if is_json else read_yaml(file)
            unfit += [f"{file.name}: {fault.message}" for fault in checker.iter_errors(found)]

    assert unfit == []


def test_a_schema_refuses_an_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise it completes and marks nothing."""
    import jsonschema

    run(["schema", "job"])
    schema = json.loads(capsys.readouterr().out)

    with pytest.raises(jsonschema.ValidationError, match="modle"):
        jsonschema.validate({"modle": "gpt2"}, schema)

"""`wattree energy` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.energy.synthetic import World, isolated, study
from wattree.cli.main import run
from wattree.trace.run import Activity
from wattree.trace.run_file import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs."""
    place = tmp_path_factory.mktemp("runs")
    world = World(seed=1)
    for number, each in enumerate((*isolated(world), *study(world, nodes=(1, 2, 4, 8, 16)))):
        write_run(each, place / f"{number:03}.json")
    return place


@pytest.mark.parametrize("command", ["", "fit", "predict", "compare"])
def test_help_reads_as_reviewed(
    golden: Any, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help is read before anything else."""
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["energy", *command.split(), "--help"]) == 0
    golden.check(f"help_energy{'_' if command else ''}{command}.txt", capsys.readouterr().out)


def test_fit_predict_and_compare(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands in a user's order, as text and as JSON."""
    calibration = tmp_path / "calibration.yaml"
    assert run(["energy", "fit", str(folder), "--out", str(calibration)]) == 0
    assert "\n   static_w " in capsys.readouterr().out

    words = ["--calibration", str(calibration), "--model", "vgg-16", "--nodes", "32,64"]
    assert run(["energy", "predict", *words, "--json", "-"]) == 0
    first, second = json.loads(capsys.readouterr().out)["forecasts"]
    assert 1.9 < second["energy_j"]["value"] / first["energy_j"]["value"] < 2.2
    parts = sum(each["value"] for each in first["by_stage"].values())
    assert parts == pytest.approx(first["energy_j"]["value"], rel=1e-9)

    assert run(["energy", "compare", str(folder), "--fit-on", "nodes<=8"]) == 0
    text = capsys.readouterr().out
    assert "synthetic (simulated): 9 training runs, predicted from 69 runs (nodes<=8)" in text
    assert "L1 proportional to" in text


def test_a_mistake_is_one_line_and_exit_code_two(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was found."""
    assert run(["energy", "fit", str(tmp_path)]) == 2
    assert "found a folder without files of runs" in capsys.readouterr().err
    assert run(["energy", "compare", str(folder), "--fit-on", "nods<=8"]) == 2
    assert "did you mean 'nodes'?" in capsys.readouterr().err
    assert run(["energy", "predict", "--calibration", "x", "--nodes", "many", "--model", "a"]) == 2
    assert "--nodes: found 'many', expected numbers from 1 such as 16,32" in capsys.readouterr().err


def test_folders_as_train_leaves_them_are_read(tmp_path: Path) -> None:
    """A folder for each training, with the result next to the run."""
    world = World(seed=1)
    for number, each in enumerate((*isolated(world), *study(world, nodes=(1, 2)))):
        place = tmp_path / f"{number:03}"
        place.mkdir()
        write_run(each, place / "run.json")
        (place / "result.json").write_text('{"model": "gpt2"}')

    assert run(["energy", "compare", str(tmp_path)]) == 0
    assert run(["energy", "fit", str(tmp_path)]) == 0


def test_runs_of_another_node_are_named_and_the_others_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An idle run takes the machine's own name, training that of the job, unless it is given."""
    world = World(seed=1)
    idle = next(each for each in isolated(world) if each.activity is Activity.IDLE)
    every = (*isolated(world), *study(world, nodes=(1, 2)), replace(idle, node="AMD EPYC"))
    for number, each in enumerate(every):
        write_run(each, tmp_path / f"{number:03}.json")

    assert run(["energy", "compare", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "left out: runs of node 'AMD EPYC' (simulated): no training run" in text
    assert "wattree measure --node NAME" in text
    assert run(["energy", "fit", str(tmp_path)]) == 2
    assert "wattree measure --node NAME" in capsys.readouterr().err


def test_one_training_run_is_too_few_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what is missing, not that runs are which are there."""
    world = World(seed=1)
    idle = next(each for each in isolated(world) if each.activity is Activity.IDLE)
    for number, each in enumerate((idle, next(iter(study(world, nodes=(1,)))))):
        write_run(each, tmp_path / f"{number:03}.json")

    assert run(["energy", "compare", str(tmp_path)]) == 2
    assert "found one training run, which would be predicted from" in capsys.readouterr().err


JOB = """
model: resnet-50
data: {global_batch: 16, loader: imagenet-jpeg}
precision: fp32
cluster: {node: ft-2000-plus-node, nodes: 2}
strategy: {preset: ddp, dp: 2, micro_batch: 8}
"""


def test_a_model_without_a_run_is_predicted_from_its_job(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of any model; one thing is asked at a time."""
    calibration, job = tmp_path / "calibration.yaml", tmp_path / "job.yaml"
    job.write_text(JOB)
    assert run(["energy", "fit", str(folder), "--out", str(calibration)]) == 0
    words = ["energy", "predict", "--calibration", str(calibration), "--nodes", "16,32"]
    capsys.readouterr()

    assert run([*words, "--job", str(job), "--json", "-"]) == 0
    first, second = json.loads(capsys.readouterr().out)["forecasts"]
    assert (first["samples"], second["samples"]) == (128, 256)
    assert first["energy_j"]["lower"] < first["energy_j"]["value"] < first["energy_j"]["upper"]
    assert run([*words, "--job", str(job)]) == 0
    assert "on synthetic" in capsys.readouterr().out

    assert run(words) == 2
    assert "found none, expected one of --model, --run, --job" in capsys.readouterr().err
    assert run([*words, "--job", str(job), "--model", "vgg-16"]) == 2
    assert "found --model and --job, expected one of" in capsys.readouterr().err
    assert run([*words, "--job", str(job), "--batch", "4"]) == 2
    assert (
        "--batch: found --job, which states its batch; expected --model" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "words", [["--nodes", "100000000000"], ["--batch", "1e300"], ["--iterations", "1" + "0" * 120]]
)
def test_absurd_questions_are_refused(
    folder: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error of many digits would overflow, or fill the screen."""
    calibration = tmp_path / "calibration.yaml"
    assert run(["energy", "fit", str(folder), "--out", str(calibration)]) == 0
    asked = ["--calibration", str(calibration), "--model", "vgg-16"]
    nodes = [] if "--nodes" in words else ["--nodes", "2"]

    assert run(["energy", "predict", *asked, *nodes, *words]) == 2
    assert "at most 1e+" in capsys.readouterr().err


def test_runs_of_one_node_predict_two_with_a_network_that_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the sizes that can be answered are, and the message says what to do."""
    world = World(seed=1)
    for number, each in enumerate((*isolated(world), *study(world, nodes=(1, 2)))):
        if each.nodes <= 2:  # two ranks on one node instead of one on each of two
            write_run(
                replace(each, nodes=1, ranks_per_node=each.nodes), tmp_path / f"{number}.json"
            )
    out = tmp_path / "out.yaml"
    assert run(["energy", "fit", str(tmp_path), "--out", str(out)]) == 0
    words = ["energy", "predict", "--calibration", str(out), "--model", "vgg-16"]
    capsys.readouterr()

    assert run([*words, "--nodes", "1,2", "--json", "-"]) == 2
    printed = capsys.readouterr()
    assert [each["ranks"] for each in json.loads(printed.out)["forecasts"]] == [2]
    assert "or say the network (--bandwidth, --latency)" in printed.err

    given = ["--bandwidth", "10 Gbit/s", "--latency", "30 us", "--json", "-"]
    assert run([*words, "--nodes", "2", *given]) == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert found["ranks"] == 4
    within = "within nodes bytes and messages are slower, which sets the pace"
    assert f"time.network.between: given, not from runs; {within}" in found["warnings"]
    assert run([*words, "--nodes", "2", "--bandwidth", "1 MB/s", "--latency", "1 s"]) == 0
    slow = capsys.readouterr().out
    assert "given, not from runs" in slow
    assert "sets the pace" not in slow
    assert run([*words, "--nodes", "2", "--latency", "1 us"]) == 2

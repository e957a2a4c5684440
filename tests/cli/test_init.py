"""A first job file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

import wattree
from wattree.cli.main import run
from wattree.files import read_yaml
from wattree.strategy import StrategyOptions


def test_options_make_a_job_that_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no option says has a default, which is shown."""
    path = tmp_path / "job.yaml"
    words = ["--model", "gpt2", "--node", "dgx-a100", "--nodes", "2", "--software", "pytorch"]
    assert run(["init", str(path), *words]) == 0
    job = wattree.load_job(path)

    assert job.cluster.devices == 16
    assert (job.data.sequence_length, job.data.global_batch) == (1024, 256)
    assert job.software == "pytorch"
    assert "Tokens per sample: 1024" in capsys.readouterr().err


def test_a_model_of_images_has_no_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked that has no meaning, whichever of its names the model has."""
    path = tmp_path / "job.yaml"
    words = ["--model", "resnet50", "--node", "dgx-a100", "--sequence", "77"]
    assert run(["init", str(path), *words]) == 0

    assert wattree.load_job(path).data.global_batch == 128
    assert "sequence_length" not in path.read_text()
    assert "--sequence: has no effect" in capsys.readouterr().err


def test_workstations_are_joined_by_a_named_fabric(tmp_path: Path) -> None:
    """Their nodes name none."""
    path = tmp_path / "job.yaml"
    words = ["--model", "gpt2", "--node", "1x-rtx-4090", "--nodes", "4"]
    assert run(["init", str(path), *words, "--fabric", "ethernet-10g"]) == 0

    assert wattree.load_job(path).cluster.fabric.name == "ethernet-10g"


def test_questions_are_asked_where_a_terminal_can_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that are given are not asked for again."""
    asked: list[str] = []

    def prompt(question: str, *, default: Any, type: Any) -> Any:  # noqa: A002 - as typer has it
        assert isinstance(default, type)
        asked.append(question)
        return "gpt2" if question == "Model" else default

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    path = tmp_path / "job.yaml"
    assert run(["init", str(path), "--node", "dgx-a100", "--batch", "32"]) == 0

    assert asked == ["Model", "Number of nodes", "Tokens per sample", "Training software"]
    assert wattree.load_job(path).data.global_batch == 32


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "model: is missing; give --model"),
        (["--model", "gpt2", "--node", "dgx-a10"], "did you mean"),
        (["--model", "gpt", "--node", "dgx-a100", "--nodes", "0"], "cluster.nodes"),
        (["--model", "gpt", "--node", "dgx-a100", "--nodes", "0"], "unknown model 'gpt'"),
        (["--model", "no/config.json", "--node", "dgx-a100"], "there is no such file"),
        (["--model", "gpt2", "--node", "dgx-a100", "--software", "pytorhc"], "software"),
    ],
)
def test_what_makes_no_job_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """The message names what is wrong, and there is no file."""
    path = tmp_path / "job.yaml"
    assert run(["init", str(path), *words]) == 2

    assert message in capsys.readouterr().err
    assert not path.exists()


def test_a_file_that_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may hold work."""
    path = tmp_path / "job.yaml"
    path.write_text("mine")
    assert run(["init", str(path), "--model", "gpt2", "--node", "dgx-a100"]) == 2

    assert path.read_text() == "mine"
    assert "exists" in capsys.readouterr().err


def test_a_configuration_is_read_and_named_from_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its longest sequence is the model's; the path starts in the job's folder."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 384}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    (tmp_path / "my jobs").mkdir()
    monkeypatch.chdir(tmp_path)

    words = ["--model", "config.json", "--node", "dgx-a100"]
    assert run(["init", "my jobs/job.yaml", *words]) == 0

    job = wattree.load_job("my jobs/job.yaml")
    assert job.data.sequence_length == 384
    assert wattree.simulate(replace(job, strategy=StrategyOptions(dp=8))).result.parameters > 0


def test_models_without_a_longest_sequence_have_a_usual_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relative positions set no limit, but a job of tokens needs a length."""
    path = tmp_path / "job.yaml"
    assert run(["init", str(path), "--model", "t5-large", "--node", "dgx-a100"]) == 0

    assert wattree.load_job(path).data.sequence_length == 2048
    assert "Next: wattree plan" in capsys.readouterr().err


def test_a_wrong_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was answered before is not lost."""
    answers = {"Node": ["dgx-a10", "dgx-a100"], "Training software": ["pytorhc", "pytorch"]}

    def prompt(question: str, *, default: Any, type: Any) -> Any:  # noqa: A002 - as typer has it
        assert isinstance(default, type)
        return answers[question].pop(0) if question in answers else default

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    path = tmp_path / "job.yaml"
    assert run(["init", str(path)]) == 0

    assert wattree.load_job(path).software == "pytorch"
    assert "unknown node 'dgx-a10'" in capsys.readouterr().err


def test_the_schema_that_a_job_names_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An editor would report a missing file in the first line; one that exists is left alone."""
    words = ["--model", "gpt2", "--node", "dgx-a100"]
    assert run(["init", str(tmp_path / "job.yaml"), *words]) == 0
    first = (tmp_path / "job.yaml").read_text().splitlines()[0]
    path = tmp_path / first.rpartition("=")[2]
    job = read_yaml(tmp_path / "job.yaml")
    jsonschema.validate(job, json.loads(path.read_text()))
    assert f"{path.name}: " in capsys.readouterr().err

    path.write_text("mine")
    assert run(["init", str(tmp_path / "second.yaml"), *words]) == 0
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("node", "precision", "message"),
    [
        ("8x-titan-xp", "fp32", "precision fp32, as titan-xp has no bf16"),
        ("8x-v100-pcie", "fp16", "precision fp16, as v100-pcie-32gb has no bf16"),
        ("dgx-a100", None, ""),
    ],
)
def test_a_job_has_a_precision_of_its_devices(
    node: str, precision: str | None, message: str, tmp_path: Path, capsys: Any
) -> None:
    """What `init` writes can be planned; a job without a precision gets the same, and says so."""
    path = tmp_path / "job.yaml"
    assert run(["init", str(path), "--model", "resnet-50", "--node", node]) == 0
    assert message in capsys.readouterr().err

    written = read_yaml(path)
    job = wattree.job_from_mapping({k: v for k, v in written.items() if k != "precision"})

    assert written.get("precision") == precision
    assert job.precision == (precision or "bf16")
    assert (message in job.assumed) == bool(message)


def test_all_numbers_are_checked_at_once(tmp_path: Path, capsys: Any) -> None:
    """A second run would find nothing new."""
    words = ["--model", "gpt2", "--node", "dgx-a10", "--nodes", "0", "--batch", "-1"]
    assert run(["init", str(tmp_path / "job.yaml"), *words]) == 2

    message = capsys.readouterr().err
    assert [word in message for word in ("'dgx-a10'", "cluster.nodes", "data.global_batch")] == [
        True
    ] * 3

"""A first job file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import wattree
from wattree.cli.main import run


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


def test_a_model_of_images_has_no_tokens(tmp_path: Path) -> None:
    """Nothing is asked that has no meaning."""
    path = tmp_path / "job.yaml"
    assert run(["init", str(path), "--model", "resnet-50", "--node", "dgx-a100"]) == 0

    assert wattree.load_job(path).data.global_batch == 128
    assert "sequence_length" not in path.read_text()


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
        (["--model", "gpt2", "--node", "dgx-a100", "--software", "torch"], "software"),
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

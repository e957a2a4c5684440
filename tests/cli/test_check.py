"""`wattree check`: what a job means, assumes, and what is wrong with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from wattree.cli.main import run
from wattree.job.written import yaml_text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the job is written."""
    return tmp_path / "job.yaml"


def write(path: Path, **changes: Any) -> None:
    """Write a small job."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 32},
        "cluster": {"node": "dgx-h100", "nodes": 1},
        **changes,
    }
    path.write_text(yaml_text(job), encoding="utf-8")


def test_it_says_what_a_job_means_and_assumes(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model, devices, batch, strategy in words; what the software fills in."""
    write(path, software="torchtitan", strategy={"tp": 2, "dp": 4, "sharding": "zero1"})

    assert run(["check", str(path), "--json", "-"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["strategy"].startswith("dp 4 × tp 2, zero1, sequence parallel")
    assert any("sequence_parallel true" in line for line in found["assumed"])
    assert any("zero1 is not offered by torchtitan" in line for line in found["warnings"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"software": "torchtitan", "released": "2025-09"},
            "attention_kernels ampere, fused_loss false: torchtitan as released in 2025-09",
        ),
        (
            {"model": "llama-4-scout", "software": "hf-trainer"},
            "every expert runs on every token, as in the transformers library's Llama 4",
        ),
        (
            {"model": "qwen3-30b-a3b", "software": "hf-trainer", "released": "2025-10"},
            "experts are launched one by one, as before release 5 of the transformers library",
        ),
        (
            {"software": "pytorch", "compile": True},
            "the loss is compiled with the model, whose forward computes it; if your "
            "script computes it outside, set traits: {compiled_loss_bytes: 0}",
        ),
        (
            {"software": "pytorch", "traits": {"autocast": False, "parameter_bytes": 2}},
            "logits are cast to fp32 for the loss; if your script computes the loss of "
            "16-bit logits, set traits: {loss_bytes_per_logit: 6}",
        ),
    ],
)
def test_it_says_what_the_software_does_otherwise(
    changes: dict[str, Any], said: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A release of its own time, and what no prediction has."""
    write(path, strategy={"dp": 8, "sharding": "zero3"}, **changes)

    assert run(["check", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["assumed"].count(said) == 1


def test_what_does_not_fit_is_a_mistake(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Misfits of strategy and model are found without a simulation."""
    write(path, strategy={"tp": 8})

    assert run(["check", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"wattree: {path}: ")
    assert "do not divide over axis 'tp' (8)" in error


def test_what_has_no_effect_on_the_model_is_a_warning(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `simulate` has it, though only the model tells."""
    write(path, strategy={"ep": 2})

    assert run(["check", str(path)]) == 0
    assert "gpt2 has no experts" in " ".join(capsys.readouterr().out.split())


def test_a_job_without_a_strategy_is_sound(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` finds one."""
    write(path)

    assert run(["check", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "auto: `plan` finds one" in told
    assert "software 'megatron-core', as the job names no software" in told


def test_a_tiny_model_has_a_number_of_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a power of ten of a billion."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {transformer: {layers: 2, hidden: 64, heads: 4, ffn: 128, vocab: 256}}\n"
        "data: {sequence_length: 32, global_batch: 8}\ncluster: {node: dgx-a100}\n"
    )

    assert run(["check", str(path)]) == 0
    assert re.search(r"model\.transformer, \d\d,\d{3} parameters", capsys.readouterr().out)


def test_sequences_beyond_the_positions_of_a_model_are_a_warning(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users extend the context of published models."""
    write(path, data={"sequence_length": 2048, "global_batch": 32}, strategy="auto")

    assert run(["check", str(path)]) == 0
    assert "2048 tokens, but gpt2 has 1024 positions" in capsys.readouterr().out.replace("\n", " ")

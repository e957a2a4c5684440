"""Answers that come although something asked for beside them cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.cli.main import run
from wattree.cli.plan_software import refusals
from wattree.job import job_from_mapping
from wattree.strategy import StrategyOptions

_ALONE = """
workload: forward
model: resnet-50
data: {global_batch: 8}
cluster: {node: workstation-rtx-3060}
strategy: {micro_batch: 8}
"""
_TOO_LARGE = """
model: llama-3.1-8b
data: {sequence_length: 1024, global_batch: 16}
cluster: {node: NODE}
"""
_GENERATES = """
workload: generate
model: gpt2
data: {prompt_length: 96, generate_length: 32, global_batch: 4}
cluster: {node: workstation-rtx-3060}
"""


def test_a_picture_of_nothing_keeps_no_one_from_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One replica sends nothing, so no link can be drawn; its step and its figures can."""
    (tmp_path / "job.yaml").write_text(_ALONE)
    pictures = [f"--plot=links={tmp_path}/links.svg", f"--plot=step={tmp_path}/step.svg"]

    assert run(["simulate", str(tmp_path / "job.yaml"), *pictures]) == 2
    found = capsys.readouterr()
    assert "Step time" in found.out
    assert "--plot: links: there is nothing to draw" in found.err
    assert [path.name for path in tmp_path.glob("*.svg")] == ["step.svg"]


@pytest.mark.parametrize(
    ("node", "helps"),
    [
        ("workstation-rtx-4090", "more nodes, on a cluster.fabric that joins them"),
        ("2x-rtx-4080", "more nodes, on a cluster.fabric that joins them"),
        ("8x-rtx-2080-ti", "nodes (by the closed form)"),
    ],
)
def test_where_nothing_fits_it_says_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str, helps: str
) -> None:
    """Also where the fabric of the node's file joins no nodes."""
    (tmp_path / "job.yaml").write_text(_TOO_LARGE.replace("NODE", node))

    assert run(["plan", str(tmp_path / "job.yaml")]) == 3
    message = capsys.readouterr().err
    assert "nothing fits" in message
    assert helps in message


def test_a_run_that_generates_counts_generated_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A million tokens of 4 x 32 a batch; prompts are read, not made. Jobs may have the length."""
    (tmp_path / "job.yaml").write_text(_GENERATES)
    commands = (["simulate", "--tokens", "1M"], ["plan", "--tokens", "1M"], ["simulate"])
    one = _GENERATES + "strategy: {micro_batch: 4}\n"
    (tmp_path / "one.yaml").write_text(one)
    (tmp_path / "long.yaml").write_text(one + "training: {steps: 7813}\n")
    files = ("one.yaml", "job.yaml", "long.yaml")
    for (command, *options), name in zip(commands, files, strict=True):
        assert run([command, str(tmp_path / name), *options]) == 0
        assert "1 million tokens" in (text := capsys.readouterr().out), command
        assert "7,813 steps" in text, command


def test_a_check_says_how_much_of_a_model_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adapters are a job's most important fact, and were not seen."""
    lora = _TOO_LARGE.replace("model: llama-3.1-8b", "model: {name: llama-3.1-8b, lora: {rank: 8}}")
    (tmp_path / "job.yaml").write_text(lora.replace("NODE", "dgx-h100"))

    assert run(["check", str(tmp_path / "job.yaml")]) == 0
    assert " trained) parameters, 32 layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            "model: qwen2.5-0.5b\nsoftware: torchtitan",
            "torchtitan: model: found qwen2",
        ),
        ("model: gpt2\nsoftware: megatron-core", ""),
        ("model: qwen2.5-0.5b", ""),
    ],
)
def test_a_plan_warns_of_what_its_software_cannot_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, words: str
) -> None:
    """Once a user learned at the export, after the plan, that torchtitan has no such model."""
    rest = "data: {sequence_length: 512, global_batch: 8}\ncluster: {node: workstation-rtx-4090}"
    (tmp_path / "job.yaml").write_text(f"{changes}\n{rest}\n")

    assert run(["plan", str(tmp_path / "job.yaml")]) == 0
    message = capsys.readouterr().err
    assert words in message
    assert ("no export" in message) is bool(words)


@pytest.mark.usefixtures("small_space")
def test_a_fabric_is_not_idle_where_numbers_of_nodes_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's one node is not what is planned."""
    cluster = "{node: dgx-h100, fabric: infiniband-ndr}"
    text = f"model: gpt2\ndata: {{sequence_length: 512, global_batch: 32}}\ncluster: {cluster}\n"
    (tmp_path / "job.yaml").write_text(text)

    assert run(["check", str(tmp_path / "job.yaml")]) == 0
    assert "cluster.fabric: " in capsys.readouterr().out
    assert run(["plan", str(tmp_path / "job.yaml"), "--nodes", "1..2"]) == 0
    assert "cluster.fabric" not in capsys.readouterr().err


def test_a_plan_does_not_warn_of_what_its_software_does_by_itself() -> None:
    """A warning said that a plan for latent attention overlaps what no release overlaps."""
    options = StrategyOptions(dp=4, tp=2, sharding="zero1", sequence_parallel=True)
    job = job_from_mapping(
        {
            "model": "deepseek-v2-lite",
            "data": {"sequence_length": 4096, "global_batch": 8},
            "cluster": {"node": "dgx-a100"},
            "software": "megatron-core",
        }
    )

    assert refusals(job, options) == ()

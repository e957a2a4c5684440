"""Muon, where frameworks have it: Megatron-Core 0.16, DeepSpeed 0.19.8, MaxText 0.2.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.test_mixtures import job_of
from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.framework import written_frameworks

_CORE = {"overlap_gradients": False, "overlap_parameters": False, "recompute": "full"}
_READ = {
    "megatron-lm": "launch.sh",
    "megatron-bridge": "overrides.yaml",
    "deepspeed": "launch.sh",
    "maxtext": "maxtext.yml",
}


def _files(name: str, model: object = "llama-3.1-8b", **keys: Any) -> dict[str, str]:
    software = FRAMEWORKS[name].software[0]
    strategy = {"micro_batch": 1, **keys.pop("strategy")}
    job = job_of(model, software=software, strategy=strategy, optimizer="muon", **keys)
    return recipe_files(FRAMEWORKS[name], concrete_job(job))[0]


@pytest.mark.parametrize(
    ("name", "strategy", "words"),
    [
        ("megatron-lm", {**_CORE, "sharding": "zero1"}, "--optimizer dist_muon"),
        ("megatron-lm", {**_CORE, "sharding": "none"}, "--optimizer muon"),
        ("megatron-bridge", {**_CORE, "tp": 2, "sharding": "zero1"}, "optimizer: dist_muon"),
        ("deepspeed", {"sharding": "zero2", "recompute": "full"}, '"type": "Muon"'),
        ("maxtext", {"sharding": "zero3", "recompute": "full"}, 'opt_type: "muon"'),
    ],
)
def test_muon_comes_back(name: str, strategy: dict[str, Any], words: str, tmp_path: Path) -> None:
    """With its sharding, of which Megatron-LM has a word of its own."""
    files = _files(name, strategy=strategy)
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")

    found = import_recipe(tmp_path / _READ[name], name, node="dgx-h100", nodes=2)

    assert words in "".join(files.values()).replace("'", '"')
    assert "--use-distributed-optimizer" not in files.get("launch.sh", "")
    assert (found.job["optimizer"], found.not_understood) == ("muon", ())
    assert found.job["strategy"]["sharding"] == strategy["sharding"]


def test_what_does_not_run_with_muon_is_refused() -> None:
    """By the programs' own checks; those without Muon name their optimizers."""
    zero3 = {"sharding": "zero3", "recompute": "full"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("megatron-lm", {"strategy": {"sharding": "zero1"}}, "set strategy.overlap_gradients"),
        ("megatron-lm", {"strategy": {**_CORE, **zero3}}, "'zero3' with muon, expected none or"),
        ("megatron-lm", {"strategy": _CORE, "precision": "fp16"}, "found fp16 with muon"),
        ("megatron-bridge", {"strategy": {"sharding": "zero1"}}, "set strategy.overlap_parameters"),
        ("deepspeed", {"strategy": zero3}, "needs reduce_scatter: false there"),
        (
            "deepspeed",
            {"strategy": {"pp": 2, "sharding": "zero1"}},
            "pp: above 1 with muon",
        ),
        (
            "maxtext",
            {"model": "mistral-7b", "strategy": zero3},
            "found muon, which MaxText",
        ),
        *(
            (name, {"strategy": zero3}, "optimizer: found muon, expected one of")
            for name in written_frameworks()
            if "muon" not in FRAMEWORKS[name].optimizers
        ),
    ]
    for name, keys, words in cases:
        with pytest.raises(JobError) as caught:
            _files(name, **keys)
        assert words in str(caught.value)
    assert {name for name, _, _ in cases[7:]} == {"torchtitan", "accelerate", "hf-trainer"}


def test_what_is_predicted_otherwise_is_said(tmp_path: Path) -> None:
    """Other iterations than those that a job has; later releases say the sharding by two flags."""
    text = """pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 \\
      --vocab-size 64 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 \\
      --global-batch-size 8 --lr 1e-4 --bf16 --optimizer muon \\
      --use-distributed-optimizer --muon-num-ns-steps 8
    """
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    section = '"zero_optimization": {"stage": 3}, "optimizer": {"type": "Muon", "params": {}}'
    (tmp_path / "a.yaml").write_text(
        "model_name_or_path: qwen3-0.6b\nblock_size: 64\nper_device_train_batch_size: 1\n"
        f"deepspeed: {{{section}}}\n",
        encoding="utf-8",
    )

    flags = import_recipe(tmp_path / "run.sh", "megatron-lm")
    inner = import_recipe(tmp_path / "a.yaml", "hf-trainer")

    assert (flags.job["optimizer"], flags.job["strategy"]["sharding"]) == ("muon", "zero1")
    assert "5 iterations of an update, 8 in the file" in flags.assumed
    assert inner.job["optimizer"] == "muon"
    assert [note.split()[0] for note in inner.assumed if "gr" in note[:5]] == ["gradients"]
    assert any(note.startswith("ns_method gram, the default") for note in inner.assumed)


def test_the_optimizer_of_deepspeed_s_file_counts(tmp_path: Path) -> None:
    """DeepSpeed makes it, whatever the flags of a script say, and whoever launches it."""
    files = {
        "ds.json": '{"optimizer": {"type": "Muon", "params": {}}, "zero_optimization": {"stage": 2}'
        ', "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}',
        "c.yaml": "distributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: ds.json}\n",
    }
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    flags = "train.py --model_name_or_path qwen3-0.6b --block_size 64 --optim adafactor"
    launched = f"accelerate launch --config_file c.yaml {flags} --per_device_train_batch_size 2"
    script, found = tmp_path / "run.sh", {}
    for name, text in {
        "accelerate": launched,
        "hf-trainer": launched,
        "deepspeed": f"deepspeed --num_gpus 8 {flags} --deepspeed_config ds.json",
    }.items():
        script.write_text(text, encoding="utf-8")
        found[name] = import_recipe(script, name).job["optimizer"]

    assert found == dict.fromkeys(found, "muon")

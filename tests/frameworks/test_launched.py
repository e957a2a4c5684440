"""Commands of `accelerate launch` without a file, and files by the folders of a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.frameworks import Given, export_recipe, import_recipe
from wattree.job import job_from_mapping

TRAINED = (
    "train.py --model_name_or_path meta-llama/Llama-2-7b-hf --max_length 2048 "
    "--per_device_train_batch_size 2"
)


def imported(folder: Path, name: str, command: str, files: dict[str, str]) -> dict[str, Any]:
    """Return the job of a script in a project of other files."""
    for each, text in {**files, "scripts/sft/run.sh": f"{command}\n"}.items():
        path = folder / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = import_recipe(folder / "scripts/sft/run.sh", name, given=Given())
    assert found.not_understood == ()
    return dict(found.job)


@pytest.mark.parametrize("name", ["accelerate", "hf-trainer"])
@pytest.mark.parametrize(
    ("flags", "precision", "strategy"),
    [
        ("--multi_gpu --mixed_precision bf16", "bf16", {"dp": 8, "sharding": "none"}),
        (
            "--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
            "--fsdp_reshard_after_forward false --mixed_precision=fp16",
            "fp16",
            {"sharding": "zero3", "reshard_after_forward": False},
        ),
        (
            "--use_deepspeed --zero_stage 2 --offload_optimizer_device cpu --zero3_init_flag false",
            "fp32",
            {"sharding": "zero2", "offload": {"optimizer": "host"}},
        ),
        (
            "--use_deepspeed --deepspeed_config_file configs/zero3.conf --mixed_precision bf16",
            "bf16",
            {"sharding": "zero3", "bucket": "1000000000 B"},  # DeepSpeed's, not FSDP2
        ),
        (
            "--config_file configs/fsdp.yaml --fsdp_offload_params true",
            "bf16",
            {"sharding": "zero3", "offload": {"optimizer": "host", "parameters": "host"}},
        ),
    ],
)
def test_flags_of_the_launcher_are_its_settings(
    tmp_path: Path, name: str, flags: str, precision: str, strategy: dict[str, Any]
) -> None:
    """Most scripts have no file: such were refused, or trained without their engine."""
    fsdp = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
    zero = json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}})
    files = {"configs/fsdp.yaml": fsdp, "configs/zero3.conf": zero}

    job = imported(tmp_path, name, f"accelerate launch --num_processes 8 {flags} {TRAINED}", files)

    assert job["precision"] == precision
    assert strategy.items() <= job["strategy"].items()
    assert ("bucket" in job["strategy"]) is ("bucket" in strategy)
    export_recipe(job_from_mapping(job), name, tmp_path / "run")
    again = import_recipe(tmp_path / "run/launch.sh", name, node="dgx-h100", nodes=1).job
    assert again["strategy"] == job["strategy"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("hf-trainer", f"torchrun --nproc_per_node 8 {TRAINED} --deepspeed $CONFIG"),
        (
            "accelerate",
            f"accelerate launch --use_deepspeed --deepspeed_config_file $A/$B {TRAINED}",
        ),
        ("deepspeed", f"deepspeed --num_gpus 8 {TRAINED} --deepspeed_config ${{CONFIG}}"),
    ],
)
def test_a_file_that_only_a_shell_names_is_missed(tmp_path: Path, name: str, command: str) -> None:
    """Its stage of ZeRO was taken for none, without a word."""
    with pytest.raises(JobError, match="which only a shell fills in, expected the name of a file"):
        imported(tmp_path, name, command, {})


def test_a_file_is_found_from_the_root_of_a_project(tmp_path: Path) -> None:
    """And as where a container has it; an import says which file that is."""
    (tmp_path / "ds").mkdir()
    text = json.dumps({"zero_optimization": {"stage": 3}})
    (tmp_path / "ds/a.json").write_text(text, encoding="utf-8")
    for name in ("./ds/a.json", "/usr/project/ds/a.json", '"${ROOT}/ds/a.json"'):
        path = tmp_path / "run.sh"
        script = tmp_path / "examples/train/run.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        for each in (path, script):
            each.write_text(f"torchrun --nproc_per_node 8 {TRAINED} --deepspeed {name}\n")
            found = import_recipe(each, "hf-trainer")
            assert found.job["strategy"]["sharding"] == "zero3"
        assert f"settings of a.json as in {tmp_path}/ds/a.json" in found.assumed


SWIFT = "swift sft --model Qwen/Qwen2.5-7B --max_length 2048 --tuner_type"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --nproc_per_node 8 trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-7B",
            {"recompute": "full", "precision": "bf16", "tokens": 1024},
        ),
        (
            "trl sft --model_name_or_path Qwen/Qwen2.5-7B --fp16 --gradient_checkpointing False "
            "--max_length 4096",
            {"recompute": "none", "precision": "fp16", "tokens": 4096},
        ),
        (
            f"NNODES=2 NPROC_PER_NODE=8 {SWIFT} full --deepspeed zero2",
            {"recompute": "full", "precision": "bf16", "sharding": "zero2", "dp": 16},
        ),
        (
            f"NPROC_PER_NODE=4 {SWIFT} lora --lora_rank 16 --target_modules q_proj v_proj",
            {"rank": 16, "targets": ["q_proj", "v_proj"], "dp": 4},
        ),
        (f"{SWIFT.replace('tuner', 'sft')} full", {"rank": None, "recompute": "full"}),  # 2.x
        (  # Accelerate's precision is its launcher's, whoever shards
            "accelerate launch --num_processes 8 --mixed_precision bf16 train.py --fsdp full_shard "
            "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --max_seq_length 2048 "
            "--model_name_or_path Qwen/Qwen2.5-7B",
            {"precision": "bf16", "sharding": "zero3"},
        ),
        (  # of no known program, by another name of the argument
            "torchrun --nproc_per_node 8 finetune.py --model_name_or_path Qwen/Qwen2.5-7B "
            "--use_lora --lora_rank 64 --max_seq_length 4096",
            {"rank": 64, "precision": "fp32", "recompute": "none", "tokens": 4096},
        ),
    ],
)
def test_a_program_has_defaults_of_its_own(
    tmp_path: Path, command: str, expected: dict[str, object]
) -> None:
    """TRL and ms-swift recompute and train in bf16 unless told not to; swift trains adapters."""
    job = imported(tmp_path, "hf-trainer", f"{command} --per_device_train_batch_size 1", {})

    lora = job["model"]["lora"] if isinstance(job["model"], dict) else {}
    found = {**job["strategy"], **lora, "precision": job["precision"]}
    found["tokens"] = job["data"]["sequence_length"]
    assert {key: found.get(key) for key in expected} == expected


def test_ranks_of_the_launcher_count_whoever_shards(tmp_path: Path) -> None:
    """The Trainer's own --deepspeed or --fsdp takes the engine's place, not that of its ranks."""
    ranks = (
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: 2\n"
    )
    command = f"accelerate launch --config_file configs/two.yaml {TRAINED} --fsdp full_shard"

    job = imported(tmp_path, "hf-trainer", command, {"configs/two.yaml": ranks})

    assert (job["cluster"]["nodes"], job["strategy"]["dp"], job["precision"]) == (2, 16, "bf16")
    assert job["strategy"]["sharding"] == "zero3"


def test_adapters_that_nothing_turns_on_are_missed(tmp_path: Path) -> None:
    """Scripts may train them always, by their rank alone; TRL trains the whole model."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 {TRAINED} --lora_rank 8\n", encoding="utf-8")

    assumed = import_recipe(path, "hf-trainer").assumed
    assert any("adapters need use_peft" in each for each in assumed)


def test_flags_of_another_launcher_are_not_those_of_accelerate(tmp_path: Path) -> None:
    """The precision of a script's own flag was taken by no one, and missed by no one."""
    path = tmp_path / "run.sh"
    flags = "--mixed_precision bf16 --fsdp full_shard"
    path.write_text(f"torchrun --nproc_per_node 8 {TRAINED} {flags}\n", encoding="utf-8")

    assert import_recipe(path, "hf-trainer").not_understood == ("mixed_precision",)


@pytest.mark.parametrize(
    "command", ["trl dpo", "swift rlhf --deepspeed zero3", "python src/dpo.py"]
)
def test_training_on_preferences_is_known_by_its_program(tmp_path: Path, command: str) -> None:
    """It has a second model, and twice the answers, whatever arguments say."""
    with pytest.raises(JobError, match="found training on preferences"):
        imported(tmp_path, "hf-trainer", f"{command} --model_name_or_path gpt2 --bf16", {})


def test_a_program_that_starts_megatron_names_its_model(tmp_path: Path) -> None:
    """By name, with its own defaults: experts on one tensor-parallel rank, and sharded state."""
    flags = "--max_length 4096 --tensor_model_parallel_size 2 --expert_model_parallel_size 4"
    command = f"NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B-Base {flags} --tuner_type"

    job = imported(tmp_path, "megatron-lm", f"{command} full", {})

    assert (job["model"], job["precision"]) == ("qwen3-30b-a3b", "bf16")
    assert job["data"] == {"sequence_length": 4096, "global_batch": 16}
    expected = {"dp": 2, "ep": 2, "tp": 2, "sharding": "zero1", "recompute": "selective"}
    assert expected.items() <= job["strategy"].items()
    whole = f"{command} full --recompute_granularity none"
    assert imported(tmp_path, "megatron-lm", whole, {})["strategy"]["recompute"] == "none"
    for adapters in (f"{command} lora", f"{command.removesuffix('--tuner_type')}--train_type lora"):
        with pytest.raises(JobError, match="tuner_type: found lora, expected full"):
            imported(tmp_path, "megatron-lm", adapters, {})


@pytest.mark.parametrize(
    "command",
    [
        "llamafactory-cli train --stage sft --finetuning_type lora --cutoff_len 2048",
        "accelerate launch --use_fsdp --num_processes 2 src/train.py a.yaml",
    ],
)
def test_programs_are_known_by_their_command_and_by_their_file(
    tmp_path: Path, command: str
) -> None:
    """Adapters of LLaMA-Factory were once trained as the whole model."""
    text = f"{command} --model_name_or_path gpt2 --per_device_train_batch_size 1"
    files = {"scripts/sft/a.yaml": "finetuning_type: lora\nstage: sft\ncutoff_len: 2048\n"}

    found = imported(tmp_path, "hf-trainer", text, files)
    assert found["model"]["lora"] == {"rank": 8, "targets": ["all-linear"]}
    assert found["data"]["sequence_length"] == 2048


def test_ranks_that_fill_no_nodes_are_spread_evenly(tmp_path: Path) -> None:
    """As on nodes of twelve devices: they were refused where no node was named."""
    path = tmp_path / "a.toml"
    sizes = "[training]\nlocal_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 12\n"
    path.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n{sizes}', encoding="utf-8")

    found = import_recipe(path, "torchtitan")

    assert found.job["place"] == {"devices": "0-5, 8-13"}
    assert any(
        "6 of 8 devices of each node, for 12 ranks on 2 machines;" in s for s in found.assumed
    )

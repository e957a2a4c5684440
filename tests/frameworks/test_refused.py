"""What is wrong with a configuration, or cannot be expressed, is said at once and in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.cli.main import run
from wattree.errors import JobError, WattreeError
from wattree.frameworks import Given, export_recipe, import_recipe
from wattree.job import job_from_mapping

GIVEN = Given(model="llama-3.1-8b", sequence_length=2048)
_BY_DEEPSPEED = "strategy.context: 'gather': expected 'ulysses' with DeepSpeed's zero2"
_HYBRID = {"sharding": "hybrid", "cp": 2, "dp": 2, "fsdp": 2}
_HYBRID |= {"context": "overlapped", "bucket": "25 MiB"}


def refusal(tmp_path: Path, framework: str, name: str, text: str, **given: Any) -> str:
    """Return why a configuration is refused."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WattreeError) as caught:
        import_recipe(path, framework, node="dgx-h100", nodes=1, given=Given(**given))
    return str(caught.value)


@pytest.mark.parametrize(
    ("framework", "name", "text", "words"),
    [
        ("deepspeed", "a.json", "{", "expected valid JSON"),
        ("deepspeed", "a.json", '{"zero_optimization": {"stage": -1}}', "found -1, expected 0"),
        ("deepspeed", "a.json", '{"train_batch_size": -4}', "found -4, expected a whole number"),
        (
            "deepspeed",
            "a.json",
            '{"optimizer": {"type": "OneBitAdam"}}',
            "found 'OneBitAdam', expected one of",
        ),
        ("torchtitan", "a.toml", "lr = 1e-4", "no configuration of torchtitan"),
        ("accelerate", "a.yaml", "fsdp_config: [", "expected valid YAML"),
        ("accelerate", "a.yaml", "a: 1", "no configuration of Accelerate"),
        (
            "accelerate",
            "a.yaml",
            "distributed_type: FSDP\nnum_processes: 0\nmixed_precision: int4",
            "mixed_precision: found 'int4'",
        ),
        (
            "deepspeed",
            "a.json",
            '{"fp16": {"enabled": true}, "bf16": {"enabled": true}}',
            "bf16.enabled: found true with fp16.enabled",
        ),
        (
            "deepspeed",
            "a.json",
            '{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}',
            "zero_optimization.offload_optimizer: found with stage 0, expected stage 1, 2 or 3",
        ),
        (
            "megatron-lm",
            "a.yaml",
            "{num_layers: 2, hidden_size: 64, num_attention_heads: 2, padded_vocab_size: 128,"
            " optimizer_cpu_offload: true, optimizer_offload_fraction: 0.25}",
            "optimizer_offload_fraction: found 0.25, expected 1 or 0",
        ),
        (
            "torchtitan",
            "a.toml",
            '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\npipeline_parallel_degree = 2\n'
            "pipeline_parallel_layers_per_stage = 9",
            "found 1f1b with 4 stages on 2 ranks, expected one on each rank",
        ),
        (
            "accelerate",
            "a.yaml",
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nnum_processes: 8\n"
            "parallelism_config: {parallelism_config_tp_size: 2, "
            "parallelism_config_dp_shard_size: 3}",
            "its degrees multiply to 6, there are 8 devices",
        ),
        ("hf-trainer", "a.yaml", "seed: 1", "found no argument of the Trainer"),
        ("hf-trainer", "a.yaml", "per_device_train_batch_size: -1", "found -1"),
        ("maxtext", "a.yml", "ici_tensor_parallelism: 0", "found 0, expected"),
        ("maxtext", "a.yml", "remat_policy: mine", "found 'mine', expected one of"),
    ],
)
def test_a_bad_file_is_refused_with_its_reason(
    tmp_path: Path, framework: str, name: str, text: str, words: str
) -> None:
    """The message names the setting, what was found and what was expected."""
    assert words in refusal(tmp_path, framework, name, text)


@pytest.mark.parametrize(
    ("framework", "name", "text", "words"),
    [
        (
            "deepspeed",
            "a.json",
            '{"train_batch_size": 8, "zero_optimisation": {"stage": 3}}',
            "zero_optimisation: is unknown; did you mean 'zero_optimization'?",
        ),
        (
            "torchtitan",
            "a.toml",
            '[modle]\nname = "llama3"\n[training]\nlocal_batch_size = 1',
            "modle: is unknown; did you mean 'model'?",
        ),
        (
            "accelerate",
            "a.yaml",
            "distributed_type: FSDP\nfsdp_confg: {fsdp_version: 2}",
            "fsdp_confg: is unknown; did you mean 'fsdp_config'?",
        ),
        (
            "hf-trainer",
            "a.yaml",
            "per_device_train_batch_size: 1\nfsdp: full_shard\nfsdp_confg: {1: 2}\n1: {2: 3}",
            "fsdp_confg: is unknown; did you mean 'fsdp_config'?",
        ),
        (
            "deepspeed",
            "a.json",
            '{"zero_optimization": {"stage": 2, "offload_optimiser": {"device": "cpu"}}}',
            "zero_optimization.offload_optimiser: is unknown; did you mean 'offload_optimizer'?",
        ),
        (
            "accelerate",
            "a.yaml",
            "distributed_type: FSDP\n1: {2: 3}\nfsdp_config: {fsdp_offload_params: 7}",
            "fsdp_config.fsdp_offload_params: found 7, expected true or false",
        ),
        (
            "accelerate",
            "a.yaml",
            "distributed_type: MULTI_GPU\nnum_machines: 3\nnum_processes: 8",
            "8 processes do not divide into 3 machines",
        ),
    ],
)
def test_what_would_be_another_job_is_refused(
    tmp_path: Path, framework: str, name: str, text: str, words: str
) -> None:
    """A section with a slip in its name left its place to defaults; ranks were moved."""
    given = {"model": "llama-3.1-8b", "sequence_length": 128, "micro_batch": 1}

    assert words in refusal(tmp_path, framework, name, text, **given)


MEGATRON = (
    "--num-layers 32 --hidden-size 64 --num-attention-heads 2 --vocab-size 128 --seq-length 512 "
    "--max-position-embeddings 512 --swiglu --bf16 --pipeline-model-parallel-size 4 "
)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--fp16", "bf16: found true with fp16"),
        ("--squared-relu", "swiglu: found true with squared_relu"),
        (
            "--num-layers-per-virtual-pipeline-stage 3",
            "found 3, expected a divisor of 8, the layers of a stage",
        ),
        ("--recompute-granularity full", "recompute_method: found nothing, expected block or"),
        ("--seq-length 1024", "found 512, expected seq_length 1024 or more"),
    ],
)
def test_what_megatron_asserts_is_refused(tmp_path: Path, flags: str, words: str) -> None:
    """A plan for a script that does not start is of no use."""
    text = f"pretrain_gpt.py {MEGATRON}{flags}\n"

    assert words in refusal(tmp_path, "megatron-lm", "a.sh", text)


def test_a_part_of_a_node_is_a_part_with_the_number_of_nodes_too(tmp_path: Path) -> None:
    """`--nodes 1` is what the file says anyway; more nodes than it needs contradict it."""
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 4\n")
    given = Given(model="llama-3.1-8b", sequence_length=128, micro_batch=1)
    jobs = [
        import_recipe(path, "accelerate", node="dgx-h100", nodes=nodes, given=given).job
        for nodes in (None, 1)
    ]

    assert jobs[0] == jobs[1]
    assert jobs[0]["place"] == {"devices": "0-3"}
    with pytest.raises(JobError, match="is for 4 devices, the cluster has 16; leave out --nodes"):
        import_recipe(path, "accelerate", node="dgx-h100", nodes=2, given=given)


def test_parameters_wait_on_the_host_with_the_last_stage_alone(tmp_path: Path) -> None:
    """DeepSpeed ignores the section with the others; a job that has it would seem to fit."""
    found = {}
    for stage in (1, 3):
        section = {"stage": stage, "offload_param": {"device": "cpu"}}
        values = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": section}
        path = tmp_path / f"{stage}.json"
        path.write_text(json.dumps(values))
        recipe = import_recipe(path, "deepspeed", node="dgx-h100", nodes=1, given=GIVEN)
        notes = [line for line in recipe.assumed if "offload_param" in line]
        found[stage] = (recipe.job["strategy"].get("offload"), notes)

    assert found[1] == ({}, ["offload_param has no effect with stage 1, only with stage 3"])
    assert found[3] == ({"optimizer": "host", "parameters": "host"}, [])


def test_a_batch_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """DeepSpeed refuses it too, but only when it starts."""
    batch = {
        "train_batch_size": 100,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    told = refusal(tmp_path, "deepspeed", "a.json", json.dumps(batch), model="llama-3.1-8b")

    assert "a step of 100 samples is not 4 micro-batches of 2 on each of 8 replicas" in told


def test_a_batch_of_no_number_of_ranks_is_refused_for_those_of_the_cluster(tmp_path: Path) -> None:
    """The cluster that a user names has 8 devices; the message once had 7 replicas."""
    path = tmp_path / "a.json"
    batch = {"train_batch_size": 60, "train_micro_batch_size_per_gpu": 4}
    path.write_text(json.dumps({**batch, "gradient_accumulation_steps": 2}), encoding="utf-8")

    with pytest.raises(JobError, match="on each of 8 replicas, which is 64"):
        import_recipe(path, "deepspeed", node="dgx-h100", given=Given(model="llama-2-7b"))


def test_degrees_that_no_cluster_has_are_one_problem(tmp_path: Path) -> None:
    """A batch for the replicas that are left over sent its reader the wrong way."""
    text = """
[model]
name = "llama3"
flavor = "8B"
[training]
global_batch_size = 128
local_batch_size = 2
[parallelism]
tensor_parallel_degree = 3
"""
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(JobError) as caught:
        import_recipe(path, "torchtitan", node="dgx-h100", nodes=2)
    assert caught.value.problems == ("the degrees need a multiple of 3 devices, found 16",)


def test_what_a_file_does_not_say_is_asked_for(tmp_path: Path) -> None:
    """All of it in one message, with the options that add it."""
    told = refusal(tmp_path, "accelerate", "a.yaml", "distributed_type: MULTI_GPU")

    assert all(f"--{name}" in told for name in ("model", "sequence-length", "micro-batch"))


def test_an_option_does_not_replace_what_a_file_says(tmp_path: Path) -> None:
    """One of them is wrong, and no one knows which."""
    text = '{"train_micro_batch_size_per_gpu": 2}'

    assert "says micro_batch 2" in refusal(tmp_path, "deepspeed", "a.json", text, micro_batch=4)


def test_auto_is_left_to_the_framework_and_unknown_settings_are_named(tmp_path: Path) -> None:
    """Neither is an error: published configurations are full of both."""
    path = tmp_path / "ds.json"
    text = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "new_switch": True},
        "steps_per_print": 10,
    }
    path.write_text(json.dumps(text))
    found = import_recipe(path, "deepspeed", node="dgx-h100", nodes=1, given=GIVEN)

    assert found.not_understood == ("zero_optimization.new_switch",)
    assert any("gradient_accumulation_steps" in line for line in found.assumed)


@pytest.mark.parametrize(
    ("framework", "strategy", "keys"),
    [
        (
            "deepspeed",
            {"sharding": "hybrid", "dp": 2, "fsdp": 4, "recompute": "block_2"},
            ("strategy.sharding", "strategy.recompute"),
        ),
        (
            "accelerate",
            {"sharding": "none", "dp": 2, "tp": 2, "pp": 2, "sequence_parallel": True},
            ("strategy.pp", "strategy.tp", "strategy.sequence_parallel"),
        ),
        ("accelerate", {"sharding": "zero2", "cp": 2, "context": "gather"}, (_BY_DEEPSPEED,)),
        ("hf-trainer", _HYBRID, ("strategy.context", "strategy.cp", "strategy.bucket")),
        (
            "maxtext",
            {"sharding": "zero2", "dp": 4, "cp": 2, "context": "ulysses", "bucket": "25 MiB"},
            ("strategy.sharding", "strategy.context", "strategy.cp", "strategy.bucket"),
        ),
    ],
)
def test_every_misfit_is_listed_and_nothing_is_written(
    tmp_path: Path, framework: str, strategy: dict[str, Any], keys: tuple[str, ...]
) -> None:
    """A user mends a job once, not once for each message."""
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": "dgx-h100"},
            "software": framework,
            "strategy": strategy,
        }
    )
    with pytest.raises(WattreeError) as caught:
        export_recipe(job, framework, tmp_path / "out")

    assert [key for key in keys if f"{key}: " not in str(caught.value)] == []
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export never mixes with what is there."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    text = {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 2048, "global_batch": 64},
        "cluster": {"node": "dgx-h100"},
        "strategy": {"sharding": "zero3"},
    }
    job.write_text(json.dumps(text))

    assert run(["export", str(job), "--to", "accelerate", str(out)]) == 2
    assert "expected an empty folder" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert run(["export", str(job), "--to", "accelerate", str(job)]) == 2
    assert f"{job}: found a file, expected an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "hf-trainer"])
@pytest.mark.parametrize("model", ["resnet-50", "t5-base", "bert-base"])
def test_models_that_scripts_cannot_load_are_refused(
    tmp_path: Path, framework: str, model: str
) -> None:
    """They load AutoModelForCausalLM, and train on tokens."""
    job = job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": 16} | ({} if "resnet" in model else {"sequence_length": 512}),
            "cluster": {"node": "dgx-h100"},
            "software": framework,
            "strategy": {"dp": 8, "sharding": "zero2", "micro_batch": 1, "recompute": "none"},
        }
    )
    with pytest.raises(WattreeError, match="expected a decoder that predicts the next token"):
        export_recipe(job, framework, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sizes_of_a_known_model_are_its_name_in_maxtext_too(tmp_path: Path) -> None:
    """MaxText has no name for it, so its sizes are what is written."""
    job = job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 2048, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "software": "maxtext",
            "strategy": {"dp": 8, "sharding": "zero3", "micro_batch": 1, "recompute": "full"},
        }
    )
    export_recipe(job, "maxtext", tmp_path / "run")

    found = import_recipe(tmp_path / "run/maxtext.yml", "maxtext", node="dgx-h100", nodes=1)
    assert found.job["model"] == "llama-3.2-1b"


def test_a_batch_that_the_trainer_fills_in_is_not_assumed(tmp_path: Path) -> None:
    """Its own arguments say it; what an export writes comes back without a note."""
    job = job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 2048, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "software": "hf-trainer",
            "strategy": {"dp": 8, "sharding": "zero2", "micro_batch": 1, "recompute": "none"},
        }
    )
    export_recipe(job, "hf-trainer", tmp_path / "run")

    found = import_recipe(tmp_path / "run/launch.sh", "hf-trainer", node="dgx-h100", nodes=1)
    assert found.assumed == ()

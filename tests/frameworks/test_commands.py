"""Commands as people keep them: flags of scripts, launchers of each library, shells' arithmetic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wattree.cost import software_family
from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.shell_flags import shell_flags
from wattree.job import job_from_mapping

#: Files that the commands name.
FILES: Mapping[str, str] = {
    "zero2.json": json.dumps(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 2},
        }
    ),
    "fsdp.json": '{"fsdp_transformer_layer_cls_to_wrap": "X", "fsdp_reshard_after_forward": false}',
    "hybrid.yaml": "{distributed_type: FSDP, mixed_precision: bf16, num_processes: 8, "
    "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_auto_wrap_policy: x}}",
    "sft.yaml": "{model_name_or_path: Qwen/Qwen3-4B-Base, max_length: 4096, bf16: true, "
    "per_device_train_batch_size: 2, gradient_accumulation_steps: 8}",
}
GPT = (
    "--num-layers $N --hidden-size $((N * 128)) --num-attention-heads 32 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--tensor-model-parallel-size ${TP:=4} --vocab-size 1024\n"
)


@pytest.mark.parametrize(
    ("framework", "command", "expected"),
    [
        (
            "hf-trainer",
            "torchrun --nnodes 2 --nproc_per_node=8 run_clm.py --do_train "
            '--model_name_or_path=Qwen/Qwen2.5-3B --fsdp "full_shard auto_wrap" '
            "--fsdp_config fsdp.json --optim adafactor "
            "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --block_size 2048",
            {"model": "qwen2.5-3b", "global_batch": 128, "sharding": "zero3", "dp": 16,
             "reshard_after_forward": False, "optimizer": "adafactor", "precision": "fp32"},
        ),
        (
            "hf-trainer",
            "deepspeed --num_gpus=8 train.py --deepspeed zero2.json --bf16 --block_size 1024 "
            "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --tf32 True --max_length 99 "
            "--per_device_train_batch_size 1 --gradient_accumulation_steps 16 --optim adamw_hf",
            {"model": "qwen2.5-7b", "global_batch": 128, "sharding": "zero2", "precision": "bf16",
             "sequence_length": 1024},
        ),
        (
            "hf-trainer",
            "LOG=1 accelerate launch --config_file hybrid.yaml --num_processes 16 sft.py "
            "--config sft.yaml --gradient_accumulation_steps 4 --gradient_checkpointing",
            {"model": "qwen3-4b", "global_batch": 128, "sharding": "hybrid", "fsdp": 8, "dp": 2,
             "recompute": "full", "precision": "bf16", "sequence_length": 4096},
        ),
        (
            "accelerate",
            "accelerate launch --config_file hybrid.yaml train.py --model_name_or_path gpt2 \\\n"
            "--max_seq_length 512 --per_device_train_batch_size 2 --use_peft_lora True "
            "--lora_r 8 --use_4bit_quantization True --use_nested_quant True "
            "--optim paged_adamw_32bit",
            {"global_batch": 16, "sharding": "zero3", "sequence_length": 512, "rank": 8,
             "base": "nf4-double", "optimizer": "adamw"},
        ),
        (
            "deepspeed",
            "deepspeed --hostfile h --num_gpus 8 --num_nodes 2 train.py --deepspeed \\\n"
            " --deepspeed_config zero2.json --model_name_or_path tiiuae/falcon-7b --fp16 "
            "--max_seq_len 2048 --per_device_train_batch_size 4 | tee log",
            {"model": "falcon-7b", "global_batch": 64, "sharding": "zero2", "precision": "fp16"},
        ),
        (
            "megatron-lm",
            "N=$((4 * 8)); if [ $A ]; then TP=2; else TP=8; fi\ntorchrun pretrain_gpt.py " + GPT,
            {"layers": 32, "hidden": 4096, "tp": 2, "vocab": 1024},
        ),
        (
            "megatron-lm",
            "N=32; MP=4; deepspeed pretrain_gpt.py --checkpoint-activations --zero-stage 1 "
            "--deepspeed " + GPT.replace("--tensor-model-parallel-size ${TP:=4}", "")
            + " --model-parallel-size $MP",
            {"tp": 4, "recompute": "full", "sharding": "zero1"},
        ),
        (
            "megatron-lm",
            "N=32 && X='a;b'\ntorchrun pretrain_bert.py " + GPT,
            {"tp": 4, "causal": False, "head": "masked_lm", "next_sentence": True},
        ),
        (
            "maxtext",
            "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=2 "
            "ici_fsdp_parallelism=16 dcn_data_parallelism=1 remat_policy=custom "
            "decoder_layer_input=offload query_proj=offload key_proj=offload value_proj=offload",
            {"recompute": "selective_qkv", "to": "host", "layers": 32, "dp": 16},
        ),
        (
            "maxtext",
            'FLAGS="--xla=1" PLATFORM=tpu python3 -m MaxText.train base.yml model_name=gemma2-9b '
            "per_device_batch_size=2 ici_fsdp_parallelism=-1 max_target_length=1024",
            {"model": "gemma-2-9b", "global_batch": 32, "sharding": "hybrid"},
        ),
    ],
)  # fmt: skip
def test_commands_say_what_they_start(
    framework: str, command: str, expected: Mapping[str, Any], tmp_path: Path
) -> None:
    """Most people have a command with flags, not the files that we write."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "run.sh"
    path.write_text(command, encoding="utf-8")

    found = import_recipe(
        path,
        framework,
        node="dgx-a100",
        nodes=1 if "num_gpus=8" in command or framework == "accelerate" else 2,
    )

    said: dict[str, Any] = {}
    _flatten(found.job, said)
    assert {key: said.get(key, found.job.get(key)) for key in expected} == expected
    assert found.not_understood == ()


def _flatten(values: Mapping[str, Any], found: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _flatten(value, found)
        else:
            found.setdefault(key, value)


@pytest.mark.parametrize("framework", ["hf-trainer", "deepspeed"])
def test_a_flag_with_a_slip_is_named(tmp_path: Path, framework: str) -> None:
    """A step may depend on those of a script, too, which once went without a word."""
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 a.py --model_name_or_path gpt2 --block_size 512 "
        "--per_device_train_batch_size 2 --gradient_accumulation_step 4 --my_own_flag 1 "
        "--deepspeed ds.json --data_path a.json"
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')

    found = import_recipe(path, framework, node="dgx-a100", nodes=1)

    assert found.not_understood == ("gradient_accumulation_step", "my_own_flag")
    meant = {"gradient_accumulation_step": "gradient_accumulation_steps"}
    assert found.meant == (meant if framework == "hf-trainer" else {})


def test_a_program_of_other_models_is_refused(tmp_path: Path) -> None:
    """Its arguments are those of a decoder, so it would be read as one."""
    path = tmp_path / "run.sh"
    path.write_text(f"N=12; torchrun pretrain_t5.py {GPT}")

    with pytest.raises(JobError, match="trains an encoder with a decoder"):
        import_recipe(path, "megatron-lm", node="dgx-a100", nodes=1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=3; x --a $((A*(2+1)-1))", "8"),
        ("x --a $(( 7 / 2 % 2 ))", "1"),
        ("x --a $((1/0))", "$((1/0))"),
        ("x --a $((9**9**9))", "$((9**9**9))"),
        ("x --a 'b; c' ; y", "b; c"),
        ("x --a 1 && y", "1"),
        (
            "S=7B; if [ $S = 1B ]; then A=1; elif [[ $S == *B ]]; then A=2; else A=3; fi; x --a $A",
            "2",
        ),
        ('if [ -z "$S" ] || [ 1 -eq 1 ]; then A=1\nelse A=2\nfi\nx --a $A', "1"),
        ("if [ 1 -gt 2 ] && [ $S = 1 ]; then\n A=1\nelse A=2\nfi\nx --a $A", "2"),
        ("S=b; case $S in\n a) A=1 ;;\n b|c) A=2 ;;\n *) A=3;;\nesac\nx --a $A", "2"),
        ("case $S in\n a) A=1 ;;\n b) A=2 ;;\nesac\nx --a $A", "1"),
        ("if [ $S = 1 ]; then\n if [ 1 = 1 ]; then A=1; else A=2; fi; fi\nx --a $A", "1"),
        ("O='--a 1 '\nR=\"torchrun x.py ${O}\"\neval ${R}", "1"),
        ("for i in 1; do x --a $((" + "(" * 900 + "1" + ")" * 900 + ")); done", None),
    ],
)
def test_shells_compute_with_whole_numbers(text: str, value: str | None) -> None:
    """And nothing is run."""
    found = shell_flags(text)

    assert value is None or found == {"a": value}


def test_conditions_that_nothing_decides_are_said(tmp_path: Path) -> None:
    """Of those that set something: whether a folder is there changes no run."""
    path = tmp_path / "run.sh"
    path.write_text(
        "N=32\nif [[ -n ${FP8} ]]; then\n  OPTIONS+=(--fp8-format hybrid)\nfi\n"
        'if [ ! -d "$OUT" ]; then mkdir -p "$OUT"; fi\nif [ $N -gt 8 ]; then WIDE=1; fi\n'
        "case $SIZE in\n  small) LR=1e-3 ;;\n  *) LR=1e-4 ;;\nesac\n"
        'if [ -n "$A" ] &&\n   [ -n "$B" ] ||\n   [ "$C" ]; then\n  WIDE=2\nfi\n'
        f"torchrun pretrain_gpt.py {GPT}"
    )
    found = import_recipe(path, "megatron-lm", node="dgx-h100", nodes=1)

    said = [line for line in found.assumed if line.startswith("taken as true")]
    assert said == [
        "taken as true: [[ -n ${FP8} ]]",
        "taken as true: $SIZE is small",
        'taken as true: [ -n "$A" ] && [ -n "$B" ] || [ "$C" ]',
    ]


@pytest.mark.parametrize(
    ("flags", "bytes_"),
    [
        ("--bf16", 4.0),
        ("--bf16 --grad-reduce-in-bf16", 2.0),
        ("--bf16 --main-grads-dtype bf16", 2.0),
        ("--fp16", 2.0),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4.0),
        ("", 4.0),
    ],
)
@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge"])
def test_gradients_have_the_format_that_flags_say(
    framework: str, flags: str, bytes_: float, tmp_path: Path
) -> None:
    """And what is exported has the format of the prediction: fp32 takes twice the memory."""
    path = tmp_path / "run.sh"
    path.write_text(f"N=32; torchrun pretrain_gpt.py {GPT.replace('--bf16', flags)}")
    found = import_recipe(path, "megatron-lm", node="dgx-a100", nodes=1)

    assert _gradient_bytes(found.job) == bytes_

    job = {**found.job, "model": "llama-3-8b", "precision": "bf16"}
    concrete = concrete_job(job_from_mapping(job, "a"))
    files, _ = recipe_files(FRAMEWORKS[framework], concrete)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    written = "overrides.yaml" if framework == "megatron-bridge" else "launch.sh"
    back = import_recipe(tmp_path / written, framework, node="dgx-a100", nodes=1)

    assert _gradient_bytes(back.job) == bytes_


def _gradient_bytes(job: Mapping[str, Any]) -> float:
    """Return the width of gradients: the software's own unless the job states another. [B]"""
    usual = software_family(job["software"]).gradient_bytes
    return float(job.get("traits", {}).get("gradient_bytes", usual))


def test_a_bridge_file_says_what_its_model_is(tmp_path: Path) -> None:
    """Whole configurations have sizes and more; `${…}` is what stands elsewhere."""
    path = tmp_path / "run.yaml"
    path.write_text(
        """
model:
  {num_layers: 20, hidden_size: 1920, num_attention_heads: 16, num_query_groups: 4,
   ffn_hidden_size: 7680, gated_linear_unit: false, normalization: LayerNorm, vocab_size: 1024,
   add_bias_linear: true, share_embeddings_and_output_weights: true, window_size: null,
   seq_length: "${dataset.sequence_length}", position_embedding_type: yarn,
   cuda_graph_impl: local, cuda_graph_scope: full_iteration}
dataset: {sequence_length: 2048, path: "${oc.env:HOME}/data"}
train: {micro_batch_size: 2, global_batch_size: 32}
ddp: {grad_reduce_in_fp32: true}
"""
    )

    found = import_recipe(path, "megatron-bridge", node="dgx-a100", nodes=1)

    block = found.job["model"]["transformer"]
    said = {key: block[key] for key in ("gated", "norm", "mlp_bias", "tied_embedding", "kv_heads")}
    assert said == {
        "gated": False,
        "norm": "layer",
        "mlp_bias": True,
        "tied_embedding": True,
        "kv_heads": 4,
    }
    assert found.job["data"]["sequence_length"] == 2048
    assert found.job["traits"] == {
        "reduce_bytes": 4.0,
        "gradient_bytes": 4.0,
        "cuda_graphs": "full",
    }
    assert found.not_understood == ()


def test_further_predictions_of_a_pipeline_are_those_of_the_model(tmp_path: Path) -> None:
    """A chunk that holds them alone is no empty one, and their tokenizer names a vocabulary."""
    path = tmp_path / "run.sh"
    sizes = "--num-layers 9 --hidden-size 512 --num-attention-heads 8 --seq-length 512"
    path.write_text(
        f"torchrun pretrain_gpt.py {sizes} --max-position-embeddings 512 --micro-batch-size 1 "
        "--global-batch-size 8 --pipeline-model-parallel-size 2 --mtp-num-layers 1 --bf16 "
        "--pipeline-model-parallel-layout 'Ettt|(tt|)*3m|L' --mtp-loss-scaling-factor 0.1 "
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B-Instruct "
    )

    found = import_recipe(path, "megatron-lm", node="dgx-a100", nodes=1)

    assert found.job["strategy"]["stage_layers"] == [3, 2, 2, 1, 1, 0]
    assert found.job["model"]["transformer"]["vocab"] == 152064
    assert found.job["model"]["transformer"]["predictions"] == 1
    assert found.not_understood == ()


def test_recipes_of_earlier_releases_are_read_by_what_their_keys_are_called_now(
    tmp_path: Path,
) -> None:
    """Else the batch of a published recipe is the default of today."""
    path = tmp_path / "a.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nbatch_size = 4\nseq_len = 8192\n'
        "tensor_parallel_degree = 8\ncompile = true\nwarmup_steps = 9\n[experimental]\n"
        "enable_async_tensor_parallel = true\n[float8]\nenable_float8_linear = true\n"
        "enable_fsdp_float8_all_gather = true\n[parallelism]\ndata_paralel_shard_degree = 2\n"
    )

    found = import_recipe(path, "torchtitan", node="dgx-h100", nodes=2)

    strategy = {key: found.job["strategy"].get(key) for key in ("dp", "tp", "overlap_tensor")}
    assert strategy == {"dp": 2, "tp": 8, "overlap_tensor": True}
    assert found.job["data"]["global_batch"] == 8
    assert (found.job["precision"], found.job["compile"]) == ("fp8", True)
    assert found.job["traits"] == {"gather_bytes": 1.0}
    assert found.unknown == (
        "parallelism.data_paralel_shard_degree; did you mean "
        "'parallelism.data_parallel_shard_degree'?",
    )


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ('X=""\nif [ -n "$X" ]; then A="--b 1"; else A="--c 1"; fi\nrun $A', {"c": "1"}),
        ('X=\nif [ ! -z "$X" ]; then A="--b 1"; fi\nrun --a 8 $A $MORE "$@"', {"a": "8"}),
        ('X=false\nif $X; then A="--b 1"; else A="--c 1"; fi\nrun $A', {"c": "1"}),
        ('X=-1\nif ! [ $X -gt 0 ]; then A="--b 1"; else A="--c 1"; fi\nrun $A', {"b": "1"}),
        ('S=7b\ncase $S in 7b) A="--b 1" ;; *) A="--c 1" ;; esac\nrun $A', {"b": "1"}),
        ("python - <<EOF\nif x == 1:\n    y()\nEOF\nrun --a 8", {"a": "8"}),
    ],
)
def test_branches_that_variables_decide_are_those_of_a_shell(
    script: str, flags: dict[str, Any]
) -> None:
    """Variables that are empty, false or negative too; Python in a script is no branch of it."""
    assert shell_flags(script) == flags


def test_a_program_in_a_comment_is_not_started(tmp_path: Path) -> None:
    """It does not make another model of the one that is trained."""
    path = tmp_path / "run.sh"
    path.write_text(f"# as pretrain_bert.py has it\nN=32; torchrun pretrain_gpt.py {GPT}")
    found = import_recipe(path, "megatron-lm", node="dgx-a100", nodes=1)

    assert "causal" not in str(found.job["model"])

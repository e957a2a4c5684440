"""What configurations by other hands have that the frameworks' own examples lack."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS, Given, import_recipe
from wattree.frameworks.shell_flags import shell_flags

DECODER = (
    "--num-layers 30 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 512"
)


def written(folder: Path, name: str, text: str) -> Path:
    """Return a file with a text."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("NeMo", "trainer: {devices: 8}\nexp_manager: {}\nmodel: {hidden_size: 64}\n"),
        ("NeMo", "trainer: {devices: 8}\nmodel: {micro_batch_size: 2, hidden_size: 64}\n"),
        ("NeMo", "model: {config: {_target_: nemo.collections.llm.Llama3Config8B}}\n"),
        ("Primus", "work_group: a\nmodules: {pre_trainer: {framework: megatron}}\n"),
        ("GPT-NeoX", "pipe-parallel-size: 1\nmodel-parallel-size: 1\nnum-layers: 12\n"),
    ],
)
def test_files_of_programs_without_a_reader_are_named_as_such(
    framework: str, program: str, text: str, tmp_path: Path
) -> None:
    """Some were once read as the Trainer's full training, without a word."""
    with pytest.raises(JobError, match=f"a configuration of {program}, which no reader here reads"):
        import_recipe(written(tmp_path, "a.yaml", text), framework)


_QLORA = "lora_target: all\nquantization_bit: 4\ncutoff_len: 1024\nbf16: true\n"
_AXOLOTL = "load_in_4bit: true\nlora_target_linear: true\nsequence_len: 1024\nbf16: auto\n"


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        (f"model_name_or_path: gpt2\nfinetuning_type: lora\n{_QLORA}", "stage"),
        (f"base_model: gpt2\nadapter: qlora\n{_AXOLOTL}gradient_checkpointing: true\n", "rl"),
    ],
)
def test_programs_of_the_trainer_are_read_as_such(text: str, stage: str, tmp_path: Path) -> None:
    """LLaMA-Factory's QLoRA was once read as full training; other readers still refuse it."""
    path = written(tmp_path, "a.yaml", text)
    found = import_recipe(path, "hf-trainer")
    bare = re.sub(r"(quantization_bit|load_in_4bit): .*\n", "", text)
    plain = import_recipe(written(tmp_path, "c.yaml", bare), "hf-trainer")
    assert not any("nested_quant" in line for line in plain.assumed)  # nothing is quantized
    lora = {"rank": 8, "targets": ["all-linear"], "base": "nf4-double"}
    assert found.job["model"] == {"name": "gpt2", "lora": lora}
    assert (found.job["strategy"]["recompute"], found.not_understood) == ("full", ())
    for framework in sorted({*FRAMEWORKS} - {"hf-trainer"}):
        with pytest.raises(JobError, match="of another program, which `--from hf-trainer`"):
            import_recipe(path, framework)
    with pytest.raises(JobError, match="found training on preferences"):
        import_recipe(written(tmp_path, "b.yaml", f"{text}{stage}: dpo\n"), "hf-trainer")


def test_recipes_in_python_are_named_as_such(tmp_path: Path) -> None:
    """Torchtitan and Megatron-Bridge have them; they say their values only when they are run."""
    path = written(tmp_path, "config_registry.py", "def llama3_8b() -> None: ...\n")

    with pytest.raises(JobError, match="found a program in Python, expected a file of settings"):
        import_recipe(path, "torchtitan")


def test_a_model_of_no_catalog_can_be_given(tmp_path: Path) -> None:
    """Tuned models are many; their sizes are few."""
    text = "model_name_or_path: acme/coder-7b\nper_device_train_batch_size: 1\nmax_length: 2048\n"
    path = written(tmp_path, "a.yaml", text)

    with pytest.raises(JobError) as caught:
        import_recipe(path, "hf-trainer")
    assert str(caught.value).count(str(path)) == 1
    assert "--model takes one of the same sizes" in str(caught.value)
    found = import_recipe(path, "hf-trainer", given=Given(model="llama-2-7b"))
    assert found.job["model"] == "llama-2-7b"


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({"bf16": {"enabled": "auto"}}, "bf16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, "bf16"),
        ({"fp16": {"enabled": "auto"}}, "fp16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, "fp16"),
        ({"bf16": {"enabled": False}}, "fp32"),
    ],
)
def test_a_number_format_left_open_is_not_fp32(
    sections: dict[str, object], precision: str, tmp_path: Path
) -> None:
    """A file leaves open which format is on because one will be; buckets are counted in it."""
    values = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 1e6}, **sections}
    path = written(tmp_path, "ds.json", json.dumps({"_comment": "for all", **values}))
    given = Given(model="gpt2", sequence_length=1024, micro_batch=1)

    found = import_recipe(path, "deepspeed", nodes=1, given=given)

    assert found.job["precision"] == precision
    width = 4 if precision == "fp32" else 2
    assert found.job["strategy"]["bucket"] == f"{width * 10**6} B"
    assert found.not_understood == ()


def test_short_names_of_zero_are_those_of_stage_3(tmp_path: Path) -> None:
    """DeepSpeed takes both; Axolotl's files have the short ones."""
    zero = {
        "stage": 3,
        "max_live_parameters": 1e9,
        "gather_16bit_weights_on_model_save": True,
    }
    path = written(tmp_path, "ds.json", json.dumps({"zero_optimization": zero}))
    given = Given(model="gpt2", sequence_length=1024, micro_batch=1)

    found = import_recipe(path, "deepspeed", nodes=1, given=given)

    assert found.not_understood == ()
    assert any("stage3_max_live_parameters" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("stages", "number", "sharding"),
    [(2, "bf16", "zero1"), (1, "bf16", "none"), (2, "fp16", "none")],
)
def test_deepspeed_shards_the_state_of_pipelines_in_bf16(
    tmp_path: Path, stages: int, number: str, sharding: str
) -> None:
    """Its BF16_Optimizer does, of whatever stage; replicas without a pipeline have another."""
    values = {number: {"enabled": True}, "pipeline": {"stages": stages}}
    path = written(tmp_path, "ds.json", json.dumps(values))
    given = Given(model="gpt2", sequence_length=1024, micro_batch=1)

    job = import_recipe(path, "deepspeed", nodes=1, given=given).job

    assert job["strategy"]["sharding"] == sharding


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        (': "${SIZE:=4096}"\nrun --hidden-size $SIZE\n', {"hidden_size": "4096"}),
        ('X=1\n: "${X:=2}"\nrun --one $X\n', {"one": "1"}),
        ("# run --not \\\nrun --this 1\n", {"this": "1"}),
        ("run --a 1 \\\n#  --b 2 \\\n  --c 3\n", {"a": "1", "c": "3"}),
        ("run --bf16 ${MORE[@]}\n", {"bf16": True}),
        ('MORE=" \\\n  --lr 1 "\nrun --bf16 $MORE\n', {"lr": "1", "bf16": True}),
        ("run --bf16 \\", {"bf16": True}),
        ("torchrun --nnodes 4 train.py --lr 1\n", {"nnodes": "4", "lr": "1"}),
        ("run --config a.py --lr 1\n", {"config": "a.py", "lr": "1"}),
        ("#SBATCH --gpus-per-node=a100:4\nrun --tp $SLURM_GPUS_PER_NODE\n", {"tp": "4"}),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:8\nrun --n $SLURM_NNODES", {"n": "2"}),
        ("N=4\nrun --a $(expr 16 / $N) --b `expr $N \\* 2`\n", {"a": "4", "b": "8"}),
    ],
)
def test_scripts_are_read_as_a_shell_reads_them(script: str, flags: dict[str, object]) -> None:
    """Defaults that are set where they are used, comments within commands, flags in variables."""
    assert shell_flags(script) == flags


def test_scripts_of_megatron_deepspeed_are_jobs_of_it(tmp_path: Path) -> None:
    """BLOOM's: its engine, its positions, and stages that count the embedding and the head."""
    script = (
        f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {DECODER} --fp16 --zero-stage 1 "
        "--deepspeed --position-embedding-type alibi --embed-layernorm --pad-vocab-size-to 250880 "
        "--pp-partition-method 'type:transformer|embedding' --pipeline-model-parallel-size 4 "
        "--checkpoint-activations\n"
    )
    job = import_recipe(written(tmp_path, "a.slurm", script), "megatron-lm").job

    assert job["software"] == "megatron-deepspeed"
    assert job["cluster"]["nodes"] == 4
    assert job["strategy"]["pp"] == 4
    assert job["strategy"]["sharding"] == "zero1"
    block = job["model"]["transformer"]
    assert (block["positions"], block["embedding_norm"], block["vocab"]) == ("alibi", True, 250880)


@pytest.mark.parametrize(
    ("asked", "start", "replicas"),
    [
        ("--nodes=8\n#SBATCH --gpus-per-node=mi250:8", "srun python", 16),
        ("-N 4\n#SBATCH --ntasks-per-node=4", "srun -l python", 4),
        ("--nodes=8\n#SBATCH --gres=gpu:4", "srun torchrun --nproc_per_node 8 --nnodes 1", 2),
        ("--nodes=many", "srun python", 2),
    ],
)
def test_ranks_that_slurm_starts_are_counted(
    tmp_path: Path, asked: str, start: str, replicas: int
) -> None:
    """Scripts without a launcher were taken for one node, and their batch for its replicas'."""
    size = "--tensor-model-parallel-size 4 --bf16 --use-flash-attn-v2"
    script = f"#SBATCH {asked}\n{start} pretrain_gpt.py {DECODER} {size}\n"

    found = import_recipe(written(tmp_path, "a.sh", script), "megatron-lm")

    assert found.job["strategy"]["dp"] == replicas
    assert found.not_understood == ()


@pytest.mark.parametrize(
    ("flags", "software", "recompute"),
    [
        ("--checkpoint-activations --checkpoint-num-layers 2", "megatron-lm-2021", "full"),
        ("--activations-checkpoint-method uniform --mmap-warmup", "megatron-lm-2021", "full"),
        (
            "--activations-checkpoint-method block --activations-checkpoint-num-layers 10",
            "megatron-lm-2021",
            "block_3",
        ),
        ("--data-impl mmap --distributed-backend nccl", "megatron-lm-2021", "none"),
        ("--data-impl mmap --use-flash-attn", "megatron-lm", "none"),
        ("--distributed-backend nccl", "megatron-lm", "none"),
    ],
)
def test_scripts_of_2021_are_jobs_of_it(
    tmp_path: Path, flags: str, software: str, recompute: str
) -> None:
    """Arguments that later releases lack say how old a script is, and what it recomputes."""
    script = f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {DECODER} --bf16 {flags}"
    found = import_recipe(written(tmp_path, "a.sh", script), "megatron-lm")

    assert found.not_understood == ()
    assert (found.job["software"], found.job["strategy"]["recompute"]) == (software, recompute)


@pytest.mark.parametrize(
    ("flags", "model", "strategy"),
    [
        # Every second layer has experts, a token goes to one of them.
        (
            "--num-experts 16 --moe-expert-parallel-size 8",
            {"experts": 16, "top_k": 1, "moe_layers": [*range(1, 30, 2)]},
            {"ep": 8, "dp": 4},
        ),
        (
            "--num-experts 16 --topk 2 --expert-interval 15 --mlp-type residual",
            {"top_k": 2, "moe_layers": [14, 29], "shared_ffn": 16384, "shared_gate": True},
            {"dp": 32},
        ),
        ("--num-experts 1 --topk 1 --mlp-type standard", {"experts": None}, {"dp": 32}),
        ("--num-key-value-heads 4", {"kv_heads": 4}, {}),
        ("--attention-head-type multiquery", {"kv_heads": 1}, {}),
        ("--ds-sequence-parallel-size 4", {}, {"cp": 4, "dp": 8, "context": "ulysses"}),
        ("--zero-stage 3 --cpu-optimizer", {}, {"offload": {"optimizer": "host"}}),
        ("--zero-stage 0 --fp16", {}, {"sharding": "none"}),
        ("--zero-stage 0 --bf16", {}, {"sharding": "zero1"}),  # its BF16_Optimizer
    ],
)
def test_arguments_of_forks_alone_are_read(
    tmp_path: Path, flags: str, model: dict[str, object], strategy: dict[str, object]
) -> None:
    """Names and defaults of their `arguments.py`, above all Megatron-DeepSpeed's."""
    bound = "numactl --membind=0-3 --cpunodebind 0"
    start = f"srun -lu --jobid 7 --cpus-per-task $C --cpu-bind=none --wait=60 {bound} deepspeed "
    start += "--num_gpus 8 --num_nodes 4 --hostfile hosts"
    script = f"{start} pretrain_gpt.py {DECODER} --deepspeed {flags}"
    found = import_recipe(written(tmp_path, "a.sh", script), "megatron-lm")

    block = found.job["model"]["transformer"]
    assert {key: block.get(key) for key in model} == model
    assert {key: found.job["strategy"].get(key) for key in strategy} == strategy
    assert found.not_understood == ()


@pytest.mark.parametrize(
    ("framework", "script", "problem"),
    [
        (
            "megatron-lm",
            f"pretrain_gpt.py {DECODER} --linear-attention-type gated_delta_net",
            "linear_attention_type: names layers of linear attention",
        ),
        (
            "megatron-lm",
            f"pretrain_gpt.py {DECODER} --deepspeed --num-experts 64 128",
            "num_experts: found 64, 128, expected one number",
        ),
        (
            "accelerate",
            "accelerate launch --config_file=$1 train.py",
            r"found '\$1', which only a shell fills in",
        ),
        (
            "hf-trainer",
            "torchrun --nproc_per_node 8 dpo.py --bf16 --beta 0.1 --max_prompt_length 512",
            "beta, max_prompt_length: found training on preferences",
        ),
        (
            "deepspeed",
            "deepspeed grpo.py --deepspeed a.json --num_generations 8",
            "num_generations: found training on preferences",
        ),
    ],
)
def test_what_no_job_is_is_refused(
    tmp_path: Path, framework: str, script: str, problem: str
) -> None:
    """Other layers, and other training, would become a decoder's that is alike."""
    written(tmp_path, "a.json", '{"train_micro_batch_size_per_gpu": 1}')
    given = Given(model="llama-3.1-8b", sequence_length=1024, micro_batch=1)
    options = {} if framework == "megatron-lm" else {"given": given}

    with pytest.raises(JobError, match=problem):
        import_recipe(written(tmp_path, "a.sh", script), framework, **options)


def test_a_slip_of_a_flag_that_is_given_too_means_no_other(tmp_path: Path) -> None:
    """The next one that is alike, such as expert_model_parallel_size, is of another degree."""
    flags = "--tensor-model-parallel-size 2 --tensor-model-paralell-size 4 --num-layrs 2"
    script = written(tmp_path, "a.sh", f"pretrain_gpt.py {DECODER} {flags} --micro-batch-sizes 2")
    found = import_recipe(script, "megatron-lm")

    assert found.not_understood == (
        "tensor_model_paralell_size",
        "num_layrs",
        "micro_batch_sizes",
    )


def test_a_script_that_another_reads_is_read(tmp_path: Path) -> None:
    """It has the sizes; a number of steps that only a shell computes is left out."""
    (tmp_path / "models").mkdir()
    written(tmp_path, "models/small.sh", f"MODEL_ARGS=({DECODER})\n")
    script = (
        'DIR="$(cd -- "$(dirname "$0")" && pwd)"\nsource "${DIR}/models/small.sh"\n'
        'python pretrain_gpt.py "${MODEL_ARGS[@]}" --train-samples $((TOKENS / LENGTH))\n'
    )
    found = import_recipe(written(tmp_path, "run.sh", script), "megatron-lm")

    assert found.job["model"]["transformer"]["layers"] == 30
    assert "training" not in found.job
    assert any("train_samples $((TOKENS/LENGTH)) is left out" in each for each in found.assumed)


def test_adapters_of_llava_are_read(tmp_path: Path) -> None:
    """Its own switch puts them next to all linear layers."""
    script = (
        "torchrun --nproc_per_node 8 llava/train/train_mem.py --lora_enable True --lora_r 128 "
        "--bf16 True --per_device_train_batch_size 16 --model_max_length 2048"
    )
    path = written(tmp_path, "finetune_lora.sh", script)
    found = import_recipe(path, "hf-trainer", node="dgx-h100", given=Given(model="llama-2-13b"))

    assert found.job["model"]["lora"] == {"rank": 128, "targets": ["all-linear"]}


def test_a_command_in_a_word_of_another_is_read(tmp_path: Path) -> None:
    """Published recipes for TPUs start MaxText so, through what makes a job of a cluster."""
    script = (
        'pip install xpk==1\nARGS="\\\nmodel_name=llama2-7b \\\nper_device_batch_size=4 \\\n'
        'ici_fsdp_parallelism=-1"\nxpk workload create --device-type=v5p-256 '
        '--command="set -e && python3 -m MaxText.train MaxText/configs/base.yml ${ARGS}"\n'
    )
    path = written(tmp_path, "run.sh", script)

    found = import_recipe(path, "maxtext", node="tpu-v5p-host", nodes=32)

    assert found.job["model"] == "llama-2-7b"
    assert found.job["data"]["global_batch"] == 4 * 128
    assert found.not_understood == ()


@pytest.mark.parametrize(
    ("positions", "tokenizer", "model"),
    [
        (32768, "", "mistral-7b"),
        (8192, "", "llama-3-8b"),
        (131072, "--tokenizer-model mistralai/Mistral-7B-v0.1", "mistral-7b"),
    ],
)
def test_a_vocabulary_that_no_file_states_is_that_of_the_model_alike(
    tmp_path: Path, positions: int, tokenizer: str, model: str
) -> None:
    """Mistral and Llama 3 have the same layers; positions, or the tokenizer, tell them apart."""
    script = (
        "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --bf16 "
        "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
        "--position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 "
        f"--max-position-embeddings {positions} --micro-batch-size 1 {tokenizer}\n"
    )
    job = import_recipe(written(tmp_path, "a.sh", script), "megatron-lm").job

    assert job["model"] == model or job["model"]["transformer"]["vocab"] == 32000

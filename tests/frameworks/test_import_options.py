"""What a user adds to a file is in the job, or contradicts the file and is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS, Given, import_recipe
from wattree.frameworks.settings import OPTIONS, is_declared

_MEGATRON = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --bf16 "
_ACCELERATE = "distributed_type: MULTI_GPU\nmixed_precision: bf16\n"
_MPT = "name: mpt_causal_lm, d_model: 256, n_heads: 4, n_layers: 2"
#: Framework → file that leaves facts open, and what states them in it.
_FILES: Mapping[str, tuple[str, str, str]] = {
    "megatron-lm": (
        "a.sh",
        _MEGATRON,
        "--seq-length 512 --micro-batch-size 2 --global-batch-size 64",
    ),
    "megatron-bridge": (
        "a.yaml",
        "recipe: llama3_8b_pretrain_config\nddp: {use_distributed_optimizer: true}\n",
        "model: {seq_length: 512}\ntrain: {micro_batch_size: 2, global_batch_size: 64}\n",
    ),
    "torchtitan": (
        "a.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\n',
        "seq_len = 512\nlocal_batch_size = 2\nglobal_batch_size = 64\n",
    ),
    "maxtext": (
        "a.yaml",
        "model_name: llama2-7b\n",
        "max_target_length: 512\nper_device_batch_size: 2\ngradient_accumulation_steps: 4\n",
    ),
    "llm-foundry": (
        "a.yaml",
        f"model: {{{_MPT}}}\nglobal_train_batch_size: 64\n",
        "max_seq_len: 512\ndevice_train_microbatch_size: 2\n",
    ),
    "torchtune": (
        "a.yaml",
        "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
        "optimizer: {_component_: torch.optim.AdamW}\n",
        "tokenizer: {max_seq_len: 512}\nbatch_size: 2\ngradient_accumulation_steps: 4\n",
    ),
    "hf-trainer": (
        "a.yaml",
        "bf16: true\nmodel_name_or_path: llama-3.1-8b\n",
        "block_size: 512\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n",
    ),
    "accelerate": ("a.yaml", _ACCELERATE, ""),
    "deepspeed": (
        "a.json",
        '{"bf16": {"enabled": true}',
        ', "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}',
    ),
}
#: Of one node of eight devices, each a replica.
_GIVEN = {"model": "qwen3-0.6b", "sequence_length": 256, "micro_batch": 2, "accumulation": 4}
_STATED = {"sequence_length": 512, "micro_batch": 2, "accumulation": 4, "global_batch": 64}


def _job(name: str, folder: Path, *, stated: bool, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a job says of the facts that options are of."""
    file, text, more = _FILES[name]
    end = "}" if name == "deepspeed" and not stated else ""
    path = folder / file
    path.write_text(text + (more if stated else end), encoding="utf-8")
    job = import_recipe(path, name, node="dgx-h100", nodes=1, given=Given(**given)).job
    strategy = job["strategy"]
    replicas = math.prod(strategy.get(axis, 1) for axis in ("dp", "fsdp", "ep"))
    return {
        "model": job["model"],
        **job["data"],
        "micro_batch": strategy["micro_batch"],
        "accumulation": job["data"]["global_batch"] // replicas // strategy["micro_batch"],
    }


@each("name", FRAMEWORKS)
def test_an_option_fills_in_what_a_file_leaves_open(name: str, tmp_path: Path) -> None:
    """And no default of ours or the program's takes its place."""
    found = _job(name, tmp_path, stated=False, given=_GIVEN)

    assert found == {**_GIVEN, "global_batch": 64}


@each("name", FRAMEWORKS)
def test_an_option_that_contradicts_a_file_is_refused(name: str, tmp_path: Path) -> None:
    """With both values; a model that is named replaces that of the file."""
    whole = {"model": "qwen3-0.6b", **(_STATED if name == "accelerate" else {})}
    if name == "deepspeed":
        whole["sequence_length"] = 512
    assert _job(name, tmp_path, stated=True, given=whole) == {**_STATED, "model": "qwen3-0.6b"}
    silent = []
    facts = {"accelerate": (), "deepspeed": ("micro_batch", "global_batch", "accumulation")}
    for fact in facts.get(name, _STATED):
        other = 7 * _STATED[fact]
        with pytest.raises(JobError) as refused:
            _job(name, tmp_path, stated=True, given={**whole, fact: other})
        if not (str(_STATED[fact]) in str(refused.value) and str(other) in str(refused.value)):
            silent.append(f"{OPTIONS[fact]}: {refused.value}")

    assert silent == []


def _imported(name: str, folder: Path, text: str) -> Any:
    file, start, facts = _FILES[name]
    path = folder / file
    path.write_text(start + facts + text, encoding="utf-8")
    return import_recipe(path, name, node="dgx-h100", nodes=1)


def test_nothing_stands_for_no_value(tmp_path: Path) -> None:
    """YAML of Megatron-LM lists all arguments, most of them null."""
    path = tmp_path / "a.yaml"
    lines = [part.replace("--", "").replace(" ", ": ", 1) for part in _MEGATRON.split(" --")]
    lines[-1] = "bf16: true"
    lines += ["seq_length: 512", "micro_batch_size: 2", "global_batch_size: 64"]
    jobs = []
    for text in ("", "ffn_hidden_size: null\nkv_channels: null\nwindow_size: null\nsteps: null\n"):
        path.write_text("\n".join([*lines, text]), encoding="utf-8")
        found = import_recipe(path, "megatron-lm")
        jobs.append((found.job, found.not_understood))

    assert jobs[0] == jobs[1]


def test_what_a_step_depends_on_is_never_taken_as_of_no_effect() -> None:
    """Wildcards took settings of the same words: `*load*` what is offloaded."""
    telling = (
        *("fine_grained_activation_offloading", "offload_modules", "offload_optimizer_states"),
        *("expert_interval", "semi_sync_method", "save_kernel_layers"),
        *("debug_overlap", "log_micro_batch_split", "eval_precision", "fp8_checkpoint_dtype"),
    )
    groups = ("", "model.", "checkpoint.", "fault_tolerance.", "optimizer.", "fsdp_config.")
    taken = [
        f"{name}: {group}{key}"
        for name in FRAMEWORKS
        for group in groups
        for key in telling
        if is_declared(f"{group}{key}", FRAMEWORKS[name].ignored)
    ]

    megatron = FRAMEWORKS["megatron-lm"].ignored
    assert taken == []
    assert not is_declared("hybrid_override_pattern", megatron)
    assert is_declared("model.ckpt_format", megatron)


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("megatron-lm", " --offload-modules core_attn", "no job states it: offload_modules"),
        ("megatron-lm", " --recompute-granularity selective --recompute-modules mlpp", "'mlp'?"),
        (
            "torchtitan",
            '[fault_tolerance]\nenable = true\nsemi_sync_method = "diloco"\n',
            "found diloco, which does not reduce gradients at each step",
        ),
        ("megatron-bridge", "optimizer: {min_lr: 3e-5, lr: 3e-4}\n", "it: optimizer.min_lr"),
    ],
)
def test_what_no_job_states_is_named(name: str, text: str, note: str, tmp_path: Path) -> None:
    """Or refused; it was dropped, or its group taken for another setting."""
    try:
        said = "\n".join(_imported(name, tmp_path, text).assumed)
    except JobError as error:
        said = str(error)

    assert note in said


def test_converters_are_read_however_they_are_written(tmp_path: Path) -> None:
    """Those in a text, as torchtitan's own files have them, were dropped without a word."""
    path = tmp_path / "a.toml"
    formats = {
        '"float8"': "fp8",
        '"quantize.linear.float8,quantize.grouped_mm.float8"': "fp8",
        '["quantize.dense.float8"]': "fp8",  # an earlier name
        '"quantize.linear.mx"': "mxfp8",
        '""': "bf16",
        "[]": "bf16",
    }
    found = {}
    for text in (*formats, '["quantise.float8"]'):
        path.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\nconverters = {text}\n')
        try:
            job = import_recipe(path, "torchtitan", node="dgx-h100", nodes=1).job
        except JobError as error:
            said = str(error)
        else:
            found[text] = job["precision"]

    assert found == formats
    assert (
        "found 'quantise.float8', which is unknown; did you mean 'quantize.dense.float8'?" in said
    )
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8", "lora"]\n')
    own = import_recipe(path, "torchtitan", node="dgx-h100", nodes=1)
    assert own.job["precision"] == "fp8"
    assert "converter lora is left out: it is none of torchtitan's own" in own.assumed


def test_modules_are_read_however_a_list_is_written(tmp_path: Path) -> None:
    """Megatron's own tests have lists as text in brackets, whose ends were lost."""
    chosen = [
        _imported("megatron-lm", tmp_path, f" --recompute-granularity selective {words}")
        for words in (
            "--recompute-modules layernorm core_attn mlp",
            '--recompute-modules "[layernorm core_attn mlp]"',
            "--recompute-modules layernorm,core_attn,mlp",
        )
    ]

    assert {found.job["strategy"]["recompute"] for found in chosen} == {
        "modules_core_attn+mlp+layernorm"
    }


_16_BITS = {"autocast": False, "parameter_bytes": 2.0, "gradient_bytes": 2.0}
_FSDP = "fsdp: true\nfsdp_config: {version: 2}\n"
_TYPES = '"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "float32"}'


def test_what_a_trait_states_is_one(tmp_path: Path) -> None:
    """Formats and kernels that files name were left out "as no job states it"."""
    expected: list[tuple[str, str, dict[str, Any]]] = [
        ("hf-trainer", "torch_dtype: bfloat16\n", _16_BITS),
        ("hf-trainer", f"dtype: bfloat16\n{_FSDP}", {}),  # which stores fp32 with mixed precision
        ("hf-trainer", "dtype: bfloat16\nuse_peft: true\n", {}),  # frozen, as it is by default
        ("hf-trainer", "dtype: float32\nuse_peft: true\n", {"frozen_bytes": 4.0}),
        ("hf-trainer", "attn_implementation: eager\n", {"fused_attention": False}),
        (
            "hf-trainer",
            "attn_implementation: flash_attention_2\n",
            {"attention_kernels": "ampere"},
        ),
        (
            "hf-trainer",
            f"deepspeed: {{zero_optimization: {{stage: 3}}, {_TYPES}}}\n",
            {"reduce_bytes": 4.0, "gradient_bytes": 4.0},
        ),
    ]
    found = [_imported(name, tmp_path, text).job.get("traits", {}) for name, text, _ in expected]

    assert found == [traits for _, _, traits in expected]


def test_a_model_of_16_bits_computes_so_without_mixed_precision(tmp_path: Path) -> None:
    """Neither bf16 nor fp16 is set, but parameters are in that format."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "dtype: float16\nmodel_name_or_path: qwen3-0.6b\nblock_size: 64\n"
        "per_device_train_batch_size: 1\n",
        encoding="utf-8",
    )

    found = import_recipe(path, "hf-trainer")
    assert (found.job["precision"], found.job["traits"]) == ("fp16", _16_BITS)


def test_of_a_repeated_key_the_last_counts_as_in_the_libraries(tmp_path: Path) -> None:
    """PyYAML takes files of Accelerate, the Trainer and Megatron-LM so; that is said."""
    found = _imported("hf-trainer", tmp_path, "learning_rate: 1e-4\nlearning_rate: 2e-4\n")

    assert found.job["training"]["learning_rate"] == pytest.approx(2e-4)
    assert "learning_rate stands there more than once: the last value counts" in found.assumed

"""What torchtune's recipes become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.frameworks import import_recipe
from wattree.job import job_from_mapping

RECIPE = """
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}}
model: {{_component_: torchtune.models.{model}}}
optimizer: {{_component_: torch.optim.AdamW, fused: true, lr: 2e-5}}
loss: {{_component_: torchtune.modules.loss.LinearCrossEntropyLoss}}
dataset: {{_component_: torchtune.datasets.alpaca_dataset, packed: true}}
batch_size: 2
gradient_accumulation_steps: 4
dtype: bf16
device: cuda
enable_activation_checkpointing: true
{end}
"""


def _recipe(tmp_path: Path, model: str, end: str = "") -> Any:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, end=end))
    return import_recipe(path, "torchtune", node="dgx-h100", nodes=1)


def test_a_recipe_says_model_batch_and_sharding(tmp_path: Path) -> None:
    """It was refused as of a program without a reader."""
    found = _recipe(tmp_path, "llama3_1.llama3_1_8b", "fsdp_cpu_offload: true\nextra: 1")
    job = found.job
    assert (job["model"], job["software"]) == ("llama-3.1-8b", "torchtune")
    assert job["data"] == {"sequence_length": 2048, "global_batch": 64}
    assert job["strategy"] == {
        "dp": 8,
        "micro_batch": 2,
        "sharding": "zero3",
        "recompute": "full",
        "offload": {"optimizer": "host", "parameters": "host"},
    }
    assert found.not_understood == ("extra",)
    assert any("dataset.packed: samples are packed: state" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama3_3.llama3_3_70b", "llama-3.1-70b"),  # of the same sizes
        ("qwen2_5.qwen2_5_1_5b_instruct", "qwen2.5-1.5b"),
        ("qwen3.qwen3_8b_base", "qwen3-8b"),
        ("gemma2.gemma2_9b", "gemma-2-9b"),
        ("phi4.phi4_14b", "phi-4"),
        ("mistral.mistral_7b", "mistral-7b"),
    ],
)
def test_builders_are_models_of_the_catalog(model: str, name: str, tmp_path: Path) -> None:
    """By their package, and their size."""
    assert _recipe(tmp_path, model).job["model"] == name


def test_adapters_are_those_that_a_builder_makes(tmp_path: Path) -> None:
    """Scales of 4 bits are in 8 bits (`to_nf4` of torchao)."""
    builder = "llama3_2.qlora_llama3_2_1b, lora_rank: 16, lora_attn_modules: [q_proj, output_proj]"
    end = (
        "data_parallel_replicate_dim: 2\ntensor_parallel_dim: 2\nenable_activation_offloading: true"
    )
    job = _recipe(tmp_path, f"{builder}, apply_lora_to_mlp: true", end).job
    assert job["model"]["lora"] == {
        "rank": 16,
        "targets": ["q_proj", "attention.out", "mlp.up", "mlp.down"],
        "base": "nf4-double",
    }
    strategy = job["strategy"]
    assert [strategy[key] for key in ("sharding", "dp", "fsdp", "tp")] == ["hybrid", 2, 2, 2]
    assert strategy.get("sequence_parallel", True)
    assert strategy["offload"]["activations"]["layers"] == 16


@pytest.mark.parametrize("end", ["ppo_epochs: 2", "kd_ratio: 0.5", "tasks: [truthfulqa]"])
def test_what_trains_on_more_than_samples_is_refused(end: str, tmp_path: Path) -> None:
    """So are evaluations, which state a model and a batch, too."""
    with pytest.raises(JobError, match="found further answers, models or formats"):
        _recipe(tmp_path, "llama3_1.llama3_1_8b", end)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("ac_mode: selective\nac_option: 2", "none"),  # neither setting counts next to the other
        ("enable_activation_checkpointing: false\nac_mode: selective\nac_option: 2", "block_2"),
        ("enable_activation_checkpointing: false\nac_mode: full", "full"),
        ("ac_mode: null", "full"),
    ],
)
def test_either_setting_of_recomputation_counts_alone(end: str, found: str, tmp_path: Path) -> None:
    """As recipes apply them: `apply_selective_activation_checkpointing` or the other."""
    text = RECIPE
    if "enable_activation" in end:
        text = text.replace("enable_activation_checkpointing: true\n", "")
    path = tmp_path / "recipe.yaml"
    path.write_text(text.format(model="llama3_1.llama3_1_8b", end=end), encoding="utf-8")
    recipe = import_recipe(path, "torchtune", node="dgx-h100", nodes=1)
    assert recipe.job["strategy"]["recompute"] == found


def test_context_parallelism_is_read(tmp_path: Path) -> None:
    """It was a key that no one knows, and its ranks replicas with a batch each."""
    end = "context_parallel_dim: 2\ncontext_parallel_rotate_method: alltoall"
    found = _recipe(tmp_path, "llama3_1.llama3_1_8b", end)
    strategy = found.job["strategy"]
    assert [strategy[key] for key in ("dp", "cp", "context")] == [4, 2, "ring"]
    assert found.job["data"]["global_batch"] == 32
    assert found.not_understood == ()


@pytest.mark.parametrize(
    ("end", "traits"),
    [
        ("", {"gather_bytes": 1.0}),  # `enable_fsdp_float8_all_gather`
        ("fp8_recipe_name: tensorwise", None),
        ("fp8_recipe_name: rowwise", {"row_scales": True}),
    ],
)
def test_training_in_8_bits_is_read(
    end: str, traits: dict[str, Any] | None, tmp_path: Path
) -> None:
    """It was a key that no one knows, next to bf16."""
    found = _recipe(tmp_path, "llama3_1.llama3_1_8b", f"enable_fp8_training: true\n{end}")
    assert (found.job["precision"], found.job.get("traits")) == ("fp8", traits)
    assert found.not_understood == ()
    own = {each: job_from_mapping({**found.job, "precision": each}) for each in ("bf16", "fp8")}
    left = dict(own["fp8"].traits)
    assert {**own["bf16"].traits, **(traits or {})} == left


@pytest.mark.parametrize(
    ("name", "head", "devices"),
    [
        ("8B_full_single_device.yaml", "", 1),
        ("mine.yaml", "#   tune run lora_finetune_single_device --config mine", 1),
        ("mine.yaml", "# For a single device use 8B_lora_single_device.yaml", 8),
    ],
)
def test_recipes_for_a_single_device_have_one(
    name: str, head: str, devices: int, tmp_path: Path
) -> None:
    """They became eight ranks of zero3, without a word."""
    path = tmp_path / name
    path.write_text(head + RECIPE.format(model="llama3_1.llama3_1_8b", end=""), encoding="utf-8")
    found = import_recipe(path, "torchtune", node="dgx-h100", nodes=1)
    strategy = found.job["strategy"]
    sharding = "none" if devices == 1 else "zero3"
    assert (strategy.get("dp", 1), strategy.get("sharding", "none")) == (devices, sharding)
    assert found.job["data"]["global_batch"] == 8 * devices
    assert any("single device" in note for note in found.assumed) == (devices == 1)
    job_from_mapping(found.job)

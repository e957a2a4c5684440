"""What llm-foundry's files become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.frameworks import import_recipe

FOUNDRY = """
variables: {{length: 2048, name: {name}}}
max_seq_len: ${{variables.length}}
model: {{name: hf_causal_lm, pretrained_model_name_or_path: "${{variables.name}}", {more}}}
optimizer: {{name: {optimizer}, lr: 1.0e-4}}
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config: {{sharding_strategy: {sharding}, activation_checkpointing: true}}
callbacks: {{speed_monitor: {{window_size: 10}}}}
{end}
"""


def _foundry(tmp_path: Path, **changes: str) -> Any:
    usual = {
        "name": "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "more": "pretrained: false",
        "optimizer": "decoupled_adamw",
        "sharding": "FULL_SHARD",
        "end": "",
    }
    path = tmp_path / "foundry.yaml"
    path.write_text(FOUNDRY.format(**usual | changes))
    return import_recipe(path, "llm-foundry", node="dgx-h100")


def test_llm_foundry_says_model_batch_and_sharding(tmp_path: Path) -> None:
    """References are filled in, and a tuned model has the sizes of its base."""
    found = _foundry(tmp_path, sharding="SHARD_GRAD_OP")
    assert found.not_understood == ()
    assert found.job["model"] == "llama-3.1-8b"
    assert found.job["data"] == {"sequence_length": 2048, "global_batch": 64}
    assert found.job["strategy"] == {
        "dp": 16,
        "micro_batch": 4,
        "sharding": "zero3",
        "recompute": "full",
        "reshard_after_forward": False,
        "offload": {},
    }
    assert any("has the sizes of llama-3.1-8b" in note for note in found.assumed)


def test_llm_foundry_offloads_activations_of_all_layers(tmp_path: Path) -> None:
    """The job was refused, which has their number."""
    found = _foundry(tmp_path, sharding="FULL_SHARD, activation_cpu_offload: true")
    activations = found.job["strategy"]["offload"]["activations"]
    assert (activations["layers"], activations["to"]) == (32, "host")


def test_llm_foundry_says_its_batches(tmp_path: Path) -> None:
    """Epochs are of a number of samples that a file does not say."""
    words = ("4800ba", f"{64 * 2048 * 10}tok", "650sp", "3ep", "-5ba")
    found = [_foundry(tmp_path, end=f"max_duration: {word}") for word in words]
    steps = [each.job.get("training", {}).get("steps") for each in found]
    noted = [any("max_duration" in note for note in each.assumed) for each in found]

    assert steps == [4800, 10, 11, None, None]
    assert noted == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("EleutherAI/gpt-neo-125M", "gpt-neo-125m"),
        ("EleutherAI/gpt-neo-1.3B", "gpt-neo-1.3b"),
        ("EleutherAI/gpt-neo-2.7B", "gpt-neo-2.7b"),
        ("databricks/dbrx-instruct", "dbrx"),
    ],
)
def test_llm_foundry_finds_models_of_its_recipes(
    tmp_path: Path, repository: str, name: str
) -> None:
    """Its recipes name repositories, with capitals and of tuned versions."""
    assert _foundry(tmp_path, name=repository).job["model"] == name


def test_llm_foundry_changes_keys_of_a_model(tmp_path: Path) -> None:
    """A longer table of positions makes another model than that of the catalog."""
    longer = "config_overrides: {n_positions: 4096}"
    adapted = _foundry(tmp_path, name="mistral-7b", more="peft_config: {r: 4}")
    assert adapted.job["model"]["lora"] == {"rank": 4, "targets": ["q_proj", "v_proj"]}
    found = _foundry(tmp_path, name="gpt2", more=longer)
    assert found.job["model"]["transformer"]["max_positions"] == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": "run_name: ${variables.nothing}"}, "names ${variables.nothing}, which the file"),
        ({"end": "a: ${b}\nb: ${a}"}, "references lead in a circle"),
        (
            {"optimizer": "shampoo"},
            "optimizer.name: found 'shampoo', expected one of decoupled_adamw",
        ),
        (
            {"name": "gpt2", "more": "peft_config: {target_modules: [x]}"},
            "which is no linear layer",
        ),
        ({"end": "model: {name: my_model}"}, "model"),
    ],
)
def test_llm_foundry_is_refused_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    """References to nothing, and names that no one knows."""
    with pytest.raises(JobError) as caught:
        _foundry(tmp_path, **changes)
    assert message in str(caught.value)

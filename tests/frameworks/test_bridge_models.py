"""Models that recipes of Megatron-Bridge name: hybrids, their further predictions, adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree import job_from_mapping, simulate
from wattree.capture import catalog_entry, config_shape, load_model
from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.frameworks import export_recipe, import_recipe
from wattree.frameworks.megatron_model import model_misfits
from wattree.job.written import yaml_text
from wattree.lowering.block import compile_model
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

PREDICTING = {"name": "nemotron-3-super", "arguments": {"predictions": 2}}


def job_of(folder: Path, recipe: str, **keys: object) -> dict[str, Any]:
    """Return the job that a file of overrides of a recipe describes, for 64 GPUs."""
    path = folder / "recipe.yaml"
    path.write_text(yaml_text({"recipe": recipe, **keys}), encoding="utf-8")
    found = import_recipe(path, "megatron-bridge", node="dgx-b200", nodes=8)
    assert found.not_understood == ()
    return dict(found.job)


@pytest.mark.parametrize(
    ("recipe", "model", "expected"),
    [
        ("nemotron_3_nano_pretrain_config", {}, "nemotron-3-nano"),
        ("nemotronh_56b_pretrain_config", {}, "nemotron-h-56b"),
        ("kimi_k2_pretrain_config", {}, "kimi-k2"),
        # The recipe trains two modules of multi-token prediction, unless a file says otherwise.
        ("nemotron_3_super_pretrain_config", {}, PREDICTING),
        ("nemotron_3_super_pretrain_config", {"mtp_num_layers": None}, "nemotron-3-super"),
        (
            "nemotron_3_nano_pretrain_config",
            {"mtp_num_layers": 1},
            {"name": "nemotron-3-nano", "arguments": {"predictions": 1}},
        ),
    ],
)
def test_a_recipe_names_its_model(
    recipe: str, model: dict[str, Any], expected: object, tmp_path: Path
) -> None:
    """The job is that of the model, with what the recipe adds to it."""
    sizes = {"expert_model_parallel_size": 8} if "56b" not in recipe else {}
    job = job_of(tmp_path, recipe, model={"seq_length": 8192, **sizes, **model})

    assert job["model"] == expected


def test_a_recipe_of_a_hybrid_is_simulated(tmp_path: Path) -> None:
    """All of the way: two tensor ranks, experts over all of them, further predictions."""
    model = {
        "tensor_model_parallel_size": 2,
        "expert_model_parallel_size": 64,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": True,
        "seq_length": 8192,
    }
    train = {"micro_batch_size": 1, "global_batch_size": 512}
    job = job_of(tmp_path, "nemotron_3_super_pretrain_config", model=model, train=train)

    result = simulate(job_from_mapping(job, source="test")).result

    # Megatron-Bridge's model verification card: 559.39 TFLOP/s on 64 GPUs, 9.926 s per step. It
    # counts half of the scores of attention, a tenth of the work here, and other sums of the scan.
    published = 559.39e12 * 64 * 9.92635
    assert result.model_flop_per_step == pytest.approx(published, rel=0.1)


def test_adapters_are_those_of_the_file(tmp_path: Path) -> None:
    """Linear layers of Megatron join what the transformers library has apart."""
    peft = {"dim": 16, "target_modules": ["linear_qkv", "linear_fc1"], "alpha": 32}
    job = job_of(tmp_path, "llama3_70b_peft_config", model={"seq_length": 4096}, peft=peft)

    assert job["model"] == {
        "name": "llama-3-70b",
        "lora": {"rank": 16, "targets": ["attention.qkv", "mlp.up"]},
    }


def test_a_recipe_of_adapters_has_the_usual_ones(tmp_path: Path) -> None:
    """A file that leaves them to its recipe has those of `LoRA` in Megatron-Bridge."""
    job = job_of(tmp_path, "llama3_70b_peft_config", model={"seq_length": 4096})

    assert job["model"]["lora"] == {
        "rank": 32,
        "targets": ["attention.qkv", "attention.out", "mlp.up", "mlp.down"],
    }


@pytest.mark.parametrize(
    ("recipe", "targets"),
    [
        (
            "qwen3_30b_a3b_peft_config",
            ["attention.qkv", "attention.out", "moe.experts.up", "moe.experts.down"],
        ),
        (
            "deepseek_v3_peft_config",
            [
                *("attention.out", "mlp.up", "moe.experts.up", "moe.shared.up"),
                *("mlp.down", "moe.experts.down", "moe.shared.down"),
            ],
        ),
    ],
)
def test_the_usual_adapters_are_of_the_layers_that_a_model_has(
    recipe: str, targets: list[str], tmp_path: Path
) -> None:
    """Of a mixture its experts; of latent attention only the projection back has such a name."""
    job = job_of(tmp_path, recipe, model={"seq_length": 4096})

    assert job["model"]["lora"]["targets"] == targets


@pytest.mark.parametrize("predictions", [0, 1, 2])
def test_further_predictions_come_back_from_an_export(predictions: int, tmp_path: Path) -> None:
    """Its recipe trains two, whatever the job has."""
    model: object = "nemotron-3-super"
    if predictions:
        model = {"name": model, "arguments": {"predictions": predictions}}
    job = {
        "model": model,
        "data": {"sequence_length": 4096, "global_batch": 512},
        "cluster": {"node": "dgx-b200", "nodes": 8},
        "strategy": {"sharding": "zero1", "ep": 64},
        "software": "megatron-core",
    }
    export_recipe(job_from_mapping(job, source="test"), "megatron-bridge", tmp_path / "out")

    (path,) = (tmp_path / "out").glob("*.yaml")
    given = {"recipe": "nemotron_3_super_pretrain_config", **read_yaml(path)}
    (tmp_path / "back.yaml").write_text(yaml_text(given), encoding="utf-8")
    back = import_recipe(tmp_path / "back.yaml", "megatron-bridge", node="dgx-b200", nodes=8)
    assert back.job["model"] == model


def test_adapters_of_unknown_layers_are_refused(tmp_path: Path) -> None:
    """An adapter that is left out would be a cheaper job."""
    with pytest.raises(JobError, match=r"peft.target_modules: found 'linear_q', expected one or"):
        job_of(tmp_path, "llama3_70b_peft_config", peft={"target_modules": ["linear_q"]})


@pytest.mark.parametrize(
    ("modules", "recompute"),
    [
        (["core_attn"], "selective"),
        (["moe", "layernorm", "core_attn"], "modules_core_attn+moe+layernorm"),
        (["moe_act", "mhc"], "modules_moe_act"),
        (["mhc"], "none"),
    ],
)
def test_recomputed_modules_are_those_of_the_file(
    modules: list[str], recompute: str, tmp_path: Path
) -> None:
    """Whole layers of experts may be computed again: a quarter of a step is not left out."""
    model = {"seq_length": 8192, "expert_model_parallel_size": 8}
    model |= {"recompute_granularity": "selective", "recompute_modules": modules}
    job = job_of(tmp_path, "nemotron_3_nano_pretrain_config", model=model)

    assert job["strategy"].get("recompute", "none") == recompute


def test_modules_are_recomputed_from_their_inputs() -> None:
    """All of a module but what adds its result to the stream, and nothing else."""
    graph = load_model("nemotron-3-nano")
    options = StrategyOptions(recompute="modules_core_attn+moe_act+shared_experts")
    programs = compile_model(graph, tree_of(options, graph), frozenset()).programs
    found = {each.path for program in programs for each in program.recomputation}

    assert found == {
        *("attention.core", "moe.experts.activation"),
        *(f"moe.shared.{part}" for part in ("up", "activation", "down")),
    }


@pytest.mark.parametrize("name", ["gpt2", "gpt3-175b", "phi-4", "nemotron-4-340b"])
def test_how_the_library_writes_a_model_is_no_misfit_of_megatron(name: str) -> None:
    """Its joint matmuls and rotations are its own; the sizes of the model are all there."""
    shape = config_shape(catalog_entry(name).config or {}, name)

    assert model_misfits(shape) == {}

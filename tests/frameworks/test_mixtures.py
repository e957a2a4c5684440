"""Exports of mixtures, latent attention and hybrids: what starts, and what was predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.job import Job, job_from_mapping
from wattree.predict import check_strategy, setting_of


def job_of(model: object, **keys: Any) -> Job:
    """Return a job of a model on nodes of eight H100."""
    nodes = keys.pop("nodes", 2)
    job = {
        "model": model,
        "data": {"sequence_length": 4096, "global_batch": 256},
        "cluster": {"node": "dgx-h100", "nodes": nodes},
        "software": "megatron-core",
        **keys,
    }
    return job_from_mapping(job, source="test")


def files_of(framework: str, model: object, **keys: Any) -> dict[str, str]:
    """Return the files of a job of `job_of`."""
    return recipe_files(FRAMEWORKS[framework], concrete_job(job_of(model, **keys)))[0]


def overrides(model: object, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return the overrides of a recipe of Megatron-Bridge."""
    path = folder / "overrides.yaml"
    path.write_text(files_of("megatron-bridge", model, **keys)[path.name], encoding="utf-8")
    return dict(read_yaml(path))


V3 = {"pp": 2, "ep": 8, "tp": 1, "recompute": "full"}


def test_a_recipe_trains_no_more_than_was_predicted(tmp_path: Path) -> None:
    """That of DeepSeek-V3 has a module of multi-token prediction and moments of 16 bits."""
    found = overrides("deepseek-v3", tmp_path, strategy=V3)
    further = {"name": "deepseek-v3", "arguments": {"predictions": 1}}
    both = overrides(further, tmp_path, strategy=V3, traits={"second_moment_bytes": 2})

    assert found["model"]["mtp_num_layers"] is None
    assert found["optimizer"]["use_precision_aware_optimizer"] is False
    assert found["optimizer"]["exp_avg_dtype"] == "torch.float32"
    assert both["model"]["mtp_num_layers"] == 1
    assert both["model"]["pipeline_model_parallel_layout"].endswith("mL")
    assert both["optimizer"]["exp_avg_sq_dtype"] == "torch.bfloat16"


def test_layers_of_latent_attention_hide_no_traffic_of_tensor_ranks(tmp_path: Path) -> None:
    """Transformer Engine has no buffers for their projections."""
    strategy = {"tp": 2, "ep": 8, "recompute": "full"}

    assert (
        overrides("deepseek-v2", tmp_path, strategy=strategy)["model"]["tp_comm_overlap"] is False
    )
    with pytest.raises(JobError, match="overlap_tensor: true is not possible with latent"):
        files_of("megatron-lm", "deepseek-v2", strategy={**strategy, "overlap_tensor": True})
    stated = job_of("deepseek-v2", strategy={**strategy, "overlap_tensor": True})
    assert "strategy.overlap_tensor: true is not offered" in "".join(check_strategy(stated))
    # Strategies that `plan` tries are predicted like the job that it writes of one.
    for tried in (strategy, "auto"):
        setting = setting_of(job_of("deepseek-v2", strategy=tried), load_calibration())
        assert setting.software.overlap_tensor is False
        assert "no buffers" in "".join(setting.job.assumed)


def test_hybrids_have_equal_stages_without_chunks(tmp_path: Path) -> None:
    """Megatron-Core's Mamba models have neither virtual stages nor a layout."""
    found = overrides("nemotron-h-56b", tmp_path, nodes=4, strategy={"tp": 4, "pp": 2})

    assert found["model"]["virtual_pipeline_model_parallel_size"] is None
    assert found["model"]["pipeline_model_parallel_layout"] is None
    lacking = "pp 4 with 118 layers in 4 unequal chunks is not offered by"
    with pytest.raises(JobError, match=lacking):
        files_of("megatron-bridge", "nemotron-h-56b", nodes=4, strategy={"tp": 4, "pp": 4})
    job = job_of("nemotron-h-56b", nodes=4, strategy={"tp": 4, "pp": 4})
    assert lacking in "".join(check_strategy(job))


def test_routers_and_moments_come_back_from_flags(tmp_path: Path) -> None:
    """Megatron's own defaults are a softmax without groups, bias and balance."""
    traits = {"first_moment_bytes": 2.0, "second_moment_bytes": 4.0}
    files = files_of("megatron-lm", "kimi-k2", strategy=V3, nodes=64, traits=traits)
    path = tmp_path / "launch.sh"
    path.write_text(files["launch.sh"], encoding="utf-8")

    for flag in ("score-function sigmoid", "enable-expert-bias", "topk-scaling-factor 2.827"):
        assert f"--moe-router-{flag}" in files["launch.sh"]
    assert (
        "--moe-router-num-groups 8"
        in files_of("megatron-lm", "deepseek-v3", strategy=V3)["launch.sh"]
    )
    back = import_recipe(path, "megatron-lm", node="dgx-h100", nodes=64)
    assert back.job["model"] == "kimi-k2"
    assert traits.items() <= back.job["traits"].items()


def test_graphs_of_routers_are_of_models_that_have_them() -> None:
    """Megatron-Core captures whole layers where the scope is empty."""
    keys = {"strategy": {"preset": "zero1"}, "traits": {"cuda_graphs": "router"}}
    dense, routed = (
        files_of("megatron-lm", name, **keys)["launch.sh"]
        for name in ("llama-3.1-8b", "qwen3-30b-a3b")
    )

    assert "cuda-graph" not in dense
    assert "--cuda-graph-scope moe_router moe_preprocess" in routed


def test_kernels_of_tpus_are_left_out_on_gpus() -> None:
    """Pallas interprets `megablox` there."""
    keys = {"software": "maxtext", "strategy": {"fsdp": 16, "sharding": "zero3"}}

    assert "megablox: false" in files_of("maxtext", "deepseek-v3", **keys)["maxtext.yml"]


def test_no_rank_makes_a_model_that_zero3_shards() -> None:
    """Eight ranks of 405e9 parameters are more than a node's host memory."""
    strategy = {"dp": 128, "sharding": "zero3", "recompute": "full"}
    found = {
        name: files_of(name, "llama-3.1-405b", software=name, strategy=strategy, nodes=16)
        for name in ("deepspeed", "accelerate")
    }

    assert "HfDeepSpeedConfig(SETTINGS)" in found["deepspeed"]["train.py"]
    assert "Host memory" not in found["deepspeed"]["README.md"]
    assert "Host memory: each of 8 ranks" in found["accelerate"]["README.md"]


@pytest.mark.parametrize(
    ("framework", "model", "file"),
    [
        ("megatron-bridge", "deepseek-v3", "overrides.yaml"),
        ("megatron-lm", "glm-4.5", "launch.sh"),
    ],
)
def test_further_predictions_come_back(
    framework: str, model: str, file: str, tmp_path: Path
) -> None:
    """They are part of the model, and of its time and memory."""
    further = {"name": model, "arguments": {"predictions": 1}}
    text = files_of(framework, further, strategy={**V3, "pp": 1}, nodes=8)[file]
    if framework == "megatron-bridge":
        text = f"recipe: deepseek_v3_pretrain_config\n{text}"
    (tmp_path / file).write_text(text, encoding="utf-8")

    back = import_recipe(tmp_path / file, framework, node="dgx-h100", nodes=8)
    assert back.job["model"] == further


def test_megatron_lm_predicts_further_tokens_with_plain_rotary_positions_alone() -> None:
    """`validate_args`, which a launch would fail in."""
    further = {"name": "gpt2", "arguments": {"predictions": 1}}
    with pytest.raises(JobError, match="predictions: found --position-embedding-type learned"):
        files_of("megatron-lm", further, strategy={"dp": 16})


def test_groups_of_experts_come_back_from_maxtext(tmp_path: Path) -> None:
    """Its own DeepSeek-V3 has none."""
    strategy = {"fsdp": 256, "sharding": "zero3", "recompute": "full"}
    keys: dict[str, Any] = {"software": "maxtext", "strategy": strategy, "nodes": 32}
    path = tmp_path / "maxtext.yml"
    path.write_text(files_of("maxtext", "deepseek-v3", **keys)[path.name], encoding="utf-8")

    back = import_recipe(path, "maxtext", node="dgx-h100", nodes=32)
    assert back.job["model"] == "deepseek-v3"
    assert not any("not understood" in note for note in (*back.assumed, *back.not_understood))

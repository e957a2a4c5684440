"""Published recipes: facts by column (`published/*.yaml`) → a file of the framework → a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from wattree import job_from_mapping
from wattree.files import read_yaml
from wattree.frameworks import import_recipe
from wattree.frameworks.imports import ImportedRecipe
from wattree.frameworks.toml_text import toml_text
from wattree.hardware import load_node
from wattree.job import Job
from wattree.job.written import yaml_text

_FOLDER: Final = Path(__file__).with_name("published")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeJob:
    """A published recipe as a job, with its published speed.

    Attributes:
        tokens: Of a step, per device.
        measured_s: The step. [s]
        not_understood: Settings that no one knows the meaning of.
    """

    job: Job
    tokens: float
    measured_s: float
    not_understood: tuple[str, ...]


def recipes(framework: str) -> list[dict[str, Any]]:
    """Return the published recipes of a framework, each as column → value."""
    table = read_yaml(_FOLDER / f"{framework}.yaml")
    found = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    for row in found:
        words = row.pop("options", ())
        row["also"] = {
            key: value for word in words for key, value in table["options"][word].items()
        }
    return found


def imported(framework: str, row: Mapping[str, Any], folder: Path) -> ImportedRecipe:
    """Return the job of a recipe, by way of a file in `folder`."""
    suffix = ".toml" if framework == "torchtitan" else ".yaml"
    path = folder / f"recipe{suffix}"
    text = toml_text if framework == "torchtitan" else yaml_text
    path.write_text(text(FRAMEWORKS[framework](row)), encoding="utf-8")
    per_node = load_node(row["node"]).devices
    recipe = import_recipe(path, framework, node=row["node"], nodes=row["devices"] // per_node)
    # Files do not say which release they are for.
    released = {"released": row["date"]} if "date" in row else {}
    return replace(recipe, job={**recipe.job, **released})


def recipe_job(framework: str, row: Mapping[str, Any], folder: Path) -> RecipeJob:
    """Return the job and the published step time of a recipe.

    Raises:
        WattreeError: The recipe is refused.
    """
    recipe = imported(framework, row, folder)
    job = job_from_mapping(recipe.job, source=recipe.source)
    tokens = job.data.global_batch * job.data.sequence_length / job.cluster.devices
    return RecipeJob(
        job=job,
        tokens=tokens,
        measured_s=tokens / row["tokens"],
        not_understood=recipe.not_understood,
    )


def _torchtitan(row: Mapping[str, Any]) -> dict[str, Any]:
    quantized = {
        "enable_fsdp_float8_all_gather": row["float8"] == "tensorwise",
        "recipe_name": row["float8"] or "tensorwise",
    }
    parallelism = {
        "tensor_parallel_degree": row["tp"],
        "context_parallel_degree": row["cp"],
        "pipeline_parallel_degree": row["pp"],
        "enable_async_tensor_parallel": row["async_tp"],
    }
    if row["pp"] > 1:
        parallelism["pipeline_parallel_schedule"] = row["schedule"]
        parallelism["pipeline_parallel_microbatch_size"] = row["pp_batch"]
    return {
        "model": {
            "name": "llama3",
            "flavor": row["flavor"],
            "converters": ["quantize.linear.float8"] if row["float8"] else [],
        },
        "training": {"local_batch_size": row["local_batch"], "seq_len": row["seq"]},
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": row["checkpointing"], "selective_ac_option": "op"},
        "compile": {"enable": row["compile"]},
        "quantize.linear.float8": quantized,
    }


def _megatron_bridge(row: Mapping[str, Any]) -> dict[str, Any]:
    degrees = {"tensor": "tp", "pipeline": "pp", "virtual_pipeline": "vp", "expert": "ep"}
    whole: dict[str, Any] = {
        "recipe": row["recipe"],
        "mixed_precision": row["precision"],
        "model": {
            **{f"{kind}_model_parallel_size": row[key] for kind, key in degrees.items()},
            "context_parallel_size": row["cp"],
            "expert_tensor_parallel_size": 1,
            "sequence_parallel": row["tp"] > 1,
            "seq_length": row["seq"],
        },
        "train": {"micro_batch_size": row["mbs"], "global_batch_size": row["gbs"]},
    }
    if row["fsdp"]:
        whole["ddp"] = {"use_megatron_fsdp": True}
    for key, value in row["also"].items():
        group, _, name = key.partition(".")
        whole.setdefault(group, {})[name] = value
    return whole


def _llm_foundry(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "variables": {"length": row["seq"]},
        "max_seq_len": "${variables.length}",
        "model": {
            "name": "mpt_causal_lm",
            "d_model": row["hidden"],
            "n_layers": row["layers"],
            "n_heads": row["heads"],
            "no_bias": True,
            "max_seq_len": "${variables.length}",
            "vocab_size": 50368,
            "attn_config": {"attn_impl": row["attention"]},
        },
        "optimizer": {"name": "decoupled_adamw", "lr": 1e-4},
        "global_train_batch_size": row["gbs"],
        "device_train_microbatch_size": row["mbs"],
        "precision": row["precision"],
        "fsdp_config": {
            "sharding_strategy": row["sharding"],
            "mixed_precision": row["mode"],
            "activation_checkpointing": row["checkpointing"],
            "activation_checkpointing_reentrant": False,
        },
    }


#: Framework → what its file says of a recipe.
FRAMEWORKS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "torchtitan": _torchtitan,
    "megatron-bridge": _megatron_bridge,
    "llm-foundry": _llm_foundry,
}

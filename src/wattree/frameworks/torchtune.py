"""torchtune in: the YAML of its recipes → a job, by the file `torchtune.yaml`.

Only read: the project has ended, and its recipes are published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from wattree.capture.catalog_entries import is_model_name
from wattree.cost.families import SOFTWARE
from wattree.files import read_text, read_yaml
from wattree.frameworks.found import Found, completed
from wattree.frameworks.framework import FRAMEWORKS, Framework, Imported
from wattree.frameworks.models import layers_of
from wattree.frameworks.peft import adapted_operators
from wattree.frameworks.references import filled_in
from wattree.frameworks.settings import Settings
from wattree.job.problems import Problems

_FACTS: Final[Mapping[str, Any]] = read_yaml(Path(__file__).with_name("torchtune.yaml"))
#: A builder of a model: with adapters, these on weights in 4 bits.
_ADAPTED: Final = re.compile(r"^(q?)lora_")
#: A command in the comments of a configuration, and what is put into its settings then.
_ALONE: Final = re.compile(r"^#.*\btune run \w+_single_device\b", re.MULTILINE)
_ONE: Final = "single_device"
_TUNED: Final = re.compile(r"_(?:instruct|base)$")


def parse(path: Path) -> Mapping[str, Any]:
    """Return the settings of a file, with what others say filled in.

    Whether its recipe runs on one device is in its name, or in the command in its comments alone.

    Raises:
        JobError: One names a setting that the file does not have.
    """
    found = filled_in(read_yaml(path), path)
    alone = path.stem.endswith("single_device") or _ALONE.search(read_text(path))
    return {**found, _ONE: True} if alone else found


def read(settings: Settings) -> Imported:
    """Return the settings of the YAML file."""
    for key in ("model._component_", "optimizer._component_"):
        if key not in settings:
            settings.problem(key, "is missing: this is no training by a recipe of torchtune")
    loss = settings.text("loss._component_")
    found = [key for key in _FACTS["others"] if key in settings or settings.value(key)]
    found += ["loss"] if ".rlhf." in loss else []
    if found:
        why = "found further answers, models or formats, expected training on the tokens of samples"
        settings.problem(", ".join(found), why)
    settings.check()
    model = _model(settings)
    settings.check()
    rate = settings.value("optimizer.lr")
    kind = str(settings.value("optimizer._component_", "torch.optim.AdamW")).rpartition(".")[2]
    steps = settings.value("max_steps_per_epoch")
    precision, traits = _precision(settings)
    if alone := settings.flag(_ONE):
        settings.assume("one device: its name or its comments are of a recipe for a single device")
    done = completed(
        Found(
            model=model,
            sequence_length=settings.counted("sequence_length", "tokenizer.max_seq_len"),
            micro_batch=_stated(settings, "batch_size"),
            accumulation=_stated(settings, "gradient_accumulation_steps"),
            precision=precision,
            optimizer=_FACTS["optimizers"].get(kind),
            learning_rate=rate if isinstance(rate, float) else None,
            steps=steps if isinstance(steps, int) else None,
            compiled=settings.flag("compile"),
            devices=1 if alone else None,
            strategy=_strategy(settings, model, sharding="none" if alone else "zero3"),
            usual={"accumulation": 1},
        ),
        settings,
    )
    if kind not in _FACTS["optimizers"]:
        settings.problem("optimizer._component_", f"found {kind}, which no job has")
    if (fused := settings.flag("optimizer.fused")) is not (done.precision != "fp32"):
        traits["fused_optimizer"] = fused
    if not any(word in loss for word in ("Chunked", "Linear")):
        traits["loss_bytes_per_logit"] = SOFTWARE["pytorch"].loss_bytes_per_logit
    return replace(done, software="torchtune", traits=traits)


def _precision(settings: Settings) -> tuple[str, dict[str, Any]]:
    """Return the precision, with traits of 8 bits (torchtune/training/quantization.py)."""
    wide = settings.choice("dtype", "bf16", _FACTS["precisions"])
    name = settings.value("fp8_recipe_name")
    if not settings.flag("enable_fp8_training"):
        return wide, {}
    if wide != "bf16":
        settings.problem("enable_fp8_training", f"found with dtype {wide}, expected bf16")
    if name is None:  # `enable_fsdp_float8_all_gather`
        return "fp8", {"gather_bytes": 1.0}
    kinds = {"tensorwise": {}, "rowwise": {"row_scales": True}}
    kinds["rowwise_with_gw_hp"] = kinds["rowwise"]
    if name == "rowwise_with_gw_hp":
        settings.assume("rowwise_with_gw_hp is taken as rowwise: gradients of weights in 8 bits")
    return "fp8", settings.choice("fp8_recipe_name", "tensorwise", kinds)


def _stated(settings: Settings, key: str) -> int | None:
    return settings.count(key, 1) if key in settings else None


def _model(settings: Settings) -> str | dict[str, Any]:
    """Return the model of a builder, with its adapters."""
    package, _, builder = settings.text("model._component_").rpartition(".")
    package, adapted = package.rpartition(".")[2], _ADAPTED.match(builder)
    size = _TUNED.sub("", _ADAPTED.sub("", builder)).removeprefix(package).strip("_")
    first = _FACTS["models"].get(package, package)
    names = [name for name in (f"{first}-{size.replace('_', '.')}", first) if is_model_name(name)]
    name = settings.given.model or next(iter(names), "")
    if not name:
        settings.problem("model._component_", f"found {builder}, which is unknown; add --model")
    elif settings.given.model is None:
        settings.assume(f"model {name}, as {builder}")
    if adapted is None or not isinstance(name, str):
        return name
    own: dict[str, str] = _FACTS["modules"]
    modules = settings.value("model.lora_attn_modules", [])
    targets = [own.get(str(each), str(each)) for each in modules]
    targets += _FACTS["mlp"] if settings.flag("model.apply_lora_to_mlp") else []
    problems = Problems(str(settings.path))
    lora: dict[str, Any] = {
        "rank": settings.count("model.lora_rank", 8),
        "targets": adapted_operators(targets, name, problems),
    }
    for line in problems.lines:
        settings.problem("", line)
    if adapted[1] or settings.flag("model.quantize_base"):
        lora["base"] = "nf4-double"  # `to_nf4` of torchao, whose scales are in 8 bits
    return {"name": name, "lora": lora}


def _strategy(
    settings: Settings, model: str | Mapping[str, Any], *, sharding: str
) -> dict[str, Any]:
    """Return the keys of a strategy: FSDP2, which gathers again in backward unless it is told."""
    found: dict[str, Any] = {"sharding": sharding}
    tensor, context = (settings.count(f"{axis}_parallel_dim", 1) for axis in ("tensor", "context"))
    replicas = settings.count("data_parallel_replicate_dim", 1)
    shard = settings.count("data_parallel_shard_dim", -1, least=-1)
    if replicas > 1:
        shard = shard if shard > 0 else settings.replicas(tensor * context * replicas)
        found = {"sharding": "hybrid", "dp": replicas, "fsdp": shard}
    if tensor > 1:
        # Norms are split over positions (`_get_base_llama_tp_training_plan`).
        found |= {"tp": tensor, "sequence_parallel": True}
    if context > 1:
        rotates = {"allgather": "gather", "alltoall": "ring"}
        key = "context_parallel_rotate_method"
        found |= {"cp": context, "context": settings.choice(key, "allgather", rotates)}
    if not settings.flag("fsdp_reshard_after_forward", True):
        found["reshard_after_forward"] = False
    offload: dict[str, Any] = {}
    if settings.flag("enable_activation_offloading"):
        offload["activations"] = {"layers": layers_of(model), "to": "host"}
    found["recompute"] = _recomputation(settings)
    if settings.flag("fsdp_cpu_offload"):
        offload |= {"optimizer": "host", "parameters": "host"}
    if offload:
        found["offload"] = offload
    if settings.flag("optimizer_in_bwd"):
        found["overlap_optimizer"] = True
    return found


def _recomputation(settings: Settings) -> str:
    """Return what is recomputed: of the two settings each counts where the other is off."""
    whole, every = settings.flag("enable_activation_checkpointing"), settings.count("ac_option", 1)
    kinds = {"none": "none", "full": "full", "selective": f"block_{every}"}
    if settings.value("ac_mode") is None:
        return "full" if whole else "none"
    chosen = settings.choice("ac_mode", "none", kinds)
    return "none" if whole else chosen


FRAMEWORKS.register("torchtune")(
    Framework(
        name="torchtune",
        title="torchtune",
        versions="torchtune 0.7",
        source="github:meta-pytorch/torchtune recipes",
        software=("pytorch",),
        precisions=tuple(_FACTS["precisions"]),
        optimizers=("adamw", "adam", "sgd", "adamw8bit"),
        ignored=tuple(_FACTS["ignored"]),
        left_out=tuple(_FACTS["left_out"]),
        programs=("torchtune",),
        write=None,
        parse=parse,
        read=read,
    )
)

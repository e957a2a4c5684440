"""Megatron-Bridge: overrides of a recipe in YAML, and the script that applies them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.capture import build_transformer
from wattree.dotted import dotted
from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Imported, Written
from wattree.frameworks.launch import hosts_to_fill_in, script, torchrun
from wattree.frameworks.megatron import (
    FACTS,
    IGNORED,
    KNOBS,
    OPTIMIZERS,
    TRAITS,
    connections,
    muon_misfits,
    predictions_of,
    strategy_arguments,
    strategy_misfits,
)
from wattree.frameworks.megatron_model import given_model, model_block
from wattree.frameworks.megatron_read import length_of, optimizer_of, read_data, read_strategy
from wattree.frameworks.megatron_read_traits import gradient_traits, moment_traits, read_traits
from wattree.frameworks.models import (
    catalog_vocabularies,
    named_by_sizes,
    shape_of,
    with_predictions,
)
from wattree.frameworks.references import filled_in
from wattree.frameworks.settings import Settings
from wattree.job.problems import shown
from wattree.job.written import yaml_text

_FILE: Final = "overrides.yaml"
_SCRIPT: Final = "train.py"
_RECIPES: Final[dict[str, str]] = FACTS["recipes"]
#: Key of the configuration → argument. Of several keys the first is written.
_KEYS: Final[dict[str, str]] = {**FACTS["bridge"], **FACTS["bridge_sizes"]}
_PRECISIONS: Final[dict[str, str]] = FACTS["mixed_precision"]
#: Sizes by which a model is recognized: argument → field of its shape.
_SIZES: Final = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "ffn_hidden_size": "ffn",
    "num_experts": "experts",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "expert_ffn",
}
_OF_EXPERTS: Final = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size")
#: Recipes of the same model: longer samples, fine-tuning, more nodes.
_VARIANT: Final = re.compile(r"(.+?)(?:_\d+k)?_(?:pretrain|sft|peft)_config(?:_\w+)?")
#: Rank of adapters where a file has none (src/megatron/bridge/peft/lora.py), and their layers.
_USUAL_RANK: Final = 32
_USUAL_TARGETS: Final = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_TARGETS: Final[dict[str, list[str]]] = FACTS["lora_targets"]
#: Sizes without which there is no model.
_NEEDED: Final = ("num_layers", "hidden_size", "num_attention_heads")
#: Key → argument that says the opposite.
_OPPOSITES: Final = {
    "add_bias_linear": "disable_bias_linear",
    "share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
}
#: Sizes that tell the model of one recipe from others.
_TELLING: Final = {"layers", "hidden", "heads", "ffn"}
#: Megatron-Core's defaults, where a file with sizes does not say it (transformer_config.py,
#: models/gpt_provider.py).
_CORE: Final = {
    "swiglu": False,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "disable_bias_linear": False,
    "untie_embeddings_and_output_weights": False,
}
#: Tokens of a sample likewise.
_USUAL_LENGTH: Final = 1024
#: Of most recipes.
_RECIPE_LENGTH: Final = 8192
#: What recipes have where a file of overrides says nothing.
_DEFAULTS: Final = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "sequence_parallel": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "recipe_cuts": True,
}
#: Of a gradient in 16 bits. [B]
_HALF_BYTES: Final = 2.0


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with Megatron-Bridge."""
    found = strategy_misfits(concrete) | muon_misfits(concrete, ["overlap_parameters"])
    recipe = _RECIPES.get(concrete.model_name)
    if recipe is None or concrete.shape is None:
        found["model"] = (
            f"found {concrete.model_name or concrete.model.name}, expected a model that "
            f"Megatron-Bridge has a recipe of: {', '.join(_RECIPES)}"
        )
        return Written(misfits=found)
    if found:
        return Written(misfits=found)
    text = yaml_text(_nested(_overrides(concrete)), head="Written by `wattree export`.")
    return Written(
        files={_FILE: text, _SCRIPT: script("megatron_bridge").format(recipe=recipe, file=_FILE)},
        launch='here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        f"export CUDA_DEVICE_MAX_CONNECTIONS={connections(concrete)}\n"
        + torchrun(concrete, f'"$here/{_SCRIPT}" "$@"'),
        fill_in=(
            f"`dataset` and `tokenizer` in {_FILE}: the recipe's are mock data and the model's own "
            "tokenizer.",
            f"`checkpoint.save` and `checkpoint.load` in {_FILE}: folders of checkpoints.",
            f"`scheduler` in {_FILE}: how the learning rate changes over training.",
            *hosts_to_fill_in(concrete),
        ),
        assumed=(f"all that {_FILE} does not say is as in the recipe {recipe}",),
    )


def _overrides(concrete: ConcreteJob) -> dict[str, Any]:
    """Return dotted key → value."""
    shape, training = concrete.shape, concrete.job.training
    assert shape is not None
    arguments = strategy_arguments(concrete)
    arguments |= {
        name: value
        for name, field in _SIZES.items()
        if (value := getattr(shape, field)) and (shape.experts or name not in _OF_EXPERTS)
    }
    words = {meaning: word for word, meaning in reversed(_PRECISIONS.items())}
    arguments["mixed_precision"] = words.get(concrete.job.precision, "bf16_mixed")
    arguments["grad_reduce_in_fp32"] = concrete.software.reduce_bytes > _HALF_BYTES
    arguments["train_iters"] = training.steps if training.steps > 1 else 100
    found: dict[str, Any] = {}
    for key, argument in _KEYS.items():
        if argument in arguments and argument not in found.values():
            found[key] = argument
    found = {key: arguments[argument] for key, argument in found.items()}
    # Recipes have a pipeline of their own: what this job does not have is undone.
    for key in ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"):
        found.setdefault(f"model.{key}", None)
    for key in ("granularity", "method", "num_layers", "modules"):
        found.setdefault(f"model.recompute_{key}", None)
    # Some recipes have modules of multi-token prediction.
    found["model.mtp_num_layers"] = predictions_of(concrete) or None
    # Recipes of some mixtures have narrow moments, which need this optimizer.
    found.setdefault("optimizer.use_precision_aware_optimizer", False)
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype"):
        word = arguments.get(name, "fp32")
        found[f"optimizer.{name}"] = "torch.float32" if word == "fp32" else "torch.bfloat16"
    is_narrow = (
        found["optimizer.use_precision_aware_optimizer"] and not (arguments["grad_reduce_in_fp32"])
    )
    found["optimizer.main_grads_dtype"] = "torch.bfloat16" if is_narrow else "torch.float32"
    found["dataset.sequence_length"] = concrete.job.data.sequence_length
    return found


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as groups of keys."""
    whole: dict[str, Any] = {}
    for key, value in dotted.items():
        group, _, name = key.rpartition(".")
        (whole.setdefault(group, {}) if group else whole)[name] = value
    return whole


# ---------------------------------------------------------------- and back


def parse(path: Path) -> dict[str, Any]:
    """Return a configuration with its keys as Megatron's arguments where they mean the same."""
    whole = filled_in(read_yaml(path), path)
    if not any(isinstance(value, Mapping) for value in whole.values()) and "recipe" not in whole:
        expected = "expected groups of keys such as model, train and ddp"
        raise JobError(str(path), [f"found no group of keys, {expected}"])
    found: dict[str, Any] = {}
    for key, value in dotted(whole):
        argument = _KEYS.get(key, key)
        if value is not None:
            found[argument] = value
        elif argument == "mtp_num_layers":  # none, where a recipe has some
            found[argument] = 0
    found.setdefault("optimizer", "adam")  # or else the group of that name would be its value
    return found


def read(settings: Settings) -> Imported:
    """Return the settings of a configuration of Megatron-Bridge."""
    model, layers, has_experts = given_model(settings) or _model(settings)
    settings.check()
    devices = settings.count("num_gpus", 0, least=0)
    if devices and settings.devices is None:
        settings.devices = devices
    if "sequence_parallel" not in settings and settings.count("tensor_model_parallel_size", 1) > 1:
        settings.assume("sequence_parallel: as recipes use it with tensor parallelism")
    strategy = read_strategy(settings, layers=layers, has_experts=has_experts, defaults=_DEFAULTS)
    sequence = settings.counted("sequence_length", "seq_length", usual=_RECIPE_LENGTH)
    data = read_data(settings, strategy, sequence, usual=1)
    training = length_of(settings, data["global_batch"])
    if "lr" in settings:
        training["learning_rate"] = settings.number("lr", 3e-4)
    precision = settings.choice("mixed_precision", "bf16_mixed", _PRECISIONS)
    return Imported(
        model=_adapted(settings, _predicting(settings, model)),
        data=data,
        strategy=strategy,
        precision=precision,
        optimizer=optimizer_of(settings),
        traits=read_traits(settings, has_experts=has_experts)
        | gradient_traits(settings, precision, "megatron-core")
        | moment_traits(settings),
        training=training,
    )


def _predicting(settings: Settings, model: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a model with the modules of multi-token prediction of its recipe or file."""
    is_usual = "recipe" in settings and isinstance(model, str)
    usual = FACTS["predictions"].get(model, 0) if is_usual else 0
    return with_predictions(model, settings.count("mtp_num_layers", usual, least=0))


def _adapted(settings: Settings, model: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return the model with low-rank adapters, if the recipe or the file has them."""
    is_recipe = "_peft_config" in settings.text("recipe")
    if not is_recipe and "lora_rank" not in settings and "lora_target_modules" not in settings:
        return model
    if "lora_rank" not in settings:
        settings.assume(f"peft.dim {_USUAL_RANK}: the file leaves it to its recipe")
    rank = settings.count("lora_rank", _USUAL_RANK)
    names = settings.value("lora_target_modules", list(_USUAL_TARGETS))
    names = [str(name) for name in (names if isinstance(names, list) else [names])]
    if unknown := [name for name in names if name not in _TARGETS]:
        settings.problem(
            "peft.target_modules",
            f"found '{unknown[0]}', expected one or more of {', '.join(_TARGETS)}",
        )
    shape = shape_of(model)
    blocks = build_transformer(shape).blocks.values() if shape is not None else ()
    known = {operator.path for block in blocks for operator in block.operators}
    targets = [path for name in names for path in _TARGETS.get(name, ()) if path in known]
    named = {"name": model} if isinstance(model, str) else model
    return {**named, "lora": {"rank": rank, "targets": targets}}


def _model(settings: Settings) -> tuple[str | dict[str, Any], int, bool]:
    """Return the model that a recipe is of, or of the sizes given; its layers; if with experts."""
    model = _recipe_model(settings)
    settings.check()
    shape = shape_of(model)
    assert shape is not None
    return model, shape.layers, bool(shape.experts)


def _recipe_model(settings: Settings) -> str | dict[str, Any]:
    recipe = settings.text("recipe")
    named = {name: model for model, name in _RECIPES.items()}
    if recipe:
        longer = _VARIANT.fullmatch(recipe)
        for name in (recipe, f"{longer[1]}_pretrain_config") if longer else (recipe,):
            if name in named:
                if name != recipe:
                    settings.assume(f"recipe {recipe} has the model of {name}")
                return named[name]
        settings.problem("recipe", f"found {recipe}, of which no model is known")
        return ""
    missing = [name for name in _NEEDED if name not in settings]
    if missing:
        settings.problem(
            "model",
            f"has no {' and '.join(missing)}, and the file names no recipe: add the key "
            "`recipe`, such as recipe: llama3_8b_pretrain_config",
        )
        return ""
    return _by_sizes(settings)


def _by_sizes(settings: Settings) -> str | dict[str, Any]:
    """Return the model with the sizes that are given; of a recipe if they are those of one."""
    sizes = {**_SIZES, "num_query_groups": "kv_heads"}
    given = {
        field: settings.count(name, 0, least=0) for name, field in sizes.items() if name in settings
    }
    for name, opposite in _OPPOSITES.items():
        if name in settings:
            settings.put(opposite, value=not settings.flag(name))
    settings.put("group_query_attention", value="num_query_groups" in settings)
    usual = {**_CORE, "ffn_hidden_size": 4 * settings.count("hidden_size", 1)}
    left = {name: value for name, value in usual.items() if name not in settings}
    for name, value in left.items():
        settings.put(name, value=value)
    length = settings.given.sequence_length
    block = model_block(settings, sequence=length or settings.count("seq_length", _USUAL_LENGTH))
    shapes = {model: shape for model in _RECIPES if (shape := shape_of(model)) is not None}
    alike = {
        model: shape.max_positions
        for model, shape in shapes.items()
        if given.keys() >= _TELLING
        and all(getattr(shape, field) == size for field, size in given.items())
        and ("swiglu" in left or shape.gated == block["gated"])
    }
    if alike:
        model = max(alike, key=alike.__getitem__)
        settings.assume(f"model {model}: its recipe has the sizes of the file, which names none")
        return model
    if "seq_length" not in settings and length is None:
        left["seq_length"] = _USUAL_LENGTH
        settings.put("seq_length", value=_USUAL_LENGTH)
    if left:
        words = ", ".join(f"{name} {shown(value)}" for name, value in left.items())
        settings.assume(
            f"{words}: Megatron-Core's defaults, as the file says neither these nor its recipe"
        )
    for rows in (block["vocab"],) if "vocab" in block else catalog_vocabularies():
        if isinstance(found := named_by_sizes({**block, "vocab": rows}), str):
            return found
    if "vocab" not in block:
        settings.assume("vocabulary of 32000: the file leaves it to its tokenizer")
    return {"transformer": {"vocab": 32000, **block}}


MEGATRON_BRIDGE: Final = FRAMEWORKS.register("megatron-bridge")(
    Framework(
        name="megatron-bridge",
        title="Megatron-Bridge",
        versions="Megatron-Bridge 0.3",
        source="github:NVIDIA-NeMo/Megatron-Bridge v0.3.1, src/megatron/bridge/training/config.py",
        software=("megatron-core", "megatron-lm"),
        knobs=KNOBS,
        predicts=True,
        precisions=tuple(dict.fromkeys(_PRECISIONS.values())),
        optimizers=tuple(OPTIMIZERS),
        traits=TRAITS,
        ignored=(*IGNORED, *FACTS["bridge_ignored"]),
        left_out=tuple(FACTS["left_out"]),
        write=write,
        parse=parse,
        read=read,
    )
)

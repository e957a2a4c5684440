"""Arguments of forks, above all Megatron-DeepSpeed, and of 2021, as those that mean the same now.

Sources: megatron/arguments.py of github:bigcode-project/Megatron-LM and of
github:deepspeedai/Megatron-DeepSpeed at 207b2d5, with megatron/model/transformer.py there, which
gives every `--expert-interval`-th layer experts; `MoE` of DeepSpeed 0.19.8
(deepspeed/moe/layer.py) for `--mlp-type residual`; `_configure_optimizer` of DeepSpeed 0.6.5
(deepspeed/runtime/engine.py) for bf16 with stage 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from wattree.capture.catalog_entries import is_model_name
from wattree.errors import JobError
from wattree.frameworks.megatron import FACTS
from wattree.frameworks.models import catalog_name
from wattree.frameworks.programs import as_started
from wattree.frameworks.settings import OPTIONS, Settings
from wattree.frameworks.shell_files import read_named
from wattree.frameworks.shell_flags import shell_flags, with_slurm

#: Argument of 2021 → its name since 2022.
_EARLIER: Final = {
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "checkpoint_num_layers": "recompute_num_layers",
    "distribute_checkpointed_activations": "distribute_saved_activations",
}
#: Argument → the one of Megatron-LM with its values.
_SAME: Final = {
    "ds_sequence_parallel_size": "context_parallel_size",
    "moe_expert_parallel_size": "expert_model_parallel_size",
    "cpu_optimizer": "optimizer_cpu_offload",
}
#: What to say of the defaults of a program that starts Megatron, and the model that it names.
_DEFAULTS: Final = "started_defaults"
_NAMED: Final = "named_model"
#: Experts that a token goes to, from one MoE layer to the next, and the capacity of an expert in
#: shares of its part of the tokens, where a script does not say.
_TOP_K: Final = 1
_INTERVAL: Final = 2
_CAPACITY: Final = 1.0
#: Arguments that only layers with experts depend on.
_OF_EXPERTS: Final = (
    *("expert_model_parallel_size", "topk", "expert_interval", "mlp_type"),
    *("moe_train_capacity_factor", "disable_moe_token_dropping"),
    "enable_expert_tensor_parallelism",
)


def started_flags(text: str) -> dict[str, Any]:
    """Return the flags of a script, with the defaults of the program that it starts Megatron by."""
    flags = with_slurm(shell_flags(text), text)
    found, notes = as_started(flags, text, FACTS["commands"]) if flags else (flags, ())
    if notes:
        found[_DEFAULTS] = "; ".join(notes)
    return found


def take_started(settings: Settings) -> None:
    """Take the model and the defaults of such a program."""
    if note := settings.text(_DEFAULTS):
        settings.assume(note)
    if (tuner := settings.text("tuner_type", "full")) != "full":
        settings.problem("tuner_type", f"found {tuner}, expected full: no adapters are read here")
    if (name := settings.text(_NAMED)) and settings.given.model is None:
        found = catalog_name(name, settings)
        if is_model_name(found):
            settings.given = replace(settings.given, model=found)
        else:
            settings.problem("model", f"unknown model '{name}'; {OPTIONS['model']} takes another")


def family_of(settings: Settings) -> str:
    """Return the software whose arguments a file has.

    Those that later releases lack are of 2021 and 2022, unless kernels are asked for that came
    after them.
    """
    if settings.flag("deepspeed"):
        return "megatron-deepspeed"
    is_later = any(name in settings for name in ("use_flash_attn", "use_mcore_models"))
    is_later |= settings.text("transformer_impl") == "transformer_engine"
    is_early = any(name in settings for name in FACTS["earlier"])
    return "megatron-lm-2021" if is_early and not is_later else "megatron-lm"


def as_megatron_lm(settings: Settings) -> None:
    """Replace arguments that only forks or early releases have, or whose defaults differ there."""
    if "activations_checkpoint_method" in settings:
        settings.put("recompute_granularity", value="full")
    _rename(settings, _EARLIER)
    groups = settings.pop("num_key_value_heads")
    heads = {"multihead": groups, "multiquery": 1}
    groups = settings.choice("attention_head_type", "multihead", heads)
    if groups is not None:
        settings.put("num_query_groups", value=groups)
        settings.put("group_query_attention", value=True)
    if not settings.flag("deepspeed"):
        return
    _put_stage(settings)
    if settings.flag("bf16") and not settings.count("zero_stage", 0, least=0):
        settings.put("zero_stage", value=1)
        settings.assume("sharding zero1: BF16_Optimizer, which DeepSpeed has for bf16 with stage 0")
    _rename(settings, _SAME)
    if settings.count("context_parallel_size", 1) > 1:
        settings.put("cp_comm_type", value="a2a")
    if "embedding" in settings.text("pp_partition_method"):
        for name in ("embedding", "loss"):
            settings.put(f"account_for_{name}_in_pipeline_split", value=True)
    if "train_tokens" in settings and "train_iters" not in settings:
        samples = settings.count("train_tokens", 1) // settings.count("seq_length", 1)
        settings.put("train_samples", value=max(1, samples))
    settings.value("train_tokens")
    _put_experts(settings)


def _rename(settings: Settings, names: Mapping[str, str]) -> None:
    for own, same in names.items():
        if own in settings:
            settings.put(same, value=settings.pop(own))


def _put_stage(settings: Settings) -> None:
    """Take the stage of ZeRO from DeepSpeed's JSON, which is what counts, if it can be read."""
    name = settings.value("deepspeed_config")
    if not isinstance(name, str):
        return
    try:
        config = read_named(settings.path, name, comments=True)
    except JobError as error:
        if "zero_stage" not in settings:
            kind = "zero1" if settings.flag("bf16") else "none"
            settings.assume(f"sharding {kind}: {name} may state a stage of ZeRO, but {error}")
        return
    section = config.values.get("zero_optimization", {})
    # Without a stage DeepSpeed shards nothing, whatever the flag says (`runtime/zero/config.py`).
    stage = section.get("stage", 0) if isinstance(section, Mapping) else None
    if isinstance(stage, int):
        settings.put("zero_stage", value=stage)
    for note in config.assumed:
        settings.assume(note)


def _put_experts(settings: Settings) -> None:
    """Give every n-th layer experts; one expert is none."""
    counts = set(re.findall(r"-?\d+", str(settings.value("num_experts", 1))))
    if len(counts) > 1:
        why = "expected one number: no model here has other numbers of experts from layer to layer"
        settings.problem("num_experts", f"found {', '.join(sorted(counts, key=int))}, {why}")
    if counts <= {"1"}:
        for name in ("num_experts", *_OF_EXPERTS):
            settings.pop(name)
        return
    settings.put("num_experts", value=max(counts, key=int))
    settings.put("moe_router_topk", value=settings.count("topk", _TOP_K))
    layers, every = settings.count("num_layers", 1), settings.count("expert_interval", _INTERVAL)
    pattern = f"([0]*{every - 1}+[1])*{layers // every}+[0]*{layers % every}"
    settings.put("moe_layer_freq", value=pattern)
    capacity = settings.number("moe_train_capacity_factor", _CAPACITY)
    if not settings.flag("disable_moe_token_dropping"):
        settings.put("moe_expert_capacity_factor", value=capacity)
    kinds = {"standard": False, "residual": True}
    if settings.choice("mlp_type", "standard", kinds):  # an MLP next to the experts, both weighted
        usual = 4 * settings.count("hidden_size", 1)
        width = settings.count("ffn_hidden_size", usual)
        settings.put("moe_shared_expert_intermediate_size", value=width)
        settings.put("moe_shared_expert_gate", value=True)
    tensor = settings.count("tensor_model_parallel_size", 1)
    if not settings.flag("enable_expert_tensor_parallelism") and tensor > 1:
        settings.assume("experts are split over tensor ranks, on each of which the file has them")

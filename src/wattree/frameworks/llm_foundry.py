"""llm-foundry in: the YAML of its trainer → a job. Facts are those of release 0.22.

Only read: its recipes are published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.frameworks.accelerate_read import FSDP1
from wattree.frameworks.found import Found, completed
from wattree.frameworks.framework import FRAMEWORKS, Framework, Imported
from wattree.frameworks.models import catalog_name, layers_of, named_by_sizes, with_overrides
from wattree.frameworks.peft import adapted_operators
from wattree.frameworks.references import filled_in
from wattree.frameworks.settings import Settings
from wattree.job.problems import Problems
from wattree.units import whole_number

_FACTS: Final[Mapping[str, Any]] = read_yaml(Path(__file__).with_name("llm_foundry.yaml"))
_MPT: Final = "mpt_causal_lm"


def parse(path: Path) -> Mapping[str, Any]:
    """Return the settings of a file, with what others say filled in.

    Raises:
        JobError: One names a setting that the file does not have.
    """
    values = read_yaml(path)
    if isinstance(values.get("parameters"), dict):  # of a file that starts the run on a cluster
        values = values["parameters"]
    values.pop("icl_tasks", None)
    return {key: value for key, value in filled_in(values, path).items() if key != "variables"}


def read(settings: Settings) -> Imported:
    """Return the settings of the YAML file."""
    for key in ("model", "global_train_batch_size"):
        if key not in settings:
            settings.problem(key, "is missing: this is no configuration of llm-foundry's trainer")
    settings.check()
    model = _model(settings)
    optimizer = settings.choice("optimizer.name", "decoupled_adamw", _FACTS["optimizers"])
    rate = settings.value("optimizer.lr")
    found = completed(
        Found(
            model=model,
            sequence_length=settings.counted("sequence_length", "max_seq_len"),
            global_batch=settings.count("global_train_batch_size", 1),
            micro_batch=_micro_batch(settings),
            precision=settings.choice("precision", "amp_bf16", _FACTS["precisions"]),
            optimizer=optimizer,
            learning_rate=rate if isinstance(rate, float) else None,
            steps=_steps(settings),
            compiled=True if settings.value("compile_config") is not None else None,
            strategy=_strategy(settings, model or "") | _experts(settings),
        ),
        settings,
    )
    traits = settings.choice("model.attn_config.attn_impl", "flash", _FACTS["kernels"])
    if settings.flag("fsdp_config.activation_checkpointing_reentrant", True):  # as in Composer
        traits = traits | {"early_stop": False}
    return replace(found, traits=traits)


def _steps(settings: Settings) -> int | None:
    """Return the batches of a run, which Composer counts in samples, tokens and epochs, too."""
    word = str(settings.value("max_duration", ""))
    batch = settings.count("global_train_batch_size", 1)
    tokens = batch * settings.count("max_seq_len", 2048)
    for unit, of_step in {"ba": 1, "sp": batch, "tok": tokens}.items():
        if word.endswith(unit) and (amount := whole_number(word.removesuffix(unit), digits=15)):
            return math.ceil(amount / of_step)
    if word:
        settings.assume(f"max_duration {word}: a job counts steps; training.steps sets them")
    return None


def _micro_batch(settings: Settings) -> int | None:
    key = "device_train_microbatch_size"
    if settings.value(key, "auto") == "auto":
        settings.assume("the largest micro-batch: the file leaves it to what fits (auto)")
        return None
    return settings.count(key, 1)


def _strategy(settings: Settings, model: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a strategy that follow from sharding; without it, replicas are whole."""
    if "fsdp_config" not in settings:
        return {"sharding": "none"}
    word = settings.choice(
        "fsdp_config.sharding_strategy", "FULL_SHARD", {name: name for name in FSDP1}
    )
    sharding, reshards = FSDP1[word]
    strategy: dict[str, Any] = {"sharding": sharding}
    if not reshards:
        strategy["reshard_after_forward"] = False
    recomputes = settings.flag("fsdp_config.activation_checkpointing")
    strategy["recompute"] = "full" if recomputes else "none"
    if settings.flag("fsdp_config.activation_cpu_offload"):
        strategy["offload"] = {"activations": {"layers": layers_of(model), "to": "host"}}
    if str(settings.value("fsdp_config.mixed_precision", "")).upper() == "FULL":
        settings.problem("fsdp_config.mixed_precision", "found FULL, expected PURE or DEFAULT")
    return strategy


def _experts(settings: Settings) -> dict[str, int]:
    """Return the degree of expert parallelism, of models by their sizes."""
    degree = settings.count("model.ffn_config.moe_world_size", 1)
    return {"ep": degree} if degree > 1 else {}


def _model(settings: Settings) -> str | Mapping[str, Any] | None:
    kind = settings.choice("model.name", _MPT, _FACTS["models"])
    if kind == "sizes":
        return named_by_sizes(_mpt(settings))
    name = settings.text("model.pretrained_model_name_or_path")
    if not name:
        return None
    overrides = settings.value("model.config_overrides")
    model = with_overrides(catalog_name(name, settings), overrides)
    if not (lora := _adapters(settings, model)):
        return model
    return {"name": model, **lora} if isinstance(model, str) else {**model, **lora}


def _adapters(settings: Settings, model: object) -> dict[str, Any]:
    """Return the adapters that PEFT makes of a model, as a job has them; nothing without any."""
    if not settings.value("model.peft_config"):
        return {}
    settings.choice("model.peft_config.peft_type", "LORA", {"LORA": ""})
    settings.value("model.peft_config")  # dropout, scale and bias of adapters cost nothing of note
    rank = settings.count("model.peft_config.r", 8)
    problems = Problems("")
    named = settings.value("model.peft_config.target_modules")
    targets = adapted_operators(named, model, problems)
    for line in problems.lines:
        settings.problem("model.peft_config", line)
    return {"lora": {"rank": rank, "targets": targets}}


def _mpt(settings: Settings) -> dict[str, Any]:
    """Return the sizes of an MPT as keys of a `transformer:` block."""
    hidden = settings.count("model.d_model", 2048)
    biased = not settings.flag("model.no_bias")
    positions = "none"
    if settings.flag("model.attn_config.alibi"):
        positions = "alibi"
    elif settings.flag("model.attn_config.rope"):
        positions = "rotary"
    elif settings.flag("model.learned_pos_emb", True):
        positions = "learned"
    norm = settings.choice("model.norm_type", "low_precision_layernorm", _FACTS["norms"])
    heads = settings.count("model.n_heads", 16)
    kinds = settings.choice(
        "model.attn_config.attn_type", "multihead_attention", _FACTS["attentions"]
    )
    block: dict[str, Any] = {
        "layers": settings.count("model.n_layers", 24),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": {
            "all": heads,
            "one": 1,
            "some": settings.count("model.attn_config.kv_n_heads", heads),
        }[kinds],
        "vocab": settings.count("model.vocab_size", 50368),
        "norm": "layer_weight" if norm == "layer" and not biased else norm,
        "positions": positions,
        "max_positions": settings.count("model.max_seq_len", 2048),
        "qkv_bias": settings.flag("model.attention_bias", biased),
        "attention_out_bias": biased,
        "mlp_bias": biased,
        "tied_embedding": settings.flag("model.tie_word_embeddings", True),
        "qk_norm": "width" if settings.flag("model.attn_config.qk_ln") else "none",
        **_feed_forward(settings, hidden),
    }
    for name, key in _FACTS["dropouts"].items():
        block[name] = settings.number(f"model.{key}", 0.0)
    window = settings.value("model.attn_config.sliding_window_size", -1)
    if isinstance(window, int) and window > 0:
        block["window"] = window
    return block


def _feed_forward(settings: Settings, hidden: int) -> dict[str, Any]:
    """Return the keys of what follows attention: dense, with a gate, or a mixture of experts."""
    inner = round(settings.number("model.expansion_ratio", 4.0) * hidden)
    if "model.ffn_config.ffn_hidden_size" in settings:
        inner = settings.count("model.ffn_config.ffn_hidden_size", inner)
    kind = settings.choice("model.ffn_config.ffn_type", "mptmlp", _FACTS["feed_forwards"])
    found: dict[str, Any] = {"ffn": inner, "gated": kind in {"gated", "gated experts"}}
    if "experts" in kind:
        found |= {
            "experts": settings.count("model.ffn_config.moe_num_experts", 1),
            "top_k": settings.count("model.ffn_config.moe_top_k", 1),
            "expert_ffn": inner,
        }
    return found


FRAMEWORKS.register("llm-foundry")(
    Framework(
        name="llm-foundry",
        title="llm-foundry",
        versions="llm-foundry 0.22",
        source="github:mosaicml/llm-foundry scripts/train/yamls, llmfoundry/models/mpt",
        software=("llm-foundry",),
        precisions=("bf16",),
        optimizers=("adamw",),
        ignored=tuple(_FACTS["ignored"]),
        write=None,
        parse=parse,
        read=read,
    )
)

"""What a job states of its model and its software is in the files of an export, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from wattree.capture.mapping import TRANSFORMER_KEYS, shape_from_mapping
from wattree.capture.shape import CHOICES, TransformerShape
from wattree.cost import Software
from wattree.cost.families import SOFTWARE
from wattree.cost.software import expected_instead
from wattree.errors import JobError, ModelError
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job, normal_options
from wattree.frameworks.engines import STORED_NARROW
from wattree.frameworks.export import recipe_files
from wattree.frameworks.framework import ConcreteJob, written_frameworks
from wattree.frameworks.models import shape_of
from wattree.job import job_from_mapping
from wattree.strategy import StrategyOptions

#: Framework → the file that is read back; the first two take a model by its sizes.
_READ = {
    "megatron-lm": "launch.sh",
    "maxtext": "maxtext.yml",
    "megatron-bridge": "overrides.yaml",
    "torchtitan": "launch.sh",
    "hf-trainer": "trainer.yaml",
    "accelerate": "launch.sh",
}
#: Traits of torchtitan since 0.3.
LATER = {"fused_loss": True, "cuda_graphs": "full", "attention_kernels": "ampere"}
LATER |= dict.fromkeys(("first_moment_bytes", "second_moment_bytes"), 2.0)
_GATED = {
    "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024,
    "gated": True, "norm": "rms", "positions": "rotary", "max_positions": 512,
}  # fmt: skip
_EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 128, "shared_ffn": 128}
_LATENT = {
    "kv_heads": 8,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
_MAMBA = {"pattern": "M*-E", "mamba_heads": 8, "mamba_head_dim": 32, "mamba_groups": 2}
#: What a key needs for it to have an effect.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("q_lora_rank", *list(_LATENT)[1:]), _LATENT),
    **dict.fromkeys(("expert_latent", "shared_gate", "expert_bias", "router_bias"), _EXPERTS),
    **dict.fromkeys(("moe_layers", "dense_layers", "moe_every", *_EXPERTS), _EXPERTS),
    "window_layers": {"window": 64},
    "full_attention_every": {"window": 64},
    "embedding_bias": {"embedding_width": 128},
    "embedding_projected_first": {"embedding_width": 128},
    "qk_norm_bias": {"qk_norm": "head"},
    "predictions": {**_EXPERTS, **_MAMBA, "mamba_state": 16},
    "encoder_ffn": {"encoder_layers": 2},
    "encoder_heads": {"encoder_layers": 2},
    "decoder_table": {"encoder_layers": 2},
    "decoder_sequence_ratio": {"encoder_layers": 2},
    "transform_bias": {"head": "masked_lm"},
    "next_sentence": {"head": "masked_lm"},
}
#: Values of keys that are neither flags nor choices nor any whole number.
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "activation": ("relu2", "xielu", "relu", "gelu_new", "quick_gelu", "silu", "silu_clamped"),
    "head_dim": (64,),
    "heads": (16,),
    "kv_heads": (2, 8),
    "padded_vocab": (1152,),
    "top_k": (1,),
    "decoder_sequence_ratio": (0.5,),
    **dict.fromkeys(("dropout", "attention_dropout", "embedding_dropout"), (0.2,)),
    **dict.fromkeys(("window_layers", "no_rope_layers", "moe_layers"), ([1, 3],)),
    **dict.fromkeys(("dense_layers", "moe_every", "full_attention_every"), (2,)),
}
#: Shorthand → the list of layers that it stands for.
_SHORT = {
    "dense_layers": "moe_layers",
    "moe_every": "moe_layers",
    "full_attention_every": "window_layers",
}
#: That no step depends on, or that a tokenizer, the library's code or a sequence says.
_FREE = frozenset(
    {
        *("name", "architecture", "max_positions", "position_rows", "unread_parameters"),
        *("norm_steps", "joint_projections", "stepwise_attention", "concatenated_rotary"),
        "wide_rotary",
        *("casts_softmax", "vocab", "pattern", "prediction_pattern"),
        *(key for key in TRANSFORMER_KEYS if key.startswith("mamba_")),
    }
)  # fmt: skip


def _values(key: str) -> tuple[Any, ...]:
    """Return values of a key that are not its default."""
    kinds = {field.name: field for field in fields(TransformerShape)}
    if key in _VALUES:
        return _VALUES[key]
    if key in CHOICES:
        return tuple(word for word in CHOICES[key] if word != kinds[key].default)
    default = kinds[key].default
    return (not default,) if isinstance(default, bool) else (8,)


def _blocks() -> list[tuple[str, dict[str, Any]]]:
    keys = [key for key in TRANSFORMER_KEYS if key not in _FREE]
    return [
        (key, {**base, **_NEEDED.get(key, {}), key: value})
        for base in (_GATED, {**_GATED, "gated": False, "norm": "layer"})
        for key in keys
        for value in _values(key)
    ]


@cache
def _concrete(
    name: str, model: str = "llama-3.1-8b", software: str = "", **strategy: Any
) -> ConcreteJob:
    """Return a job for a framework, of its own software or another."""
    sharding = "zero1" if name == "megatron-lm" else "zero3"
    usual = {"dp": 8, "sharding": sharding, "micro_batch": 1, "recompute": "full"}
    job = {
        "model": model,
        "data": {"sequence_length": 512, "global_batch": 16},
        "cluster": {"node": "dgx-h100"},
        "software": software or FRAMEWORKS[name].software[0],
        "strategy": {**usual, **strategy},
        "optimizer": "adamw",
        "precision": "fp8" if name == "torchtitan" else "bf16",
    }
    return concrete_job(job_from_mapping(job, "job.yaml"))


def _files(name: str, concrete: ConcreteJob) -> Mapping[str, str] | str:
    """Return name → text of the files of an export, or why it is refused."""
    try:
        files, _ = recipe_files(FRAMEWORKS[name], concrete)
    except JobError as error:
        return str(error)
    return {file: text for file, text in files.items() if file != "README.md"}


def _with_traits(concrete: ConcreteJob, traits: Mapping[str, Any]) -> ConcreteJob:
    job, software = replace(concrete.job, traits=traits), concrete.software.with_traits(traits)
    return replace(concrete, job=job, software=software)


def _imported(name: str, files: Mapping[str, str], folder: Path) -> Mapping[str, Any]:
    """Return the job that the files of an export are read back as."""
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    found = import_recipe(folder / _READ[name], name, node="dgx-h100", nodes=1)
    assert found.not_understood == ()
    return found.job


def _back(name: str, shape: TransformerShape, folder: Path) -> TransformerShape | None:
    """Return the model that an export is read back with; None where it is refused."""
    texts = _files(name, replace(_concrete(name), shape=shape, model_name=""))
    if isinstance(texts, str):
        assert texts.startswith("job.yaml: model: ")
        return None
    return shape_of(_imported(name, texts, folder)["model"])


@pytest.mark.parametrize("name", list(_READ)[:2])
def test_every_key_of_a_model_is_written_or_refused(name: str, tmp_path: Path) -> None:
    """A framework that trained another model than was predicted would say nothing of it."""
    dropped = []
    for key, block in _blocks():
        try:
            stated = shape_from_mapping(block, "model.transformer")
        except ModelError:
            continue  # no such model, whatever trains it
        back = _back(name, stated, tmp_path)
        field = _SHORT.get(key, key)
        gelus = key == "activation" and block[key] == "gelu_new"  # one kernel for both
        if back is not None and not gelus and getattr(back, field) != getattr(stated, field):
            dropped.append(f"{key}: {block[key]}")

    assert dropped == []


def test_activations_that_megatron_has_are_written(tmp_path: Path) -> None:
    """Squared ReLU has a flag, GELU none, and others none of Megatron's kernels."""
    block = {**_GATED, "gated": False, "norm": "layer"}
    shapes = {
        word: _back("megatron-lm", shape_from_mapping({**block, "activation": word}, ""), tmp_path)
        for word in ("relu2", "gelu_new", "xielu")
    }

    found = {word: None if shape is None else shape.activation for word, shape in shapes.items()}
    assert found == {"relu2": "relu2", "gelu_new": "gelu", "xielu": None}


#: A strategy of Megatron's with something to overlap of every kind.
_SPLIT = {
    "dp": 2,
    "tp": 2,
    "pp": 2,
    "sequence_parallel": True,
    "sharding": "zero1",
    "virtual_stages": 1,
}
#: Values of traits that take words, and are no family's default.
_WORDS = {
    "shard_copies": "gradients",
    "channels_first": "3d",
    "accumulates": "device",
    "attention_kernels": "triton",
    "moe_dispatch": "hybridep",
    "cuda_graphs": "partial",
    "allocator": "bfc",
}


@each("name", written_frameworks())
def test_every_trait_is_written_or_refused(name: str) -> None:
    """Else a run is started that does not do what its prediction was made for."""
    framework, is_megatron = FRAMEWORKS[name], name.startswith("megatron")
    own = SOFTWARE[framework.software[0]]
    model = "qwen3-30b-a3b" if is_megatron else "llama-3.1-8b"
    concrete = _concrete(name, model, **(_SPLIT | {"dp": 1, "ep": 2} if is_megatron else {}))
    dropped = []
    for trait in (field for field in fields(Software) if field.name not in {"name", "title"}):
        # Releases of torchtitan with scales of tensors lack what others have.
        rows = name == "torchtitan" and trait.name not in {"row_scales", "gather_bytes"}
        same = {"row_scales": True} if rows else {}
        plain = _files(name, _with_traits(concrete, same))
        assert not isinstance(plain, str)
        default = getattr(own, trait.name)
        value: Any = 8.0 if expected_instead(trait.name, 1.0) else 1.0
        value = not default if isinstance(default, bool) else value
        for stated in {_WORDS.get(trait.name, value), *framework.traits.get(trait.name, ())}:
            if trait.name == "compiled" or stated == default:
                continue  # has a key of its own, or is done in any case
            found = _files(name, _with_traits(concrete, {**same, trait.name: stated}))
            is_other = isinstance(found, str) and f"{trait.name}: " not in found
            if found == plain or is_other:
                dropped.append(f"{trait.name}: {stated}")

    assert dropped == []


def test_reductions_are_dropped_only_where_they_are_usual() -> None:
    """After each micro-batch if gradients are shards, but for pipelines of FSDP2."""
    model = _concrete("deepspeed").model
    found = {
        (software, sharding, pp): [
            normal_options(
                StrategyOptions(dp=2, pp=pp, sharding=sharding, reduce_every_micro_batch=often),
                SOFTWARE[software],
                model,
            ).traffic.reduce_every_micro_batch
            for often in (True, False)
        ]
        for software in ("deepspeed", "torchtitan")
        for sharding in ("none", "zero3")
        for pp in (1, 2)
    }

    shards = {key for key, kept in found.items() if kept == [None, False]}
    assert shards == {
        ("deepspeed", "zero3", 1),
        ("deepspeed", "zero3", 2),
        ("torchtitan", "zero3", 1),
    }
    assert all(found[key] == [True, None] for key in found.keys() - shards)


@each("name", written_frameworks())
def test_what_no_job_states_is_as_the_framework_has_it(name: str) -> None:
    """Any job is exported, whatever other software its prediction was made for."""
    others = ("auto", *(SOFTWARE.keys() - set(FRAMEWORKS[name].software)))
    is_megatron = name.startswith("megatron")
    for strategy in ({}, {"sharding": "none"}, _SPLIT if is_megatron else {"recompute": "none"}):
        own = _files(name, _concrete(name, **strategy))
        assert not isinstance(own, str)
        assert "use_reentrant: true" not in "".join(own.values())
        found = {each: _files(name, _concrete(name, software=each, **strategy)) for each in others}

        assert [other for other in found if found[other] != own] == []


def test_what_has_no_setting_next_to_another_one_is_refused() -> None:
    """Parameters of 16 bits without masters; gradients in the format that they are reduced in."""
    states: list[tuple[str, str, dict[str, Any]]] = [
        ("torchtitan", "torchtitan", {"parameter_bytes": 2.0}),
        ("torchtitan", "auto", {"parameter_bytes": 2.0, "master_bytes": 0.0}),
        ("torchtitan", "auto", {"parameter_bytes": 2.0}),
        ("hf-trainer", "auto", {"autocast": False, "gradient_bytes": 2.0}),
        ("accelerate", "auto", {"parameter_bytes": 2.0}),
        ("megatron-lm", "auto", {"gradient_bytes": 4.0, "reduce_bytes": 4.0}),
        ("megatron-lm", "megatron-te", {"gradient_bytes": 4.0}),
        ("megatron-lm", "auto", {"gradient_bytes": 2.0}),
        ("megatron-lm", "auto", {"moe_dropless": False, "moe_dispatch": "hybridep"}),
        ("torchtitan", "auto", {"fused_loss": True}),  # of 0.3, which has no fp8 by tensors
        ("megatron-bridge", "auto", {"moe_fused_experts": True}),
    ]
    found = [
        _files(name, _with_traits(_concrete(name, software=software), traits))
        for name, software, traits in states
    ]

    assert [each.split(": ")[1] for each in found if isinstance(each, str)] == [
        "traits.parameter_bytes",
        "traits.autocast",
        "traits.parameter_bytes",
        "traits.gradient_bytes",
        "traits.moe_dropless",
        "traits.fused_loss",
        "traits.moe_fused_experts",
    ]
    assert all('dtype = "bfloat16"' in each["train.toml"] for each in found[:2])
    assert "which is not written for Megatron-Bridge" in found[-1]


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        *(
            (name, traits)
            for name in ("megatron-lm", "megatron-bridge")
            for traits in (
                {"cuda_graphs": "partial", "moe_dispatch": "hybridep"},
                {"cuda_graphs": "full", "moe_overlap": True, "attention_kernels": "ampere"},
                {"fused_attention": False},
                {"quantized_attention": True, "moe_dropless": False, "moe_dispatch": "alltoall"},
            )
        ),
        *(
            ("hf-trainer", traits)
            for traits in (
                {"fused_loss": True},
                {"written_out": False},
                {"fused_loss": True, "written_out": False},
                {"fused_attention": False},
                {"attention_kernels": "native"},
            )
        ),
        *((name, STORED_NARROW) for name in ("accelerate", "hf-trainer")),
        (
            "megatron-lm",
            {"attention_kernels": "native", "gradient_bytes": 2.0, "reduce_bytes": 2.0},
        ),
        ("torchtitan", {"gather_bytes": 1.0, "fused_optimizer": False}),
        ("torchtitan", {"parameter_bytes": 2.0, "row_scales": True}),
        ("torchtitan", {"compiled": True, "compiled_loss_bytes": 0.0}),
        ("torchtitan", {"row_scales": True, **LATER}),
    ],
)
def test_traits_with_a_setting_come_back(name: str, traits: dict[str, Any], tmp_path: Path) -> None:
    """What is written means what is read."""
    model = "qwen3-30b-a3b" if name.startswith("megatron") else "llama-3.1-8b"
    files = _files(name, _with_traits(_concrete(name, model), traits))
    assert not isinstance(files, str)

    job = _imported(name, files, tmp_path)
    back = {"compiled": job.get("compile"), **job.get("traits", {})}
    assert {key: back.get(key) for key in traits} == traits

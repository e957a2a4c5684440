"""MaxText's overrides: what they say of a job on a given cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, create_model

from wattree.files import read_text
from wattree.frameworks.command import scalar
from wattree.frameworks.found import Found
from wattree.frameworks.launch import parsed
from wattree.frameworks.maxtext_facts import AXES, CONTEXTS, OPTIMIZERS, SEQUENCE, facts
from wattree.frameworks.models import layers_of, named_by_sizes, shape_of
from wattree.frameworks.settings import Settings
from wattree.hardware import load_node
from wattree.job.problems import Problems, shown
from wattree.job.section import Section
from wattree.job.values import Degree, Factor, Layers, Rate, Samples, Tokens

#: `key=value` of a command.
_OVERRIDE: Final = re.compile(r"[a-z][a-z0-9_]*=.*")
_MOST_DEGREE: Final = 1_000_000


def _degree(value: object) -> object:
    """Return a degree; -1 is what the others leave."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not (value == -1 or 1 <= value <= _MOST_DEGREE):  # type: ignore[operator]
        raise ValueError(
            f"found {shown(value)}, expected a whole number from 1, or -1 for the rest"
        )
    return value


_Part = Annotated[int, BeforeValidator(_degree)]


_NAMES: Final = (*AXES.values(), SEQUENCE)
#: The mesh of base.yml: what is left over is fsdp within, and data over slices.
_USUAL_MESH: Final = {
    f"{level}_{name}_parallelism": -1 if (level, name) in {("ici", "fsdp"), ("dcn", "data")} else 1
    for level in ("ici", "dcn")
    for name in _NAMES
}
_PARTS: Final[Any] = {
    key: (_Part, Field(1, description="a whole number, or -1")) for key in _USUAL_MESH
}
_Mesh: Any = create_model(
    "_Mesh",
    __base__=Section,
    **_PARTS,
)


def _share(value: object) -> object:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class MaxTextSpec(Section):
    """What of MaxText's settings a strategy depends on, the mesh aside."""

    model_name: str = Field("default", description="the name of a model")
    max_target_length: Tokens = Field(2048, description="a whole number of tokens")
    per_device_batch_size: Annotated[Factor, BeforeValidator(_share)] = Field(
        12.0, description="a number above 0"
    )
    gradient_accumulation_steps: Samples = Field(1, description="a whole number")
    num_pipeline_microbatches: int = Field(-1, ge=-1, description="a whole number, or -1")
    num_layers_per_pipeline_stage: Degree = Field(1, description="a whole number")
    num_pipeline_repeats: int = Field(-1, ge=-1, description="a whole number, or -1")
    remat_policy: str = Field("full", description="the name of a policy")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="bfloat16 or float32")
    weight_dtype: str = Field("float32", description="a number format")
    quantization: str = Field("", description="'' or 'fp8'")
    opt_type: str = Field("adamw", description="the name of an optimizer")
    learning_rate: Rate | None = Field(None, description="a number")
    shard_optimizer_over_data: bool = Field(False, description="true or false")
    context_parallel_strategy: Literal["all_gather", "ring"] = Field(
        "all_gather", description="all_gather or ring"
    )
    context_parallel_load_balance: bool = Field(True, description="true or false")
    base_emb_dim: Degree | None = Field(None, description="a whole number")
    base_num_query_heads: Degree | None = Field(None, description="a whole number")
    base_num_kv_heads: Degree | None = Field(None, description="a whole number")
    base_mlp_dim: Degree | None = Field(None, description="a whole number")
    base_num_decoder_layers: Layers | None = Field(None, description="a whole number")
    head_dim: Degree | None = Field(None, description="a whole number")
    vocab_size: Degree | None = Field(None, description="a whole number")
    logits_via_embedding: bool = Field(False, description="true or false")


def find(settings: Settings, problems: Problems) -> Found | None:
    """Return what overrides say, in YAML or on the command that starts MaxText.

    Args:
        settings: The cluster among them says how much an axis of -1 has.
        problems: Where faults go.
    """
    path = settings.path
    is_yaml = path.suffix in {".yml", ".yaml"}
    values = dict(parsed(path)) if is_yaml else _overrides(path)
    if not values.keys() & (MaxTextSpec.model_fields.keys() | _USUAL_MESH.keys()):
        problems.add("", "found no setting of MaxText, expected its YAML or key=value overrides")
        return None
    if str(values.get("base_config", "base.yml")).rsplit("/", 1)[-1] != "base.yml":
        problems.add("base_config", f"found {shown(values['base_config'])}, expected base.yml")
    for key, needed in facts()["only"].items():
        if values.pop(key, needed) != needed:
            problems.add(key, f"has no counterpart here; expected {shown(needed)}")
    mesh = {key: values.pop(key, degree) for key, degree in _USUAL_MESH.items()}
    known = {key: values[key] for key in MaxTextSpec.model_fields if key in values}
    spec, parts = problems.read(MaxTextSpec, known, ""), problems.read(_Mesh, mesh, "")
    if spec is None or parts is None:
        return None
    filled = _filled(mesh, settings, problems=problems)
    if filled is None:
        return None
    unread = values.keys() - known.keys() - set(facts()["ignored"])
    return _found(spec, filled, tuple(sorted(unread)), problems)


def _overrides(path: Path) -> dict[str, Any]:
    """Return what a command overrides: `key=value`, after the name of base.yml."""
    words = read_text(path).replace("\\\n", " ").split()
    pairs = (word.split("=", 1) for word in words if _OVERRIDE.fullmatch(word))
    return {key: scalar(value.strip("'\"")) for key, value in pairs}


def _found(
    spec: MaxTextSpec, degrees: Mapping[str, int], unread: tuple[str, ...], problems: Problems
) -> Found:
    strategy = _strategy(spec, degrees, problems)
    devices = math.prod(degrees.values())
    replicas = degrees["data"] * degrees["fsdp"] * degrees["expert"]
    samples = spec.per_device_batch_size * devices
    count = spec.gradient_accumulation_steps
    if degrees["pipeline"] > 1:
        if count > 1:
            problems.add(
                "gradient_accumulation_steps", "above 1 with a pipeline, found no such strategy"
            )
        count = max(spec.num_pipeline_microbatches, 0) or degrees["pipeline"]
        samples /= count
    micro = round(samples / replicas, 6)
    if micro != int(micro) or not micro:
        problems.add(
            "per_device_batch_size",
            f"found {spec.per_device_batch_size:g} on {devices} devices, {micro:g} for each "
            f"of {replicas} replicas; expected a whole number",
        )
    rates = {word: ours for ours, word in OPTIMIZERS.items()}
    if spec.opt_type not in rates:
        problems.add("opt_type", f"found '{spec.opt_type}', expected one of {', '.join(rates)}")
    if spec.quantization not in {"", "fp8"}:
        problems.add("quantization", f"found '{spec.quantization}', expected '' or fp8")
    model, said = _model(spec)
    return Found(
        model=model,
        sequence_length=spec.max_target_length,
        micro_batch=int(micro),
        accumulation=count,
        precision=spec.quantization or {"bfloat16": "bf16", "float32": "fp32"}[spec.dtype],
        optimizer=rates.get(spec.opt_type),
        learning_rate=spec.learning_rate,
        devices=devices,
        strategy=strategy,
        assumed=said,
        not_understood=unread,
    )


def _filled(
    mesh: Mapping[str, Any], settings: Settings, *, problems: Problems
) -> dict[str, int] | None:
    """Return the degree of each axis, both levels together.

    An axis of -1 has what the others of its level leave: of a slice within, of the slices over it.
    A slice is what the inner network joins: a pod of TPUs, a node of anything else.
    """
    levels = {
        level: {axis: mesh[f"{level}_{axis}_parallelism"] for axis in _NAMES}
        for level in ("ici", "dcn")
    }
    products = {level: _product(axes) for level, axes in levels.items()}
    per_node = settings.devices_per_node
    devices, slices, size = settings.devices or per_node, products["dcn"], products["ici"]
    if size is None:
        is_pod = load_node(settings.given.node or "").device.kind == "tpu"
        size = devices // (slices or 1) if is_pod else min(devices, per_node)
    if slices is None:
        slices = max(1, devices // size)
    whole = {"ici": size, "dcn": slices}
    degrees = dict.fromkeys(_NAMES, 1)
    for level, axes in levels.items():
        left = [axis for axis, degree in axes.items() if degree == -1]
        known = math.prod(degree for degree in axes.values() if degree != -1)
        if len(left) > 1 or whole[level] % known:
            what = " and ".join(left) if len(left) > 1 else f"degrees of {known}"
            problems.add(f"{level}_parallelism", f"found {what}, expected to fill {whole[level]}")
            return None
        for axis, degree in axes.items():
            degrees[axis] *= whole[level] // known if degree == -1 else degree
    return degrees


def _product(axes: Mapping[str, int]) -> int | None:
    """Return how many devices the axes of a level have; None where one of them is -1."""
    return None if -1 in axes.values() else math.prod(axes.values())


def _strategy(spec: MaxTextSpec, degrees: Mapping[str, int], problems: Problems) -> dict[str, Any]:
    """Return the keys of the strategy."""
    data, fsdp, experts = degrees["data"], degrees["fsdp"], degrees["expert"]
    context = degrees["context"]
    if data > 1 and fsdp > 1:
        found: dict[str, Any] = {"sharding": "hybrid", "dp": data, "fsdp": fsdp}
    elif data > 1:
        found = {"sharding": "zero1" if spec.shard_optimizer_over_data else "none", "dp": data}
    else:
        found = {"sharding": "zero3" if fsdp * context * experts > 1 else "none", "dp": fsdp}
    if data > 1 and context * experts > 1:
        problems.add(
            "ici_data_parallelism",
            "found copies of weights that lie over context or experts too, which no strategy here "
            "states; expected fsdp",
        )
    found["recompute"] = _recompute(spec, problems)
    tensor = degrees["tensor"] * degrees[SEQUENCE]
    if degrees["tensor"] > 1 and degrees[SEQUENCE] > 1:
        problems.add(
            "ici_tensor_sequence_parallelism", "found together with ici_tensor_parallelism"
        )
    if tensor > 1:
        found |= {"tp": tensor, "sequence_parallel": True}
    if context > 1:
        ways = {word: way for way, word in CONTEXTS.items()}
        found |= {"cp": context, "context": ways[spec.context_parallel_strategy]}
        found["context_order"] = "zigzag" if spec.context_parallel_load_balance else "contiguous"
    if experts > 1:
        found["ep"] = experts
    names = {word: name for name, word in facts()["models"].items()}
    shape = shape_of(names.get(spec.model_name, ""))
    if tensor > 1 and shape is not None and shape.experts > 0:
        found["expert_over_tensor"] = False
    if degrees["pipeline"] > 1:
        found |= {"pp": degrees["pipeline"], **_pipeline(spec, degrees["pipeline"], problems)}
    return found


def _recompute(spec: MaxTextSpec, problems: Problems) -> str:
    kinds: Mapping[str, str] = facts()["remat"]
    if spec.remat_policy not in kinds:
        known = ", ".join(kinds)
        problems.add("remat_policy", f"found '{spec.remat_policy}', expected one of {known}")
    return kinds.get(spec.remat_policy, "full")


def _pipeline(spec: MaxTextSpec, stages: int, problems: Problems) -> dict[str, Any]:
    repeats = spec.num_pipeline_repeats
    if repeats < 1:
        layers = _layer_count(spec)
        if layers is None:
            problems.add("num_pipeline_repeats", f"is missing for {spec.model_name}")
            return {}
        repeats = max(1, layers // (stages * spec.num_layers_per_pipeline_stage))
    return {"schedule": "gpipe" if repeats == 1 else "breadth-first", "virtual_stages": repeats}


def _layer_count(spec: MaxTextSpec) -> int | None:
    """Return the layers of the model; None for one that the catalog does not have."""
    if spec.base_num_decoder_layers is not None:
        return spec.base_num_decoder_layers
    if spec.model_name == "default":
        return int(facts()["sizes"]["base_num_decoder_layers"])
    names = {word: name for name, word in facts()["models"].items()}
    return layers_of(names.get(spec.model_name, "")) or None


def _model(spec: MaxTextSpec) -> tuple[str | dict[str, Any] | None, tuple[str, ...]]:
    """Return the model, as a job has it, and what to say of it."""
    ours = {word: name for name, word in facts()["models"].items()}
    sizes = {key: getattr(spec, key) for key in facts()["sizes"]}
    changed = [key for key, value in sizes.items() if value is not None]
    if spec.model_name != "default":
        if changed:
            return None, (f"{spec.model_name} has other sizes here: {', '.join(changed)}",)
        return ours.get(spec.model_name), ()
    whole = {key: sizes[key] or usual for key, usual in facts()["sizes"].items()}
    block = {
        "layers": whole["base_num_decoder_layers"],
        "hidden": whole["base_emb_dim"],
        "heads": whole["base_num_query_heads"],
        "kv_heads": whole["base_num_kv_heads"],
        "head_dim": whole["head_dim"],
        "ffn": whole["base_mlp_dim"],
        "vocab": whole["vocab_size"],
        "gated": True,
        "norm": "rms",
        "tied_embedding": spec.logits_via_embedding,
    }
    return named_by_sizes(block), ()

"""MaxText's overrides: what they say of a job on a given cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from wattree.frameworks.found import Found
from wattree.frameworks.maxtext_model import (
    AXES,
    CONTEXTS,
    OPTIMIZERS,
    SEQUENCE,
    TRANSPOSED,
    MaxTextModelSpec,
    facts,
    model_of_settings,
)
from wattree.frameworks.maxtext_remat import RematSpec
from wattree.frameworks.maxtext_values import BASE, maxtext_sources
from wattree.frameworks.models import layers_of, shape_of
from wattree.frameworks.settings import Settings
from wattree.hardware import load_node
from wattree.job.problems import Problems, shown
from wattree.job.values import Degree, Factor, Rate, Samples, Steps, Tokens

_MOST_DEGREE: Final = 1_000_000
#: `mu_dtype` → bytes of the first moment.
MOMENTS: Final = {"bfloat16": 2.0, "float32": 4.0}


_NAMES: Final = (*AXES.values(), SEQUENCE, TRANSPOSED)
#: The mesh of base.yml: what is left over is fsdp within, and data over slices.
_USUAL_MESH: Final = {
    f"{level}_{name}_parallelism": -1 if (level, name) in {("ici", "fsdp"), ("dcn", "data")} else 1
    for level in ("ici", "dcn")
    for name in _NAMES
}


def _share(value: object) -> object:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class MaxTextSpec(MaxTextModelSpec, RematSpec):
    """What of MaxText's settings a step depends on, the mesh aside."""

    max_target_length: Tokens = Field(2048, description="a whole number of tokens")
    per_device_batch_size: Annotated[Factor, BeforeValidator(_share)] = Field(
        12.0, description="a number above 0"
    )
    gradient_accumulation_steps: Samples = Field(1, description="a whole number")
    num_pipeline_microbatches: int = Field(-1, ge=-1, description="a whole number, or -1")
    num_layers_per_pipeline_stage: Degree = Field(1, description="a whole number")
    num_pipeline_repeats: int = Field(-1, ge=-1, description="a whole number, or -1")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="bfloat16 or float32")
    weight_dtype: str = Field("float32", description="a number format")
    quantization: str = Field("", description="'' or 'fp8'")
    opt_type: str = Field("adamw", description="the name of an optimizer")
    mu_dtype: Literal["", "bfloat16", "float32"] = Field("", description="bfloat16 or float32")
    learning_rate: Rate | None = Field(None, description="a number")
    steps: Steps | Literal[-1] | None = Field(None, description="a whole number, or -1")
    shard_optimizer_over_data: bool = Field(False, description="true or false")
    context_parallel_strategy: Literal["all_gather", "ring"] = Field(
        "all_gather", description="all_gather or ring"
    )
    context_parallel_load_balance: bool = Field(True, description="true or false")


def find(settings: Settings, problems: Problems) -> Found | None:
    """Return what overrides say, in YAML or on the command that starts MaxText.

    Args:
        settings: The cluster among them says how much an axis of -1 has.
    """
    values, files = maxtext_sources(settings.path)
    for file in files:
        settings.assume(f"settings of {file.name} as in {file}")
    if not values.keys() & (MaxTextSpec.model_fields.keys() | _USUAL_MESH.keys()):
        problems.add("", "found no setting of MaxText, expected its YAML or key=value overrides")
        return None
    if str(base := values.get("base_config", BASE)).rsplit("/", 1)[-1] != BASE:
        problems.add("base_config", f"found {shown(base)}, expected {BASE} or a file near this one")
    for key, needed in facts()["only"].items():
        if values.pop(key, needed) != needed:
            problems.add(key, f"has no counterpart here; expected {shown(needed)}")
    mesh = {key: values.pop(key, degree) for key, degree in _USUAL_MESH.items()}
    wrong = {key: value for key, value in mesh.items() if not _is_degree(value)}
    for key, value in wrong.items():
        problems.add(key, f"found {shown(value)}, expected a whole number from 1, or -1")
    known = {key: values[key] for key in MaxTextSpec.model_fields if key in values}
    spec = problems.read(MaxTextSpec, known, "")
    if spec is None or wrong:
        return None
    filled = _filled(mesh, settings, problems=problems)
    if filled is None:
        return None
    cores = _merge_cores(filled, settings, problems=problems)
    unread = values.keys() - known.keys()
    model = None if settings.given.model is not None else model_of_settings(spec, problems)
    return _found(
        spec,
        filled,
        model or settings.given.model or "",
        tuple(sorted(unread)),
        problems,
        cores=cores,
    )


def _is_degree(value: object) -> bool:
    """Whether a value is a degree; -1 is what the others leave."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and (value == -1 or 1 <= value <= _MOST_DEGREE)  # type: ignore[operator]


def _found(
    spec: MaxTextSpec,
    degrees: Mapping[str, int],
    model: str | Mapping[str, Any],
    unread: tuple[str, ...],
    problems: Problems,
    *,
    cores: int,
) -> Found:
    strategy = _strategy(spec, degrees, model, problems)
    devices = math.prod(degrees.values())
    replicas = math.prod(degrees[axis] for axis in ("data", "fsdp", TRANSPOSED, "expert"))
    samples = spec.per_device_batch_size * devices * cores
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
    formats: Mapping[str, str] = facts()["quantizations"]
    if spec.quantization and spec.quantization not in formats:
        problems.add(
            "quantization",
            f"found '{spec.quantization}', a format that is not modeled; expected '' or one of "
            f"{', '.join(formats)}",
        )
    return Found(
        model=model or None,
        **_counts(spec, int(micro), count, pipelined=degrees["pipeline"] > 1),
        precision=formats.get(spec.quantization)
        or {"bfloat16": "bf16", "float32": "fp32"}[spec.dtype],
        optimizer=rates.get(spec.opt_type),
        learning_rate=spec.learning_rate,
        steps=None if spec.steps == -1 else spec.steps,
        devices=devices,
        strategy=strategy,
        traits={"first_moment_bytes": MOMENTS[spec.mu_dtype]} if spec.mu_dtype else {},
        assumed=_assumed(spec, degrees),
        not_understood=unread,
    )


def _counts(
    spec: MaxTextSpec, micro_batch: int, accumulation: int, *, pipelined: bool
) -> dict[str, Any]:
    """Return the counts that a file states, and in `usual` those that it leaves to defaults."""
    counts = {
        "sequence_length": ("max_target_length", spec.max_target_length),
        "micro_batch": ("per_device_batch_size", micro_batch),
        "accumulation": ("gradient_accumulation_steps", accumulation),
    }
    # With a pipeline, both counts follow from others.
    said = {
        name: value
        for name, (key, value) in counts.items()
        if key in spec.model_fields_set or (name != "sequence_length" and pipelined)
    }
    usual = {name: value for name, (_, value) in counts.items() if name not in said}
    return {**said, "usual": usual}


def _assumed(spec: MaxTextSpec, degrees: Mapping[str, int]) -> tuple[str, ...]:
    """Return the differences from a job, one sentence each."""
    found = []
    if degrees[TRANSPOSED] > 1:
        found.append(f"{TRANSPOSED} is a second part of fsdp: it shards other dims of weights")
    if degrees["tensor"] > 1:  # activation_embed in logical_axis_rules of base.yml
        found.append(
            "axis tensor splits activations over hidden units: taken as sequence_parallel, with "
            f"the same memory and traffic; an export writes {SEQUENCE}"
        )
    return (*found, *spec.notes())


def _filled(
    mesh: Mapping[str, Any], settings: Settings, *, problems: Problems
) -> dict[str, int] | None:
    """Return the degree of each axis, both levels together.

    An axis of -1 has what the others of its level leave: of a slice within, of the slices over it.
    """
    cores = _cores(settings)
    levels = {
        level: {axis: mesh[f"{level}_{axis}_parallelism"] for axis in _NAMES}
        for level in ("ici", "dcn")
    }
    known = {
        level: math.prod(degree for degree in axes.values() if degree != -1)
        for level, axes in levels.items()
    }
    is_open = {level: -1 in axes.values() for level, axes in levels.items()}
    whole = _levels(known, is_open, settings, cores)
    degrees = dict.fromkeys(_NAMES, 1)
    for level, axes in levels.items():
        left = [axis for axis, degree in axes.items() if degree == -1]
        if len(left) > 1 or whole[level] % known[level]:
            what = " and ".join(left) if len(left) > 1 else f"degrees of {known[level]}"
            problems.add(f"{level}_parallelism", f"found {what}, expected to fill {whole[level]}")
            return None
        for axis, degree in axes.items():
            degrees[axis] *= whole[level] // known[level] if degree == -1 else degree
    return degrees


def _cores(settings: Settings) -> int:
    return load_node(settings.given.node).device.cores if settings.given.node else 1


def _merge_cores(degrees: dict[str, int], settings: Settings, *, problems: Problems) -> int:
    """Take the devices that JAX has of one device here as one, and return how many they are.

    They share its samples, or else its part of what is split.
    """
    cores = _cores(settings)
    if cores == 1:
        return 1
    axes = ("fsdp", "data", TRANSPOSED, SEQUENCE, "tensor", "context", "expert")
    merged = next((axis for axis in axes if degrees[axis] % cores == 0), None)
    if merged is None:
        problems.add("ici_fsdp_parallelism", f"found no axis that is a multiple of {cores} cores")
        return cores
    degrees[merged] //= cores
    settings.assume(f"{merged}: the {cores} devices that JAX has of each are one device here")
    return cores


def _levels(
    known: Mapping[str, int], is_open: Mapping[str, bool], settings: Settings, cores: int
) -> dict[str, int]:
    """Return the devices of a slice, and how many slices there are.

    A slice is what the inner network joins: a pod of TPUs, a node of anything else. Where the
    cluster is not named, it is the smallest with whole nodes that has room for all degrees.
    """
    size, slices, per_node = known["ici"], known["dcn"], settings.devices_per_node * cores
    if settings.devices is None:
        return {"ici": math.lcm(size, per_node) if is_open["ici"] else size, "dcn": slices}
    if is_open["ici"]:
        node = load_node(settings.given.node or "")
        each = settings.devices * cores // (1 if is_open["dcn"] else slices)
        is_pod = node.device.kind == "tpu"
        size = min(each, node.scale_up.domain_devices * cores if is_pod else per_node)
    over = max(1, settings.devices * cores // size) if is_open["dcn"] else slices
    return {"ici": size, "dcn": over}


def _strategy(
    spec: MaxTextSpec,
    degrees: Mapping[str, int],
    model: str | Mapping[str, Any],
    problems: Problems,
) -> dict[str, Any]:
    """Return the keys of the strategy."""
    data, experts = degrees["data"], degrees["expert"]
    fsdp = degrees["fsdp"] * degrees[TRANSPOSED]
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
    found |= spec.strategy_keys(layers_of(model) // degrees["pipeline"], problems)
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
    shape = shape_of(model)
    if tensor > 1 and shape is not None and shape.experts > 0:
        found["expert_over_tensor"] = False
    if degrees["pipeline"] > 1:
        found |= {
            "pp": degrees["pipeline"],
            **_pipeline(spec, degrees["pipeline"], model, problems),
        }
    return found


def _pipeline(
    spec: MaxTextSpec, stages: int, model: str | Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    repeats = spec.num_pipeline_repeats
    if repeats < 1:
        layers = layers_of(model)
        if not layers:
            problems.add("num_pipeline_repeats", f"is missing for {spec.model_name}")
            return {}
        repeats = max(1, layers // (stages * spec.num_layers_per_pipeline_stage))
    return {"schedule": "gpipe" if repeats == 1 else "breadth-first", "virtual_stages": repeats}

"""torchtitan in: its settings, by the keys of 0.2.2 → keys of a job."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Any, Final

from wattree.capture.catalog_entries import catalog_entry, is_model_name
from wattree.errors import did_you_mean
from wattree.files import read_yaml
from wattree.frameworks.found import batch_of
from wattree.frameworks.framework import Imported
from wattree.frameworks.models import (
    catalog_name,
    layers_of,
    resized,
    shape_of,
    with_overrides,
)
from wattree.frameworks.settings import Settings, words_of
from wattree.strategy import Offload, chunk_layers
from wattree.units import whole_number

#: What torchtitan names; see the file.
FACTS: Final[dict[str, Any]] = read_yaml(Path(__file__).with_name("torchtitan.yaml"))
#: `pipeline_parallel_schedule` → schedule.
SCHEDULES: Final[dict[str, str]] = FACTS["schedules"]
#: Implementation of the optimizer → traits: whether it reads and writes all it needs once, moments.
_IMPLEMENTATIONS: Final[dict[str, dict[str, Any]]] = {
    "fused": {},
    "foreach": {"fused_optimizer": False},
    "for-loop": {"fused_optimizer": False},
    "fused_opt_states_bf16": {"first_moment_bytes": 2.0, "second_moment_bytes": 2.0},
}
#: What `enable_cpu_offload` moves to the host: parameters, gradients and optimizer state.
HOST_OFFLOAD: Final = Offload(optimizer="host", parameters="host")
#: What tells `fsdp_reshard_after_forward = "never"` from ZeRO-2.
GATHERED_AGAIN: Final = (
    "zero2 is FSDP2 without resharding: it gathers for each micro-batch, not once a step"
)
_PLACE = "parallelism."


def read(settings: Settings) -> Imported:
    """Return the settings of a configuration of torchtitan."""
    if not any(table in settings for table in ("model", "training", "parallelism")):
        settings.problem("model", "is missing: this is no configuration of torchtitan")
    key = "fault_tolerance.semi_sync_method"  # of TorchFT (components/ft/manager.py)
    method = settings.text(key)
    if settings.flag("fault_tolerance.enable") and method:
        why = "which does not reduce gradients at each step: no strategy here states that"
        settings.problem(key, f"found {method}, {why}")
    model = _model(settings)
    settings.check()
    sequence = settings.counted("sequence_length", "training.seq_len", usual=2048)
    model = _reaching(settings, model, sequence)
    strategy = _degrees(settings, has_experts=_has_experts(model))
    replicas = strategy["dp"] * strategy.get("fsdp", 1) * strategy.get("ep", 1)
    batch = _batch(settings, strategy, replicas)
    strategy |= _sharding(settings, strategy, batch // (strategy["micro_batch"] * replicas))
    if strategy["pp"] > 1:
        strategy |= _pipeline(settings, strategy["pp"], layers_of(model))
    else:
        for key in FACTS["of_pipelines"]:
            settings.value(f"parallelism.{key}")
    strategy["recompute"] = _recompute(settings)
    if settings.flag("parallelism.enable_async_tensor_parallel"):
        strategy["overlap_tensor"] = True
    if settings.flag("optimizer.early_step_in_backward"):
        strategy["overlap_optimizer"] = True
    components = settings.value("compile.components", ["model", "loss"])
    compiled = settings.flag("compile.enable") and "model" in components
    precision, traits = _precision(settings)
    if compiled and "loss" not in components:
        traits = {**traits, "compiled_loss_bytes": 0.0}
    later = _later(settings) if "config" in settings else {}
    return Imported(
        model=model,
        data={"sequence_length": sequence, "global_batch": batch},
        strategy=strategy,
        precision=precision,
        optimizer=settings.choice("optimizer.name", "AdamW", {"AdamW": "adamw", "Adam": "adam"}),
        compiled=compiled,
        traits=traits | later,
        training=_training(settings),
    )


def _model(settings: Settings) -> str | dict[str, Any]:
    name = settings.text("model.name", "llama3")
    flavor = settings.text("model.flavor", "debugmodel")
    if (given := settings.given.model) is not None:
        return given
    if name in FACTS["other_kinds"]:
        what = FACTS["other_kinds"][name]
        settings.problem("model.name", f"found {name}, {what}, which is not modeled; add --model")
        return ""
    if named := settings.text("hf_transformers.model"):
        return _of_transformers(settings, catalog_name(named, settings), flavor)
    if "model.flavor" not in settings:
        settings.assume(f"model {name} {flavor}, torchtitan's default: the file names no flavor")
    suffix = next((each for each in FACTS["suffixes"] if flavor.endswith(each)), "")
    plain = flavor.removesuffix(suffix)
    if plain in FACTS["blocks"].get(name, {}):
        return {"transformer": dict(FACTS["blocks"][name][plain])}
    earlier = [f"{name}-{plain}"]  # releases had other models, such as llama2
    if is_model_name(found := FACTS["models"].get(name, {}).get(plain, earlier)[0]):
        model = catalog_entry(found).name
        settings.assume(f"model {model}, as flavor {flavor} of {name}")
        return model
    known = [
        f"{model} {each}"
        for group in ("models", "blocks")
        for model, flavors in FACTS[group].items()
        for each in flavors
    ]
    close = difflib.get_close_matches(f"{name} {plain}", known, n=5, cutoff=0.3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    why = f"of which no sizes are known{hint}; add --model"
    settings.problem("model", f"found {name} {flavor}, {why}")
    return ""


def _reaching(
    settings: Settings, model: str | dict[str, Any], sequence: int
) -> str | dict[str, Any]:
    """Return a model with positions for a sequence: torchtitan makes its table as long as that."""
    shape = shape_of(model)
    if shape is None or not 0 < shape.max_positions < sequence:
        return model
    settings.assume(f"{sequence} positions instead of the model's {shape.max_positions}")
    return resized(model, {"max_positions": sequence}) or model


def _of_transformers(settings: Settings, name: str, flavor: str) -> str | dict[str, Any]:
    """Return a model of the transformers library, as a flavor of torchtitan changes it."""
    flavors: dict[str, dict[str, Any]] = FACTS["transformers_modeling_backend"]
    if not is_model_name(name) or flavor not in flavors:
        settings.problem(
            "hf_transformers.model",
            f"found {name} with flavor {flavor}, expected a model of the catalog with "
            f"{' or '.join(flavors)}; add --model",
        )
        return ""
    settings.assume(f"sizes that flavor {flavor} sets, in place of those of {name}")
    return with_overrides(name, flavors[flavor])


def _has_experts(model: str | dict[str, Any]) -> bool:
    shape = shape_of(model)
    return shape is not None and bool(shape.experts)


def _degrees(settings: Settings, *, has_experts: bool) -> dict[str, Any]:
    tp, cp, pp = (
        settings.count(f"{_PLACE}{kind}_parallel_degree", 1)
        for kind in ("tensor", "context", "pipeline")
    )
    replicate = settings.count("parallelism.data_parallel_replicate_degree", 1)
    shard = settings.count("parallelism.data_parallel_shard_degree", -1, least=-1)
    if shard == 0:
        settings.problem(f"{_PLACE}data_parallel_shard_degree", "found 0, expected -1 or above 0")
    if shard < 1:
        wide = settings.count("parallelism.expert_parallel_degree", 1) if has_experts else 1
        shard = settings.replicas(
            tp * cp * pp * replicate, multiple=wide // math.gcd(wide, tp * cp)
        )
    splits = settings.flag("parallelism.enable_sequence_parallel", default=True) and tp > 1
    strategy: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "sequence_parallel": splits}
    if cp > 1:
        strategy["context"] = settings.choice(
            "parallelism.context_parallel_rotate_method",
            "allgather",
            {"allgather": "gather", "alltoall": "ring"},
        )
        settings.text("parallelism.context_parallel_load_balancer", "headtail")
    else:
        settings.value("parallelism.context_parallel_rotate_method")
        settings.value("parallelism.context_parallel_load_balancer")
    ep = _experts(settings, strategy, shard) if has_experts else _no_experts(settings)
    strategy["ep"] = ep
    if replicate > 1 and shard * cp > 1:
        if cp > 1 or ep > 1:
            settings.assume("shards lie on data-parallel ranks only, not on those of cp and ep")
        return strategy | {"dp": replicate, "fsdp": shard // ep, "sharding": "hybrid"}
    is_sharded = shard * cp > 1
    return strategy | {
        "dp": replicate * shard // ep,
        "sharding": "zero3" if is_sharded else "none",
    }


def _no_experts(settings: Settings) -> int:
    for key in ("parallel_degree", "tensor_parallel_degree", "parallel_comm_backend"):
        settings.value(f"parallelism.expert_{key}")
    return 1


def _experts(settings: Settings, strategy: dict[str, Any], shard: int) -> int:
    """Return the expert-parallel degree among replicas; `tp` ranks may hold experts as well."""
    tp = strategy["tp"]
    degree = settings.count("parallelism.expert_parallel_degree", 1)
    within = settings.count("parallelism.expert_tensor_parallel_degree", 1)
    settings.value("parallelism.expert_parallel_comm_backend")
    over_tensor = degree > 1 and within == 1 and tp > 1
    if degree > 1 and within not in (1, tp):
        settings.problem(
            "parallelism.expert_tensor_parallel_degree",
            f"found {within}, expected 1 or the tensor-parallel degree {tp}",
        )
    if tp > 1:
        strategy["expert_over_tensor"] = over_tensor
    ep, rest = divmod(degree, tp) if over_tensor else (degree, 0)
    if rest or shard % ep:
        settings.problem(
            "parallelism.expert_parallel_degree",
            f"found {degree}, expected {'tp times ' if over_tensor else ''}a divisor of the shard "
            f"degree {shard}: experts on context-parallel ranks cannot be expressed",
        )
        return 1
    return ep


def _batch(settings: Settings, strategy: dict[str, Any], replicas: int) -> int:
    """Return the global batch; the strategy gets its micro-batch."""
    whole = settings.counted("global_batch", "training.global_batch_size", least=-1)
    if strategy["pp"] == 1:
        usual = 8 if whole is None or settings.given.accumulation is None else None
        micro = settings.counted("micro_batch", "training.local_batch_size", usual=usual)
        return batch_of(settings, strategy, micro, settings.given.accumulation, whole)
    key = "parallelism.pipeline_parallel_microbatch_size"
    micro, local = settings.counted("micro_batch", key, usual=1), None
    if settings.given.accumulation is None or "training.local_batch_size" in settings:
        local = settings.count("training.local_batch_size", 8)
        whole = whole or local * replicas
        if local % micro:
            settings.problem(key, f"found {micro}, expected a divisor of local_batch_size {local}")
        elif whole > local * replicas:
            count = whole // (local * replicas)
            settings.assume(f"one pipeline flush per step, not {count} of one local batch")
    return batch_of(settings, strategy, micro, settings.given.accumulation, whole)


def _sharding(settings: Settings, strategy: dict[str, Any], micro_batches: int) -> dict[str, Any]:
    """Return which part of the model's state is replicated, and which is on the host."""
    policy = settings.choice(
        "parallelism.fsdp_reshard_after_forward",
        "default",
        {"default": strategy["pp"] > 1, "always": False, "never": True},
    )
    found: dict[str, Any] = {}
    if policy and strategy["sharding"] == "zero3":
        found["sharding"] = "zero2"
        if micro_batches > 1 and strategy["pp"] == 1:
            settings.assume(GATHERED_AGAIN)
    elif policy and strategy["sharding"] != "none":
        found["reshard_after_forward"] = False
    if settings.flag("training.enable_cpu_offload"):
        found["offload"] = {"optimizer": "host", "parameters": "host"}
    return found


def _pipeline(settings: Settings, pp: int, layers: int) -> dict[str, Any]:
    schedule = settings.choice("parallelism.pipeline_parallel_schedule", "1F1B", SCHEDULES)
    parts = settings.value("parallelism.module_fqns_per_model_part")
    if parts is None:
        counts = _inferred_layers(settings, pp, layers, chunks=1 if schedule in _SINGLE else 2)
    elif _is_list_of_texts(parts):
        counts = tuple(sum(name.startswith("layers.") for name in part) for part in parts)
    else:
        settings.problem("parallelism.module_fqns_per_model_part", "expected lists of module names")
        return {}
    virtual, rest = divmod(len(counts), pp)
    if rest or sum(counts) != layers or not virtual:
        settings.problem(
            "parallelism",
            f"found {len(counts)} chunks of {sum(counts)} layers, expected a multiple of {pp} "
            f"chunks of {layers} layers"
            if counts
            else f"{layers} layers are too few for {pp} stages",
        )
        return {}
    if schedule in _SINGLE and virtual > 1:
        why = f"found {schedule} with {len(counts)} stages on {pp} ranks, expected one on each rank"
        settings.problem("parallelism.pipeline_parallel_schedule", why)
        return {}
    found: dict[str, Any] = {"schedule": schedule, "virtual_stages": virtual}
    if counts != chunk_layers(layers, len(counts)):
        found["stage_layers"] = list(counts)
    return found


#: Schedules with one chunk per rank.
_SINGLE = ("gpipe", "1f1b")


def _is_list_of_texts(parts: object) -> bool:
    return isinstance(parts, list) and all(
        isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts
    )


def _inferred_layers(settings: Settings, pp: int, layers: int, *, chunks: int) -> tuple[int, ...]:
    """Return the layers of each chunk if no list of modules gives them.

    First and last chunk count for more layers than they have; the first ones take what is left
    over (`generate_llm_fqn_per_model_part` in torchtitan/distributed/pipeline_parallel.py).
    """
    first, last = (
        settings.count(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, least=0)
        for end in ("first", "last")
    )
    per_stage = settings.count("parallelism.pipeline_parallel_layers_per_stage", 0, least=0)
    weight = layers + first + last
    stages = -(-weight // per_stage) if per_stage else pp * chunks
    if stages > weight:
        return ()
    base, extra = divmod(weight, stages)
    counts = [base + (index < extra) for index in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(max(0, count) for count in counts)


def _recompute(settings: Settings) -> str:
    mode = settings.choice(
        "activation_checkpoint.mode",
        "selective",
        {"none": "none", "full": "full", "selective": "selective", "memory_budget": "budget"},
    )
    option = settings.value("activation_checkpoint.selective_ac_option", "2")
    budget = settings.number("activation_checkpoint.memory_budget", 0.5)
    if mode == "budget":
        settings.assume(f"memory_budget {budget:g} is taken as recomputation by operator")
        return "selective_operator"
    if mode != "selective":
        return mode
    if option == "op":
        return "selective_operator"
    if not whole_number(str(option)):
        settings.problem(
            "activation_checkpoint.selective_ac_option",
            f"found {option!r}, expected 'op' or a whole number of layers",
        )
        return "full"
    return f"block_{option}"


def _precision(settings: Settings) -> tuple[str, dict[str, Any]]:
    converted = _converted(settings)
    param = settings.choice(
        "training.mixed_precision_param", "bfloat16", {"bfloat16": "bf16", "float32": "tf32"}
    )
    settings.choice("training.mixed_precision_reduce", "float32", {"float32": ""})
    traits: dict[str, Any] = {}
    if settings.choice("training.dtype", "float32", {"float32": False, "bfloat16": True}):
        traits = {"parameter_bytes": 2.0, "master_bytes": 0.0}
        settings.assume("parameters, gradients and optimizer state in bfloat16 (training.dtype)")
    traits |= settings.choice("optimizer.implementation", "fused", _IMPLEMENTATIONS)
    fp8_gather = settings.flag("quantize.linear.float8.enable_fsdp_float8_all_gather")
    scaling = settings.value("quantize.linear.float8.recipe_name", "tensorwise")
    if converted != "fp8":
        return converted or param, traits
    if scaling not in {"tensorwise", "rowwise"}:
        settings.assume(f"float8 recipe {scaling} is taken as rowwise")
    if scaling != "tensorwise":
        return "fp8", traits | {"row_scales": True}  # which gathers no scaled parameters
    return "fp8", traits | ({"gather_bytes": 1.0} if fp8_gather else {})


def _later(settings: Settings) -> dict[str, Any]:
    """Return the traits of 0.3: FlexAttention, a loss in chunks, steps that are replayed."""
    chunks = settings.count("loss.num_chunks", 8)
    found: dict[str, Any] = {"attention_kernels": "ampere", "fused_loss": chunks > 1}
    if chunks not in {1, 8}:
        found["loss_chunks"] = chunks
    if not settings.flag("training.disable_cuda_graphs"):
        found["cuda_graphs"] = "full"
    return found


def _converted(settings: Settings) -> str:
    """Return the number format that `model.converters`, a list or a text, gives matmuls."""
    for group in FACTS["converter_settings"]:
        settings.value(group)
    names, known = words_of(settings.value("model.converters")), FACTS["converters"]
    for name in (each for each in names if each not in known):
        if hint := did_you_mean(name, known, before="; ", after="", alike=0.75):
            settings.problem("model.converters", f"found '{name}', which is unknown{hint}")
        else:
            settings.assume(f"converter {name} is left out: it is none of torchtitan's own")
    return min((known[name] for name in names if name in known), default="")  # fp8 before mxfp8


def _training(settings: Settings) -> dict[str, Any]:
    steps, key = settings.count("training.steps", 10000), "optimizer.lr"
    rate = {"learning_rate": settings.number(key, 8e-4)} if key in settings else {}
    return {"steps": steps, **rate}

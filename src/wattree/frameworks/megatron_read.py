"""Strategy and optimizer of a job from Megatron's arguments, by names of its argument parser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from wattree.errors import did_you_mean
from wattree.frameworks.found import batch_of
from wattree.frameworks.megatron import FACTS, LAYER_WISE, OPTIMIZERS
from wattree.frameworks.megatron_layout import (
    even_cut,
    layout_layers,
    layout_predictions,
    with_predicting,
)
from wattree.frameworks.settings import Settings, words_of
from wattree.job.optimizers import MATRIX_OPTIMIZERS
from wattree.strategy import MODULES, RECOMPUTED_MODULES, chunk_layers
from wattree.units import whole_number

_SHARDINGS: Final = {
    "no_shard": "none",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}


def take_devices(settings: Settings) -> None:
    """Take the number of devices from the launcher's arguments, where they say it."""
    values = (settings.value(key) for key in ("gpus_per_node", "nnodes"))
    per_node, nodes = (whole_number(str(value)) for value in values)
    if settings.devices is None and per_node is not None and nodes is not None:
        devices = per_node * nodes
        kinds = ("tensor_model", "pipeline_model", "context")
        others = math.prod(settings.count(f"{kind}_parallel_size", 1) for kind in kinds)
        wide = settings.count("expert_model_parallel_size", 1)
        wide *= settings.count("expert_tensor_parallel_size", 1)
        others = math.lcm(others, settings.count("pipeline_model_parallel_size", 1) * wide)
        if devices and devices % others == 0:
            settings.devices = devices
        else:
            settings.assume(f"the launcher's {devices} devices are left out: the degrees need more")


def read_strategy(
    settings: Settings, *, layers: int, has_experts: bool, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the strategy that arguments describe.

    Args:
        settings: Arguments by the name of their destination.
        defaults: Options that are on by default in one of the programs.
    """
    refuse_pairs(settings)
    tp, pp, cp = (
        settings.count(f"{kind}_parallel_size", 1)
        for kind in ("tensor_model", "pipeline_model", "context")
    )
    experts = _expert_ranks(settings, tp) if has_experts else 1
    replicas = settings.replicas(tp * pp * cp, multiple=experts // math.gcd(experts, tp))
    settings.check()
    strategy: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "sequence_parallel": settings.flag(
            "sequence_parallel", default=defaults.get("sequence_parallel", False)
        )
        and tp > 1,
    }
    ep = _experts(settings, strategy, replicas) if has_experts else _no_experts(settings)
    strategy |= {"ep": ep, "dp": replicas // ep}
    strategy |= _read_sharding(settings, strategy, replicas, defaults)
    way = next(iter(words_of(settings.value("cp_comm_type"))), "p2p").lower()
    if cp > 1 and way in FACTS["context"]:
        strategy["context"] = FACTS["context"][way]
        if way == "a2a+p2p":
            settings.assume("cp_comm_type a2a+p2p is taken as p2p: ring attention")
    elif cp > 1:
        settings.problem("cp_comm_type", f"found {way!r}, expected one of p2p, all_gather, a2a")
    strategy |= _read_overlap(settings, strategy, defaults)
    strategy |= read_pipeline(settings, pp, layers, recipe_cuts=bool(defaults.get("recipe_cuts")))
    strategy["recompute"] = _read_recomputation(settings, strategy, layers)
    return strategy | _read_offload(settings)


def read_data(
    settings: Settings, strategy: dict[str, Any], sequence: int | None, *, usual: int | None = None
) -> dict[str, Any]:
    """Return the keys of `data`; the strategy gets its micro-batch.

    Args:
        settings: Arguments by the name of their destination.
        strategy: With its degrees.
        sequence: Tokens of a sample.
        usual: Micro-batch of the program where neither file nor user states a batch.
    """
    batch = settings.counted("global_batch", "global_batch_size")
    usual = usual if batch is None else None
    micro = settings.counted("micro_batch", "micro_batch_size", usual=usual)
    batch = batch_of(settings, strategy, micro, settings.given.accumulation, batch)
    settings.need("sequence_length", sequence)
    return {"sequence_length": sequence, "global_batch": batch}


def refuse_pairs(settings: Settings) -> None:
    """Note arguments that Megatron asserts are not given together (`validate_args`)."""
    for one, other in (("bf16", "fp16"), ("swiglu", "squared_relu")):
        if settings.flag(one) and settings.flag(other):
            settings.problem(one, f"found true with {other}, expected one of them")


def _expert_ranks(settings: Settings, tp: int) -> int:
    """Return the ranks that hold the experts of a layer."""
    return settings.count("expert_model_parallel_size", 1) * settings.count(
        "expert_tensor_parallel_size", tp
    )


def _no_experts(settings: Settings) -> int:
    settings.value("expert_model_parallel_size")
    settings.value("expert_tensor_parallel_size")
    return 1


def _experts(settings: Settings, strategy: dict[str, Any], replicas: int) -> int:
    """Return the expert-parallel degree among replicas; `tp` ranks may hold experts as well."""
    tp = strategy["tp"]
    degree = settings.count("expert_model_parallel_size", 1)
    within = settings.count("expert_tensor_parallel_size", tp)
    if within not in (1, tp):
        settings.problem(
            "expert_tensor_parallel_size", f"found {within}, expected 1 or the tensor degree {tp}"
        )
    over_tensor = within == 1 and tp > 1
    if tp > 1:
        strategy["expert_over_tensor"] = over_tensor
    ep, rest = divmod(degree, tp) if over_tensor else (degree, 0)
    if rest or not ep or replicas % ep:
        settings.problem(
            "expert_model_parallel_size",
            f"found {degree}, expected {f'{tp} (tp) times ' if over_tensor else ''}a divisor of "
            f"the {replicas} data-parallel replicas, within which groups of experts are here: not "
            "across ranks of cp, or of tp with an expert_tensor_parallel_size",
        )
        return 1
    return ep


def _read_sharding(
    settings: Settings, strategy: dict[str, Any], replicas: int, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    is_sharded = settings.flag(
        "use_distributed_optimizer", default=defaults.get("use_distributed_optimizer", False)
    )
    is_sharded |= settings.value("optimizer") == LAYER_WISE
    copies = settings.count("num_distributed_optimizer_instances", 1)
    kind = settings.choice(
        "data_parallel_sharding_strategy",
        defaults.get("data_parallel_sharding_strategy", "no_shard"),
        _SHARDINGS,
    )
    if stage := settings.count("zero_stage", 0, least=0):  # of Megatron-DeepSpeed
        return {"sharding": f"zero{min(stage, 3)}"}
    if not settings.flag("use_megatron_fsdp") and not settings.flag("use_torch_fsdp2"):
        if copies > 1:
            settings.assume("the distributed optimizer shards over all replicas, not a part")
        return {"sharding": "zero1" if is_sharded else "none"}
    if settings.flag("use_torch_fsdp2"):
        kind = "zero3"
    if copies > 1 and kind == "zero3":
        if strategy["ep"] > 1 or replicas % copies:
            settings.problem(
                "num_distributed_optimizer_instances",
                f"found {copies}, expected a divisor of {replicas} replicas, without experts",
            )
            return {"sharding": kind}
        return {"sharding": "hybrid", "dp": copies, "fsdp": replicas // copies}
    return {"sharding": kind}


def _read_overlap(
    settings: Settings, strategy: dict[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    switches = {
        key: settings.flag(name, default=defaults.get(name, False))
        for key, name in (
            ("overlap_gradients", "overlap_grad_reduce"),
            ("overlap_parameters", "overlap_param_gather"),
            ("overlap_tensor", "tp_comm_overlap"),
        )
    }
    switches["overlap_pipeline"] = settings.flag("overlap_p2p_comm", default=True)
    holders = strategy["dp"] * strategy.get("fsdp", 1) * strategy["ep"] * strategy["cp"]
    needed = {
        "overlap_gradients": holders * strategy["tp"] > 1,
        "overlap_parameters": holders > 1 and strategy["sharding"] != "none",
        "overlap_tensor": strategy["tp"] > 1
        and (strategy["sequence_parallel"] or switches["overlap_tensor"]),
        "overlap_pipeline": strategy["pp"] > 1,
    }
    return {key: value for key, value in switches.items() if needed[key]}


def read_pipeline(
    settings: Settings, pp: int, layers: int, *, recipe_cuts: bool = False
) -> dict[str, Any]:
    """Return schedule, virtual stages and layers by chunk.

    Args:
        settings: Arguments by the name of their destination.
        pp: Pipeline degree.
        recipe_cuts: What does not divide is cut by a recipe that is not read.
    """
    text = settings.value("pipeline_model_parallel_layout")
    virtual = settings.count("virtual_pipeline_model_parallel_size", 1)
    virtual = settings.count("num_virtual_stages_per_pipeline_rank", virtual)
    per_chunk = settings.count("num_layers_per_virtual_pipeline_stage", 0, least=0)
    ends = [
        settings.count(f"decoder_{end}_pipeline_num_layers", 0, least=0)
        for end in ("first", "last")
    ]
    counted = [
        settings.flag(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")
    ]
    if pp == 1:
        return {}
    if text is not None:
        counts, is_moved = with_predicting(layout_layers(text), layout_predictions(text))
        if is_moved:
            settings.assume("a chunk of multi-token prediction has a layer of the one before it")
    else:
        slots = layers + sum(counted)
        virtual = _virtual(settings, slots / pp, per_chunk, ends) if per_chunk else virtual
        counts = even_cut(slots, pp, virtual, ends)
        for at, is_counted in ((0, counted[0]), (-1, counted[1])):
            if counts:
                counts[at] -= is_counted
    # Embedding and loss may stand in chunks of their own.
    if not counts and recipe_cuts and pp * virtual <= layers + 2:
        counts = list(chunk_layers(layers, pp * virtual))
        settings.assume("layers are cut as evenly as can be: the recipe has a layout of its own")
    if not counts or len(counts) % pp or sum(counts) != layers or min(counts) < 0:
        settings.problem(
            "pipeline_model_parallel_size",
            f"{layers} layers do not divide into {pp} stages of {virtual} chunks as the arguments "
            "say",
        )
        return {}
    virtual = len(counts) // pp
    found: dict[str, Any] = {
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
    }
    if tuple(counts) != chunk_layers(layers, len(counts)):
        found["stage_layers"] = counts
    return found


def _virtual(settings: Settings, layers: float, per_chunk: int, ends: list[int]) -> int:
    """Return the chunks of a stage of so many layers."""
    if layers % per_chunk and not any(ends):
        settings.problem(
            "num_layers_per_virtual_pipeline_stage",
            f"found {per_chunk}, expected a divisor of {layers:g}, the layers of a stage",
        )
    return max(1, int(layers // per_chunk))


def _read_recomputation(settings: Settings, strategy: dict[str, Any], layers: int) -> str:
    kind = settings.value("recompute_granularity")
    if settings.flag("recompute_activations"):
        kind = "selective"
    if settings.flag("checkpoint_activations"):  # until 2022
        kind = "full"
    if settings.flag("distribute_saved_activations"):
        settings.assume(
            "distribute_saved_activations is left out: each tensor rank has all that layers save"
        )
    for name in ("recompute_method", "recompute_num_layers"):
        settings.value(name)
    modules = words_of(settings.value("recompute_modules", ["core_attn"]))
    if kind is None:
        return "none"
    if kind == "selective":
        return _read_modules(settings, modules)
    if kind != "full":
        settings.problem("recompute_granularity", f"found {kind!r}, expected full or selective")
        return "none"
    return _read_full(settings, strategy, layers)


def _read_modules(settings: Settings, names: list[str]) -> str:
    """Return recomputation of modules of each layer."""
    possible = (*RECOMPUTED_MODULES, *FACTS["later_modules"])
    for name in names:
        if name not in possible:
            known = f"expected one or more of {', '.join(RECOMPUTED_MODULES)}"
            hint = did_you_mean(name, possible, before="; ", after="")
            settings.problem("recompute_modules", f"found '{name}', {known}{hint}")
    if others := [name for name in names if name in FACTS["later_modules"]]:
        settings.assume(f"recomputation of {', '.join(others)} is left out")
    known_here = [name for name in RECOMPUTED_MODULES if name in names]
    if known_here in ([], ["core_attn"]):
        return "selective" if known_here else "none"
    return MODULES + "+".join(known_here)


def _read_full(settings: Settings, strategy: dict[str, Any], layers: int) -> str:
    """Return recomputation of whole layers: of all, or of the first of each chunk."""
    method = settings.value("recompute_method")
    count = settings.count("recompute_num_layers", 1)
    if method not in ("block", "uniform") and not settings.flag("checkpoint_activations"):
        found = "nothing" if method is None else repr(method)
        settings.problem("recompute_method", f"found {found}, expected block or uniform with full")
    if method != "block":
        return "full"
    chunks = strategy["pp"] * strategy.get("virtual_stages", 1)
    per_chunk = layers // chunks
    count = min(count, max(1, per_chunk))
    every = max(1, round(per_chunk / count))
    if every * count != per_chunk:
        settings.assume(f"block_{every} for recomputation of {count} of {per_chunk} layers")
    return "full" if every == 1 else f"block_{every}"


def _read_offload(settings: Settings) -> dict[str, Any]:
    offload: dict[str, Any] = {}
    fraction = settings.number("optimizer_offload_fraction", 1.0)
    if settings.flag("optimizer_cpu_offload") and fraction:
        offload["optimizer"] = "host"
        if fraction != 1.0:
            why = "expected 1 or 0; no strategy here offloads a part of the state"
            settings.problem("optimizer_offload_fraction", f"found {fraction:g}, {why}")
    layers = settings.count("cpu_offloading_num_layers", 0, least=0)
    if layers and settings.flag("cpu_offloading", default=True):
        offload["activations"] = {"layers": layers, "to": "host", "prefetch": 1}
    return {"offload": offload} if offload else {}


def length_of(settings: Settings, global_batch: int) -> dict[str, Any]:
    """Return the steps of a run, which files state as iterations or as samples.

    Args:
        global_batch: Samples of a step.
    """
    if settings.value("rampup_batch_size") is not None:
        settings.assume(
            "rampup_batch_size is left out: all steps have the whole global batch, so the smaller "
            "and less efficient ones at the start are not predicted"
        )
    for name in ("train_iters", "train_samples"):
        if "$" in str(settings.value(name)):
            settings.assume(f"{name} {settings.pop(name)} is left out, as only a shell fills it in")
    if "train_iters" in settings:
        return {"steps": settings.count("train_iters", 1)}
    if "train_samples" in settings:
        return {"steps": max(1, settings.count("train_samples", 1) // global_batch)}
    return {}


def optimizer_of(settings: Settings) -> str:
    """Return the optimizer of a job."""
    words = {word: meaning for meaning, word in OPTIMIZERS.items()} | {LAYER_WISE: "muon"}
    found = settings.choice("optimizer", "adam", words)
    if found in MATRIX_OPTIMIZERS:
        usual = MATRIX_OPTIMIZERS[found][1]
        if (count := settings.count("muon_num_ns_steps", usual)) != usual:
            settings.assume(f"{usual} iterations of an update, {count} in the file")
        mode = settings.text("muon_tp_mode", "blockwise")
        if mode != "blockwise" and settings.count("tensor_model_parallel_size", 1) > 1:
            settings.assume(f"muon_tp_mode {mode} is taken as blockwise")
    return found

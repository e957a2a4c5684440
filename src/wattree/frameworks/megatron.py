"""Strategy, batch and numbers as Megatron's arguments, and back, by names of its argument parser.

Megatron-LM takes them as flags, Megatron-Bridge as keys of its configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.frameworks.framework import ConcreteJob
from wattree.frameworks.megatron_layout import layout, layout_layers
from wattree.frameworks.settings import Settings
from wattree.strategy import chunk_layers

#: What both name; see the file.
FACTS: Final[dict[str, Any]] = read_yaml(Path(__file__).with_name("megatron.yaml"))
#: Keys of a strategy that have arguments of their own.
KNOBS: Final = frozenset(
    {
        *("expert_over_tensor", "stage_layers", "overlap_gradients", "overlap_parameters"),
        *("overlap_tensor", "overlap_pipeline", "offload"),
    }
)
_SHARDED: Final = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
_SHARDINGS: Final = {
    "no_shard": "none",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}
_OPTIMIZERS: Final = {"adamw": "adam", "momentum": "sgd"}


def strategy_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return what of a job's strategy neither Megatron-LM nor Megatron-Bridge can express."""
    options, found = concrete.options, {}
    sharding, traffic = options.memory.sharding, options.traffic
    if concrete.compiled:
        found["compile"] = "found true, expected false: Megatron has fused kernels of its own"
    if sharding == "hybrid" and options.cp * options.ep > 1:
        found["strategy.sharding"] = "hybrid shards over cp and ep ranks as well; use zero3"
    if sharding in ("zero2", "zero3", "hybrid") and options.pp > 1:
        found["strategy.sharding"] = "Megatron-FSDP is for pp 1; use zero1 or none"
    has_experts = concrete.shape is not None and bool(concrete.shape.experts)
    if has_experts and options.tp > 1 and not options.parallelism.sequence_parallel:
        found["strategy.sequence_parallel"] = "experts beside tp need sequence_parallel: true"
    if traffic.offload.parameters or traffic.offload.tables or traffic.offload.overflow:
        found["strategy.offload"] = "only optimizer state and activations can wait on the host"
    offload = traffic.offload
    if offload.activations and (options.pp > 1 or options.memory.recompute != "none"):
        found["strategy.offload"] = "activations wait on the host without pp and recomputation only"
    if {offload.optimizer, offload.activations} - {None, "host"} or (
        offload.activations and offload.prefetch != 1
    ):
        found["strategy.offload"] = "found other than the host, one layer ahead"
    if options.memory.recompute.startswith("block_"):
        every = int(options.memory.recompute.removeprefix("block_"))
        most = max(concrete.stage_layers)
        if any(layers % every or layers != most for layers in concrete.stage_layers):
            found["strategy.recompute"] = (
                f"block_{every}: the same number of layers of each pipeline chunk is recomputed; "
                f"chunks have {', '.join(map(str, sorted(set(concrete.stage_layers))))} layers"
            )
    return found | _overlap_misfits(concrete)


def _overlap_misfits(concrete: ConcreteJob) -> dict[str, str]:
    overlaps = _overlaps(concrete)
    found: dict[str, str] = {}
    if overlaps.get("overlap_param_gather") and not overlaps["overlap_grad_reduce"]:
        found["strategy.overlap_parameters"] = "true needs overlap_gradients: true"
    if overlaps.get("tp_comm_overlap") and not concrete.options.parallelism.sequence_parallel:
        found["strategy.overlap_tensor"] = "true needs sequence_parallel: true"
    return found


def _overlaps(concrete: ConcreteJob) -> dict[str, bool]:
    """Return the switches of what moves beside computation, where there is anything to move."""
    options, present = concrete.options, concrete.options.present()

    def chosen(key: str) -> bool:
        value = getattr(options.traffic, key)
        return bool(getattr(concrete.software, key) if value is None else value)

    found: dict[str, bool] = {}
    if present["reductions"]:
        found["overlap_grad_reduce"] = chosen("overlap_gradients")
    if present["shards"]:
        found["overlap_param_gather"] = chosen("overlap_parameters")
    if options.tp > 1:
        found["tp_comm_overlap"] = chosen("overlap_tensor")
    if options.pp > 1:
        found["overlap_p2p_comm"] = chosen("overlap_pipeline")
    return found


def strategy_arguments(concrete: ConcreteJob) -> dict[str, Any]:
    """Return the arguments of strategy, batch and optimizer."""
    job, options = concrete.job, concrete.options
    found: dict[str, Any] = {
        "tensor_model_parallel_size": options.tp,
        "sequence_parallel": options.parallelism.sequence_parallel,
        "pipeline_model_parallel_size": options.pp,
        "context_parallel_size": options.cp,
        "micro_batch_size": options.pipeline.micro_batch,
        "global_batch_size": job.data.global_batch,
        "seq_length": job.data.sequence_length,
        "optimizer": _OPTIMIZERS.get(job.optimizer, job.optimizer),
        **_sharding(concrete),
        **_overlaps(concrete),
        **_recomputation(concrete),
    }
    if options.cp > 1:
        words = {meaning: word for word, meaning in reversed(FACTS["context"].items())}
        found["cp_comm_type"] = words.get(options.parallelism.context, "p2p")
    if concrete.shape is not None and concrete.shape.experts:
        over_tensor = options.parallelism.expert_over_tensor
        found["expert_model_parallel_size"] = options.ep * (options.tp if over_tensor else 1)
        found["expert_tensor_parallel_size"] = 1 if over_tensor else options.tp
    if options.pp > 1:
        found |= _pipeline(concrete)
    offload = options.traffic.offload
    if offload.optimizer:
        # The offloading optimizer takes the path of that one.
        found |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if offload.activations:
        found |= {"cpu_offloading": True, "cpu_offloading_num_layers": offload.layers}
    if job.training.steps > 1:
        found["train_iters"] = job.training.steps
    if job.training.learning_rate is not None:
        found["lr"] = job.training.learning_rate
    return found


def _sharding(concrete: ConcreteJob) -> dict[str, Any]:
    options = concrete.options
    kind = options.memory.sharding
    if kind in ("none", "zero1"):
        return {"use_distributed_optimizer": kind == "zero1"}
    return {
        "use_distributed_optimizer": True,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": _SHARDED.get(kind, "optim_grads_params"),
        "num_distributed_optimizer_instances": options.dp if kind == "hybrid" else 1,
    }


def _recomputation(concrete: ConcreteJob) -> dict[str, Any]:
    kind = concrete.options.memory.recompute
    if kind == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    if kind.startswith("block_"):
        every = int(kind.removeprefix("block_"))
        return {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": max(concrete.stage_layers) // every,
        }
    if kind == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def _pipeline(concrete: ConcreteJob) -> dict[str, Any]:
    layers = concrete.stage_layers
    if len(set(layers)) > 1:
        return {"pipeline_model_parallel_layout": layout(layers)}
    virtual = concrete.options.pipeline.virtual_stages
    return {"virtual_pipeline_model_parallel_size": virtual} if virtual > 1 else {}


# ---------------------------------------------------------------- and back


def read_strategy(
    settings: Settings, *, layers: int, has_experts: bool, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the strategy that arguments describe.

    Args:
        settings: Arguments by the name of their destination.
        layers: Of the model.
        has_experts: The model has layers of experts.
        defaults: Of switches that one of the programs has on.
    """
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
        "micro_batch": settings.count("micro_batch_size", 1),
    }
    ep = _experts(settings, strategy, replicas) if has_experts else _no_experts(settings)
    strategy |= {"ep": ep, "dp": replicas // ep}
    strategy |= _read_sharding(settings, strategy, replicas, defaults)
    way = _first(settings.value("cp_comm_type", "p2p"))
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


def _first(value: object) -> str:
    return str(value[0] if isinstance(value, list) and value else value).lower()


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
            f"the {replicas} data-parallel replicas",
        )
        return 1
    return ep


def _read_sharding(
    settings: Settings, strategy: dict[str, Any], replicas: int, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    is_sharded = settings.flag(
        "use_distributed_optimizer", default=defaults.get("use_distributed_optimizer", False)
    )
    copies = settings.count("num_distributed_optimizer_instances", 1)
    kind = settings.choice(
        "data_parallel_sharding_strategy",
        defaults.get("data_parallel_sharding_strategy", "no_shard"),
        _SHARDINGS,
    )
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
            return {}
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
        "overlap_tensor": strategy["tp"] > 1,
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
        layers: Of the model.
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
        counts = layout_layers(text)
    else:
        slots = layers + sum(counted)
        if per_chunk:
            virtual = max(1, slots // (pp * per_chunk))
        counts = _cut(slots, pp, virtual, ends)
        for at, is_counted in ((0, counted[0]), (-1, counted[1])):
            if counts:
                counts[at] -= is_counted
    if not counts and recipe_cuts:
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


def _cut(slots: int, pp: int, virtual: int, ends: list[int]) -> list[int]:
    """Return layers by chunk: even but for first and last stage, whose layers may be given."""
    given = [end for end in ends if end]
    middle, rest = divmod(slots - sum(given), max(1, pp - len(given)))
    stages = [ends[0] or middle, *[middle] * (pp - 2), ends[1] or middle]
    if rest or any(stage % virtual for stage in stages):
        return []
    return [stage // virtual for _ in range(virtual) for stage in stages]


def _read_recomputation(settings: Settings, strategy: dict[str, Any], layers: int) -> str:
    kind = settings.value("recompute_granularity")
    if settings.flag("recompute_activations"):
        kind = "selective"
    method = settings.value("recompute_method", "uniform")
    count = settings.count("recompute_num_layers", 1)
    modules = settings.value("recompute_modules", ["core_attn"])
    if kind is None:
        return "none"
    if kind == "selective":
        names = modules if isinstance(modules, list) else str(modules).split()
        if others := [str(name) for name in names if name != "core_attn"]:
            settings.assume(f"recomputation of {', '.join(others)} is left out")
        return "selective" if "core_attn" in names else "none"
    if kind != "full":
        settings.problem("recompute_granularity", f"found {kind!r}, expected full or selective")
        return "none"
    if method != "block":
        return "full"
    chunks = strategy["pp"] * strategy.get("virtual_stages", 1)
    per_chunk = layers // chunks
    every = max(1, round(per_chunk / count))
    if every * count != per_chunk:
        settings.assume(f"block_{every} for recomputation of {count} of {per_chunk} layers")
    return "full" if every == 1 else f"block_{every}"


def _read_offload(settings: Settings) -> dict[str, Any]:
    offload: dict[str, Any] = {}
    settings.number("optimizer_offload_fraction", 1.0)
    settings.value("use_precision_aware_optimizer")
    if settings.flag("optimizer_cpu_offload"):
        offload["optimizer"] = "host"
    layers = settings.count("cpu_offloading_num_layers", 0, least=0)
    if layers and settings.flag("cpu_offloading", default=True):
        offload["activations"] = {"layers": layers, "to": "host", "prefetch": 1}
    return {"offload": offload} if offload else {}


def optimizer_of(settings: Settings) -> str:
    """Return the optimizer of a job."""
    words = {word: meaning for meaning, word in _OPTIMIZERS.items()}
    return settings.choice("optimizer", "adam", words)

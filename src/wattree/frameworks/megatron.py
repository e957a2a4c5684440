"""Strategy, batch and numbers as Megatron's arguments, by names of its argument parser.

Megatron-LM takes them as flags, Megatron-Bridge as keys of its configuration.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from wattree.cost.algorithms.choose import nccl_capability
from wattree.files import read_yaml
from wattree.frameworks.framework import ConcreteJob
from wattree.frameworks.megatron_layout import layout
from wattree.strategy import recomputed_modules

#: What both name; see the file.
FACTS: Final[dict[str, Any]] = read_yaml(Path(__file__).with_name("megatron.yaml"))
#: Arguments that cannot matter, of flags and in the groups of a configuration.
IGNORED: Final = tuple(name for each in FACTS["ignored"] for name in (each, f"*.{each}"))
#: Keys of a strategy that have arguments of their own.
KNOBS: Final = frozenset(
    {
        *("expert_over_tensor", "stage_layers", "overlap_gradients", "overlap_parameters"),
        *("overlap_tensor", "overlap_pipeline", "offload"),
    }
)
#: Trait → values that have arguments.
TRAITS: Final = {
    **dict.fromkeys(
        ("gradient_bytes", "reduce_bytes", "first_moment_bytes", "second_moment_bytes"), (2.0, 4.0)
    ),
    "cuda_graphs": ("router", "partial", "full"),
    "moe_dispatch": ("alltoall", "deepep", "hybridep"),
    "moe_overlap": (True,),
    "moe_dropless": (False,),
    "quantized_attention": (True,),
    "attention_kernels": ("ampere", "native"),
    "fused_attention": (False, True),
    **dict.fromkeys(
        ("overlap_gradients", "overlap_parameters", "overlap_tensor", "overlap_pipeline"),
        (False, True),
    ),
}
#: Width of a moment of Adam → its format. [B]
MOMENTS: Final = {2.0: "bf16", 4.0: "fp32"}
_SHARDED: Final = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
#: Optimizer of a job → `--optimizer`.
OPTIMIZERS: Final = {"adamw": "adam", "momentum": "sgd", "muon": "muon"}
#: The same with whole matrices spread over replicas (core/optimizer/layer_wise_optimizer.py).
LAYER_WISE: Final = "dist_muon"
#: Overlap of a strategy → its argument, neither of which Muon has in Megatron-LM (`validate_args`).
_OF_REPLICAS: Final = {
    "overlap_gradients": "overlap_grad_reduce",
    "overlap_parameters": "overlap_param_gather",
}


def strategy_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return what of a job's strategy neither Megatron-LM nor Megatron-Bridge can express."""
    options, found = concrete.options, {}
    traffic = options.traffic
    if concrete.compiled:
        found["compile"] = "found true, expected false: Megatron has fused kernels of its own"
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
    return found | _overlap_misfits(concrete) | _trait_misfits(concrete)


def muon_misfits(
    concrete: ConcreteJob, overlaps: Collection[str] = tuple(_OF_REPLICAS)
) -> dict[str, str]:
    """Return what a job that Muon trains has and Megatron-Core 0.16 does not do with it.

    Args:
        overlaps: Of a strategy, that the program has none of then.
    """
    job, options, found = concrete.job, concrete.options, dict[str, str]()
    if job.optimizer != "muon":
        return found
    if options.memory.sharding not in ("none", "zero1"):
        kind = options.memory.sharding
        found["strategy.sharding"] = f"'{kind}' with muon, expected none or zero1 (dist_muon)"
    if options.traffic.offload.optimizer:
        found["strategy.offload"] = "muon's state stays on the device, with its matrices"
    if job.precision == "fp16":
        found["precision"] = "found fp16 with muon, expected bf16 or fp32"
    chosen = _overlaps(concrete)
    for key in overlaps:
        if chosen.get(_OF_REPLICAS[key]):
            how = f"set strategy.{key}: false"
            found[f"strategy.{key}"] = f"true, as software does by default; not with muon: {how}"
    return found


def _trait_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return the traits that other ones have no arguments next to."""
    traits, software, found = concrete.job.traits, concrete.software, dict[str, str]()
    if "gradient_bytes" in traits and software.gradient_bytes != software.reduce_bytes:
        own, reduced = software.gradient_bytes, software.reduce_bytes
        found["traits.gradient_bytes"] = (
            f"found {own:g}, expected {reduced:g}, as reduce_bytes: one argument says both"
        )
    if _moments(concrete) and concrete.options.memory.sharding == "none":
        stated = (each for each in ("first_moment_bytes", "second_moment_bytes") if each in traits)
        name = next(stated, "first_moment_bytes")
        found[f"traits.{name}"] = "moments of other formats need sharding: zero1"
    if not software.moe_dropless and software.moe_dispatch != "alltoall":
        found["traits.moe_dropless"] = "false needs moe_dispatch: alltoall"
    return found


def _overlap_misfits(concrete: ConcreteJob) -> dict[str, str]:
    overlaps = _overlaps(concrete)
    found: dict[str, str] = {}
    if overlaps.get("overlap_param_gather") and not overlaps["overlap_grad_reduce"]:
        found["strategy.overlap_parameters"] = "true needs overlap_gradients: true"
    is_parallel = concrete.options.parallelism.sequence_parallel
    if (
        overlaps.get("tp_comm_overlap")
        and concrete.shape is not None
        and concrete.shape.kv_lora_rank
    ):
        found["strategy.overlap_tensor"] = (
            "true is not possible with latent attention: Transformer Engine has no buffers for its "
            "projections"
        )
    if concrete.options.traffic.overlap_tensor and not is_parallel:
        found["strategy.overlap_tensor"] = "true needs sequence_parallel: true"
    return found


def _overlaps(concrete: ConcreteJob) -> dict[str, bool]:
    """Return the options that overlap communication with computation, if there is any."""
    options, present = concrete.options, concrete.options.present()

    def chosen(key: str) -> bool:
        value = getattr(options.traffic, key)
        return bool(getattr(concrete.software, key) if value is None else value)

    found: dict[str, bool] = {}
    if present["reductions"]:
        found["overlap_grad_reduce"] = chosen("overlap_gradients")
    if present["shards"]:
        found["overlap_param_gather"] = chosen("overlap_parameters")
    if options.tp > 1:  # there is nothing to overlap with but gathers and scatters of positions
        is_parallel = options.parallelism.sequence_parallel
        found["tp_comm_overlap"] = is_parallel and chosen("overlap_tensor")
    if options.pp > 1:
        found["overlap_p2p_comm"] = chosen("overlap_pipeline")
    return found


def predictions_of(concrete: ConcreteJob) -> int:
    """Return the further tokens that modules of multi-token prediction of a job's model predict."""
    own = concrete.job.model.arguments.get("predictions", 0)
    return int(own or (concrete.shape.predictions if concrete.shape is not None else 0))


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
        "optimizer": OPTIMIZERS.get(job.optimizer, job.optimizer),
        **_sharding(concrete),
        **_moments(concrete),
        **_overlaps(concrete),
        **_recomputation(concrete),
        **_kernels(concrete),
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


def _moments(concrete: ConcreteJob) -> dict[str, Any]:
    """Return the formats of Adam's moments, where the job states any."""
    software = concrete.software
    is_stated = software.first_moment_bytes or software.second_moment_bytes
    if not is_stated or concrete.job.optimizer != "adamw":
        return {}
    widths = (software.first_moment_bytes, software.second_moment_bytes)
    first, second = (MOMENTS.get(width or max(MOMENTS)) for width in widths)
    return {
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": first,
        "exp_avg_sq_dtype": second,
    }


def _sharding(concrete: ConcreteJob) -> dict[str, Any]:
    options = concrete.options
    kind = options.memory.sharding
    if concrete.job.optimizer == "muon":
        name = LAYER_WISE if kind == "zero1" else "muon"
        # Each tensor-parallel rank iterates on its part, as predicted.
        return {"use_distributed_optimizer": False, "optimizer": name, "muon_tp_mode": "blockwise"}
    if kind in ("none", "zero1"):
        return {"use_distributed_optimizer": kind == "zero1"}
    return {
        "use_distributed_optimizer": True,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": _SHARDED.get(kind, "optim_grads_params"),
        "num_distributed_optimizer_instances": options.dp if kind == "hybrid" else 1,
        # Megatron-FSDP needs the first; without the second each device makes the whole model.
        "gradient_accumulation_fusion": False,
        "init_model_with_meta_device": True,
    }


#: Compute capability from which on collectives and the kernels that hide them need no one queue.
_BLACKWELL: Final = 100


def connections(concrete: ConcreteJob) -> int:
    """Return how many queues of work a device has, `CUDA_DEVICE_MAX_CONNECTIONS`.

    As Megatron-Bridge sets it (scripts/performance): one keeps collectives of tensor and context
    ranks before the kernels that hide them, which Blackwell does by itself; Megatron-FSDP refuses
    one, and DeepEP's kernels need many.
    """
    options, software = concrete.options, concrete.software
    if (nccl_capability(concrete.job.cluster.node.device) or 0) >= _BLACKWELL:
        return 32
    is_fsdp = options.memory.shards_gradients
    if options.tp * options.cp > 1 and not is_fsdp and not software.moe_overlap:
        return 1
    return 32 if options.ep > 1 and software.moe_dispatch != "alltoall" else 8


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
    if modules := recomputed_modules(kind):
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    if kind == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def _kernels(concrete: ConcreteJob) -> dict[str, Any]:
    """Return the arguments of graphs, of attention and of how tokens travel to their experts."""
    software, found = concrete.software, dict[str, Any]()
    experts = concrete.shape is not None and bool(concrete.shape.experts)
    if software.cuda_graphs == "full":
        found = {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}
        found["check_for_nan_in_loss_and_grad"] = False  # the host would look at each loss
    elif software.cuda_graphs == "partial" or (experts and software.cuda_graphs == "router"):
        scope = ["attn"] * (software.cuda_graphs == "partial")
        scope += ["moe_router", "moe_preprocess"] * experts
        found = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": scope}
    if found:
        found["te_rng_tracker"] = True
    backend = software.moe_dispatch
    # Megatron-Core refuses `flex` on a single rank of experts, so that a default is not written.
    exchanges = concrete.options.ep > 1 or "moe_dispatch" in concrete.job.traits
    if experts and exchanges and backend != "alltoall":
        found |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
    elif experts:
        found |= {"moe_token_dispatcher_type": "alltoall"}
    if experts and software.moe_overlap:
        found["overlap_moe_expert_parallel_comm"] = True
    if experts and not software.moe_dropless:
        load = concrete.options.expert_load
        found["moe_expert_capacity_factor"] = (load and load.capacity) or 1.0
        found["moe_pad_expert_input_to_capacity"] = True
    if backend := _attention_backend(concrete):
        found["attention_backend"] = backend
    if software.quantized_attention:
        found["fp8_dot_product_attention"] = True
    return found


def _attention_backend(concrete: ConcreteJob) -> str:
    """Return the kernels of attention that a job states; empty where Megatron chooses."""
    if not concrete.software.fused_attention:
        return "unfused"
    if "attention_kernels" not in concrete.job.traits:
        return ""
    return "flash" if concrete.software.attention_kernels == "ampere" else "fused"


def _pipeline(concrete: ConcreteJob) -> dict[str, Any]:
    layers = concrete.stage_layers
    if len(set(layers)) > 1:
        text = layout(layers, predictions=predictions_of(concrete))
        return {"pipeline_model_parallel_layout": text}
    virtual = concrete.options.pipeline.virtual_stages
    return {"virtual_pipeline_model_parallel_size": virtual} if virtual > 1 else {}

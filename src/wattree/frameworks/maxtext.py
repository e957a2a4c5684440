"""MaxText: overrides of its base.yml, with the mesh of its axes over nodes and within them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from wattree.capture.shape import TransformerShape
from wattree.frameworks.found import reader
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Written
from wattree.frameworks.launch import ENTER, as_yaml, first_of, hosts_to_fill_in
from wattree.frameworks.maxtext_model import (
    AXES,
    CONTEXTS,
    OPTIMIZERS,
    PRECISIONS,
    SEQUENCE,
    facts,
)
from wattree.frameworks.maxtext_read import MOMENTS, find
from wattree.frameworks.maxtext_remat import tensors_of
from wattree.frameworks.maxtext_values import maxtext_values
from wattree.frameworks.megatron_model import SWIGLU
from wattree.strategy import StrategyOptions, saved_outputs

FILE: Final = "maxtext.yml"
_SHARDINGS: Final = ("none", "zero1", "zero3", "hybrid")
#: Families whose matrices it knows for Muon (configs/types.py: DeepSeek, Qwen 3, Gemma 3, Llama 2).
_WITH_MUON: Final = ("llama", "qwen3", "gemma3_text", "deepseek_v2", "deepseek_v3")
#: From the inside of a node out, so that the axes that talk most are within it.
_INWARD: Final = ("tp", "cp", "ep", "fsdp", "dp", "pp")
_HOSTS: Final = (
    'JAX_COORDINATOR_IP="${{MASTER_ADDR:?}}" JAX_COORDINATOR_PORT="${{MASTER_PORT:-3333}}" '
    'NNODES={nodes} NODE_RANK="${{NODE_RANK:?}}" '
)


#: JAX takes 75 % of a GPU's memory by itself; and XLA has to be told to hide collectives
#: (NVIDIA/JAX-Toolbox, rosetta/docs/GPU_performance.md).
_ON_GPUS: Final = """\
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"
export XLA_FLAGS="${XLA_FLAGS:---xla_gpu_enable_latency_hiding_scheduler=true}"
"""


#: Kernels, and the documents of a sequence that they need where data is packed, which it is by
#: default (maxtext/configs/types.py): as many as MaxText's own configurations of GPUs have.
_GPU_ATTENTION: Final = {"attention": "cudnn_flash_te", "max_segments_per_seq": 32}


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with MaxText."""
    job, model = concrete.job, _model(concrete)
    misfits = first_of(_misfits(concrete))
    if misfits or model is None or not {job.precision} <= PRECISIONS.keys():
        return Written(misfits=misfits)
    joins = concrete.nodes > 1 and _device_kind(concrete) != "tpu"  # hosts of a pod find each other
    fill_in = [f"`dataset_type` and its paths in {FILE}: the data; as written, random tokens."]
    if joins:
        fill_in += hosts_to_fill_in(concrete)
        fill_in.append("`NODE_RANK` in the environment of `launch.sh`: number of the host, from 0.")
    start = f"python3 -m maxtext.trainers.pre_train.train {FILE}"
    return Written(
        files={FILE: as_yaml(_settings(concrete, model))},
        launch=ENTER
        + (_ON_GPUS if _device_kind(concrete) == "gpu" else "")
        + (_HOSTS.format(nodes=concrete.nodes) if joins else "")
        + start
        + ' "$@"',
        fill_in=tuple(fill_in),
        assumed=(
            "without recomputation MaxText keeps every product and attention, and computes what is "
            "between them again (minimal_with_context)",
        )
        if concrete.options.memory.recompute == "none"
        else (),
    )


def _settings(concrete: ConcreteJob, model: dict[str, Any]) -> dict[str, Any]:
    job, options = concrete.job, concrete.options
    kind = _device_kind(concrete)
    found: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "wattree",
        "base_output_directory": "output",
        "hardware": kind if kind in {"gpu", "tpu"} else "cpu",
        **model,
        **_routing(concrete),
        "max_target_length": job.data.sequence_length,
        **_batch(concrete),
        **_mesh(concrete),
        **_policy(options.memory.recompute),
        **PRECISIONS[job.precision],
        "opt_type": OPTIMIZERS[job.optimizer],
        "dataset_type": "synthetic",
        # The kernels of GPUs; by itself MaxText takes those that it has for all devices.
        **(_GPU_ATTENTION if kind == "gpu" else {}),
        "enable_checkpointing": False,
        "steps": job.training.steps if job.training.steps > 1 else 10,
    }
    if options.memory.sharding == "zero1":
        found["shard_optimizer_over_data"] = True
    if options.cp > 1:
        found["context_parallel_strategy"] = CONTEXTS[options.parallelism.context]
        found["context_parallel_load_balance"] = options.value("context_order") == "zigzag"
    if _accumulates_fp8(concrete):
        found["quantization"] = "te_fp8_currentscaling"
    if width := concrete.software.first_moment_bytes:
        found["mu_dtype"] = "float32" if width == MOMENTS["float32"] else "bfloat16"
    if job.training.learning_rate is not None:
        found["learning_rate"] = job.training.learning_rate
    if (slices := _slices(concrete)[0]) > 1:
        found["num_slices"] = slices
    return found


def _routing(concrete: ConcreteJob) -> dict[str, Any]:
    """Return how tokens go to experts: kernels of GPUs, and groups that its models leave out."""
    shape, found = concrete.shape, dict[str, Any]()
    if shape is None or not shape.experts:
        return found
    if _device_kind(concrete) == "gpu":
        found["megablox"] = False  # a kernel of TPUs, which Pallas interprets elsewhere (moe.py)
    if shape.expert_groups > 1:
        found |= {"n_routing_groups": shape.expert_groups, "topk_routing_group": shape.group_top_k}
    return found


def _misfits(concrete: ConcreteJob) -> Iterator[tuple[str, str]]:
    yield from _mesh_misfits(concrete)
    yield from _memory_misfits(concrete.options)
    if concrete.options.pp > 1:
        yield from _pipeline_misfits(concrete)
    if _accumulates_fp8(concrete) and _device_kind(concrete) != "gpu":
        yield (
            "precision",
            "found fp8 with several micro-batches, which it accumulates on GPUs alone",
        )
    if not concrete.compiled:
        yield "compile", "found false, expected true: JAX always compiles"
    kind = concrete.config.get("model_type", "llama")
    if concrete.job.optimizer == "muon" and kind not in _WITH_MUON:
        yield "optimizer", f"found muon, which MaxText has for {', '.join(_WITH_MUON)} alone"
    if _model(concrete) is None:
        yield (
            "model",
            f"found {concrete.model.name}, expected a model of MaxText's "
            f"({', '.join(facts()['models'])}) or one with the layers of Llama",
        )


def _accumulates_fp8(concrete: ConcreteJob) -> bool:
    """Whether gradients are accumulated, which MaxText's own fp8 refuses (configs/types.py)."""
    is_fp8 = concrete.job.precision == "fp8"
    return is_fp8 and concrete.micro_batches > 1 and concrete.options.pp == 1


def _policy(recompute: str) -> dict[str, str]:
    """Return the policy of a kind of recomputation."""
    names = {kind: name for name, kind in reversed(facts()["remat"].items())}
    names |= {"full": "full", "none": "minimal_with_context", "selective_matmul": "minimal"}
    if recompute in names:
        return {"remat_policy": names[recompute]}
    return {"remat_policy": "custom", **tensors_of(saved_outputs(recompute))}


def _device_kind(concrete: ConcreteJob) -> str:
    return concrete.job.cluster.node.device.kind


def _slices(concrete: ConcreteJob) -> tuple[int, int]:
    """Return slices, which an inner network joins, and the devices of one: of TPUs a whole pod."""
    if _device_kind(concrete) == "tpu":
        ranks, pod = concrete.options.ranks, concrete.job.cluster.node.scale_up.domain_devices
        return (1, ranks) if ranks <= pod else (ranks // pod, pod)
    return concrete.nodes, concrete.devices_per_node


def _placed(concrete: ConcreteJob) -> tuple[dict[str, int], dict[str, int]]:
    """Return the degrees within a node and over nodes, by our axes."""
    _, left = _slices(concrete)
    inside, over = {}, {}
    for axis in _INWARD:
        degree = concrete.options.value(axis)
        inside[axis] = math.gcd(degree, left)
        left //= inside[axis]
        over[axis] = degree // inside[axis]
    return inside, over


def _mesh(concrete: ConcreteJob) -> dict[str, int]:
    """Return the settings of the mesh; on one node all axes are within it."""
    names, options = {**AXES, "tp": SEQUENCE}, concrete.options
    if options.memory.sharding == "zero3":
        names["dp"] = "fsdp"
    shards = names["fsdp" if options.memory.sharding == "hybrid" else "dp"]
    found: dict[str, int] = {}
    for level, degrees in zip(("ici", "dcn"), _placed(concrete), strict=True):
        # Both have a default that takes what is left over: ici_fsdp and dcn_data are -1.
        of_axis = dict.fromkeys(("data", "fsdp"), 1)
        for axis, degree in degrees.items():
            if degree > 1 or names[axis] in of_axis:
                of_axis[names[axis]] = of_axis.get(names[axis], 1) * degree
        found |= {f"{level}_{axis}_parallelism": degree for axis, degree in of_axis.items()}
    found[f"ici_{shards}_parallelism"] *= concrete.job.cluster.node.device.cores
    return found


def _batch(concrete: ConcreteJob) -> dict[str, Any]:
    """Return samples of a device, and micro-batches: of the pipeline, or accumulated."""
    options, count = concrete.options, concrete.micro_batches
    batch = concrete.job.data.global_batch / concrete.job.cluster.node.device.cores
    if options.pp > 1:
        return {
            "per_device_batch_size": batch / options.ranks,
            "num_pipeline_microbatches": count,
            "num_layers_per_pipeline_stage": concrete.model.layers
            // (options.pp * options.pipeline.virtual_stages),
            "scan_layers": False,
        }
    return {
        "per_device_batch_size": batch / count / options.ranks,
        "gradient_accumulation_steps": count,
    }


def _mesh_misfits(concrete: ConcreteJob) -> Iterator[tuple[str, str]]:
    options, (slices, per_node) = concrete.options, _slices(concrete)
    inside, _ = _placed(concrete)
    if slices > 1 and math.prod(inside.values()) != per_node:
        yield "strategy.dp", f"found degrees that do not fill nodes of {per_node} devices"
    if options.cp > 1 and options.parallelism.context not in CONTEXTS:
        yield (
            "strategy.context",
            f"found '{options.parallelism.context}'; expected {' or '.join(CONTEXTS)}",
        )
    cores = concrete.job.cluster.node.device.cores
    if options.pipeline.micro_batch % cores:
        yield (
            "strategy.micro_batch",
            f"found {options.pipeline.micro_batch}, expected a multiple of {cores}: each device is "
            f"{cores} of JAX, which share its samples",
        )
    size = _batch(concrete)["per_device_batch_size"] * cores
    if int(options.ranks * size) != round(options.ranks * size):
        yield (
            "strategy.micro_batch",
            f"found {size} samples per device, which it rounds to another batch",
        )


def _memory_misfits(options: StrategyOptions) -> Iterator[tuple[str, str]]:
    sharding = options.memory.sharding
    if sharding not in _SHARDINGS:
        yield "strategy.sharding", f"found '{sharding}', expected one of {', '.join(_SHARDINGS)}"
    for axis in ("cp", "ep"):
        if options.value(axis) > 1 and sharding != "zero3":
            yield (
                f"strategy.{axis}",
                f"found above 1 with {sharding}: it shards weights over it; use zero3",
            )
    kinds = sorted(set(facts()["remat"].values()))
    if options.memory.recompute not in kinds and not saved_outputs(options.memory.recompute):
        yield (
            "strategy.recompute",
            f"found '{options.memory.recompute}', expected one of {', '.join(kinds)}",
        )


def _pipeline_misfits(concrete: ConcreteJob) -> Iterator[tuple[str, str]]:
    options = concrete.options
    chunks = options.pipeline.virtual_stages
    layers = concrete.model.layers
    if layers % (options.pp * chunks):
        yield (
            "strategy.pp",
            f"found {options.pp}, but {layers} layers do not divide into "
            f"{options.pp} × {chunks} chunks",
        )


def _model(concrete: ConcreteJob) -> dict[str, Any] | None:
    """Return the settings of the model; None for one that MaxText does not have."""
    names = {ours: name for name, ours in facts()["also"].items()} | facts()["models"]
    if concrete.model_name in names:
        return {"model_name": names[concrete.model_name]}
    shape = concrete.shape
    if shape is None or shape != _like_llama(shape) or shape.activation.lower() not in SWIGLU:
        return None
    return {
        "base_emb_dim": shape.hidden,
        "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads or shape.heads,
        "base_mlp_dim": shape.ffn or 4 * shape.hidden,
        "base_num_decoder_layers": shape.layers,
        "head_dim": shape.head_dim or shape.hidden // shape.heads,
        "vocab_size": shape.vocab,
        "decoder_block": "llama2",
        "mlp_activations": ["silu", "linear"],
        "logits_via_embedding": shape.tied_embedding,
        "enable_dropout": False,
    }


def _like_llama(shape: TransformerShape) -> TransformerShape:
    """Return a Llama of the sizes of another shape."""
    sizes = ("layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn", "max_positions")
    others = ("name", "architecture", "sources", "activation", "tied_embedding")
    kept = {key: getattr(shape, key) for key in (*sizes, *others)}
    return TransformerShape(**kept, gated=True, norm="rms", positions="rotary")


FRAMEWORKS.register("maxtext")(
    Framework(
        name="maxtext",
        title="MaxText",
        versions="maxtext 0.2.5",
        source="https://maxtext.readthedocs.io",
        software=("maxtext",),
        knobs=frozenset({"context_order", "expert_over_tensor"}),
        precisions=tuple(PRECISIONS),
        optimizers=tuple(OPTIMIZERS),
        traits={"first_moment_bytes": (*MOMENTS.values(),)},
        ignored=tuple(facts()["ignored"]),
        write=write,
        parse=maxtext_values,
        read=reader(find, maxtext_values),
    )
)

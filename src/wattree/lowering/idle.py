"""Find strategy settings that have no effect on the model, as warnings like those of `job.idle`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Final

from wattree.capture.generation import LATENT
from wattree.cost import Software
from wattree.cost.attention_rates import has_newer_matrix_units, releases_differ
from wattree.cost.other_software import traits_named
from wattree.cost.precisions import WIDE
from wattree.graph import ModelGraph, Operator, OperatorKind, TensorRole
from wattree.hardware import Cluster, Device, Precision
from wattree.job import Job
from wattree.lowering.host_stretch import REPLAYED, is_replayed
from wattree.lowering.table_updates import has_trained_tables
from wattree.strategy import SPATIAL, Offload, Strategy, StrategyOptions
from wattree.strategy.parts import has_roles, is_sample_table
from wattree.strategy.presets.spatial import spatial_dim
from wattree.units import counted

#: A choice that affects less than this share of the model's matmuls produces a warning: their
#: time, and what it could save, is below that of noise between two runs of a job.
_SLIGHT: Final = 0.05
#: Recomputed layers with less than this share leave most activations stored.
_MOST: Final = 0.5
#: The smallest share that one decimal of a percent shows.
_SHOWN: Final = 5e-4
#: Operators that tensor parallelism splits; the others are replicated on all ranks.
_SPLIT_BY_TENSOR: Final = (
    TensorRole.COLUMN,
    TensorRole.ROW,
    TensorRole.VOCABULARY,
    TensorRole.EITHER,
)
#: What a model may lack → traits that concern nothing else.
_TRAITS_OF: Final = {
    "convolutions": (
        "channels_last",
        "channels_first",
        "tuned_convolutions",
        "tf32_convolutions",
    ),
    "experts": ("moe_dropless", "moe_overlap", "moe_dispatch", "moe_fused_experts"),
    "trained embedding tables": ("sparse_gradients", "full_table_state"),
}
_SOFTWARE_DEFAULT: Final = Offload()
#: Precisions of linear layers alone: everything else stays at 16 bit.
_OF_LINEAR_LAYERS: Final = (Precision.FP8, Precision.MXFP8, Precision.NVFP4, Precision.INT8)


def idle_choices(job: Job, model: ModelGraph) -> tuple[str, ...]:
    """Return a line `key: why` for each choice of the job's strategy that has no effect."""
    options, found = job.strategy, _idle_traits(job, model)
    if isinstance(options, str):
        return tuple(found)
    found += [*_idle_all_to_all(job, options, model), *_idle_dispatch(job, options, model)]
    found += [*_idle_statistics(options, model), *_idle_splits(options, model)]
    found += [*_idle_prefetch(job, options), *_idle_recomputation(options, model)]
    if has_experts(model):
        return tuple(found)
    if (load := options.expert_load) is not None:
        key = "imbalance" if load.capacity is None else "capacity"
        found.append(f"strategy.expert_{key}: has no effect: {model.name} has no experts")
    if not isinstance(options, StrategyOptions):
        return tuple(found)
    if options.ep > 1:
        found.append(
            f"strategy.ep: {options.ep} has no effect of its own: {model.name} has no experts, so "
            f"these ranks are replicas like those of dp; use dp{_of_single_experts(model)}"
        )
    if not options.parallelism.expert_over_tensor:
        found.append(
            f"strategy.expert_over_tensor: false has no effect: {model.name} has no experts; leave "
            "it out"
        )
    return tuple(found)


def _of_single_experts(model: ModelGraph) -> str:
    """Return a warning for experts that a captured model calls one by one."""
    if model.own_family or not any("expert" in operator.path for operator in model.operators):
        return ""
    return (
        ", or hold the weights of all experts in one tensor (experts, in, out) that one bmm or "
        "einsum multiplies with: experts that are called one by one cannot be spread"
    )


def _idle_traits(job: Job, model: ModelGraph) -> list[str]:
    """Return a warning for each trait of what the model does not have."""
    kinds = {operator.kind for operator in model.operators}
    has = {
        "convolutions": OperatorKind.CONVOLUTION in kinds,
        "experts": has_experts(model),
        "trained embedding tables": has_trained_tables(model),
    }
    of_software = traits_named(job.software_name, job.precision)
    found = [
        f"traits.{name}: has no effect: {model.name} has no {part}; leave it out"
        for part, names in _TRAITS_OF.items()
        for name in names
        if name in job.traits and name not in of_software and not has[part]
    ]
    graphs = str(job.traits.get("cuda_graphs"))
    in_part = graphs in REPLAYED and not has["experts"]
    if in_part and not any(is_replayed(operator.path, graphs) for operator in model.operators):
        found.append(
            f"traits.cuda_graphs: {graphs} has no effect: parts of {model.name} are not known as "
            "attention or routing, which it replays; leave it out, or use full"
        )
    return found


def _idle_all_to_all(
    job: Job, strategy: Strategy | StrategyOptions, model: ModelGraph
) -> list[str]:
    """Return a warning for an algorithm of all-to-alls where replicas and stages have none."""
    own = set(job.collectives.by_kind) == {"all_to_all"}
    if not own or not isinstance(strategy, StrategyOptions) or strategy.tp * strategy.cp > 1:
        return []
    if strategy.ep > 1 and has_experts(model):
        return []
    parallelism = strategy.parallelism
    if parallelism.op_shard or parallelism.tables != StrategyOptions().parallelism.tables:
        return []
    name = job.collectives.of("all_to_all").algorithm
    return [f"collectives: '{name}' has no effect: this strategy has no all-to-all; leave it out"]


def _idle_dispatch(job: Job, strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Return a warning for a dispatcher of tokens whose exchanges stay on scale-up links.

    Only what crosses to other domains depends on it (`TokenRouting`). Kernels differ too: NVIDIA
    reports DeepSeek-V3 at 943 TFLOP/s with Hybrid-EP and 829 with DeepEP, Qwen3-235B at 800 and 728
    (MXFP8, GB200; developer blog on Hybrid-EP, 2026-02), which depends on what the rest hides.
    """
    cluster, stated = job.cluster, job.traits.get("moe_dispatch")
    if stated is None or cluster.is_mixed or job.devices is not None or not has_experts(model):
        return []
    if not isinstance(strategy, StrategyOptions):
        return []
    if cluster.domain_devices % (strategy.ep * strategy.tp * strategy.cp):
        return []
    return [
        f"traits.moe_dispatch: {stated} has no effect on this prediction: exchanges of tokens stay "
        f"within scale-up domains of {counted(cluster.domain_devices, 'device')}, where all "
        "dispatchers are predicted alike (on GB200, NVIDIA measured steps that were 10 to 14 % "
        "faster with hybridep than with deepep)"
    ]


def _idle_prefetch(job: Job, strategy: Strategy | StrategyOptions) -> list[str]:
    """Return a warning for a prefetch of activations where none are offloaded."""
    offload, cluster = strategy.traffic.offload, job.cluster
    if (
        offload.activations != "cxl"
        or offload.prefetch == _SOFTWARE_DEFAULT.prefetch
        or cluster.is_mixed
    ):
        return []
    if cluster.node.cxl is None or not cluster.node.cxl.is_accessed_in_place:
        return []
    return [
        f"strategy.offload.activations.prefetch: {offload.prefetch} has no effect: devices of "
        f"{cluster.node.name} read expanded memory as they work, and copy nothing; leave it out"
    ]


def _idle_statistics(strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Return a warning for synchronized batch norm where the model has none."""
    if not isinstance(strategy, StrategyOptions) or not strategy.parallelism.sync_batch_norm:
        return []
    kinds = {o.kind for o in model.operators}
    if OperatorKind.BATCH_NORM in kinds:
        return []
    return [f"strategy.sync_batch_norm: true has no effect: {model.name} has no batch norm"]


def _idle_splits(strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Return warnings for axes that split positions or tables that the model does not have."""
    if not isinstance(strategy, StrategyOptions):
        return []
    operators = list(model.operators)
    found = []
    positions = strategy.cp > 1 and strategy.parallelism.context != SPATIAL
    if strategy.cp > 1 and strategy.parallelism.context == SPATIAL:
        found += _idle_rows(strategy.cp, model)
    if positions and not any(dim.name == "seq" for o in operators for dim in o.dims):
        found.append(
            f"strategy.cp: {strategy.cp} has no effect of its own: {model.name} has no dim of "
            f"positions to split, so these ranks do the same; use dp{_or_rows(model)}"
        )
    if strategy.tp > 1 and not model.own_family and not has_roles(model):
        found.append(
            f"strategy.tp: {strategy.tp} splits nothing: {model.name} has no pair of products in "
            "a row of which the first can be split by output and the second by input, so these "
            "ranks do the same; use dp, or a tree with {out: tp} and {in: tp} where wanted"
        )
    elif strategy.tp > 1 and not model.own_family:
        share = _matmul_share(model, lambda operator: operator.role in _SPLIT_BY_TENSOR)
        if share < _SLIGHT:
            shown = f"{100 * share:.1f} %" if share >= _SHOWN else "less than 0.1 %"
            found.append(
                f"strategy.tp: {strategy.tp} splits {shown} of the matmuls of "
                f"{model.name}; the rest is the same on all {strategy.tp} ranks: use dp"
            )
    shared = strategy.parallelism.tables != StrategyOptions().parallelism.tables
    if shared and not any(is_sample_table(operator) for operator in operators):
        found.append(
            f"strategy.tables: '{strategy.parallelism.tables}' has no effect: {model.name} has no "
            "tables that samples look up in"
        )
    return found


def _idle_recomputation(strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Return a warning where layers, which are recomputed, are the smaller part of the model."""
    if not isinstance(strategy, StrategyOptions) or strategy.memory.recompute != "full":
        return []
    share = _matmul_share(model, lambda _: True, layers=True)
    if model.own_family or share >= _MOST:
        return []
    return [
        f"strategy.recompute: full recomputes {100 * share:.1f} % of the matmuls of {model.name}, "
        f"those of its {model.layers} layers; the rest is stored: modules that repeat in a list "
        "are layers"
    ]


def _or_rows(model: ModelGraph) -> str:
    dim = spatial_dim(model)
    return f", or context: spatial, which splits rows of images ('{dim}')" if dim else ""


def _idle_rows(degree: int, model: ModelGraph) -> list[str]:
    """Return a warning for a split of image rows that hardly affects the model's matmuls."""
    dim = spatial_dim(model)
    if dim is None:
        return []
    share = _matmul_share(model, lambda operator: operator.has_dim(dim))
    if share >= _SLIGHT:
        return []
    return [
        f"strategy.cp: {degree} splits rows of images ('{dim}'), which {100 * share:.1f} % of the "
        f"matmuls of {model.name} work on; the rest is the same on all {degree} ranks: use dp or "
        "tp"
    ]


def foreign_format(precision: Precision, device: Device) -> tuple[str, ...]:
    """Return a warning where a device computes the other one of two 16-bit formats."""
    found = device.matrix_format(precision)
    both = {Precision.BF16, Precision.FP16}
    runs = precision == Precision.FP16 and found == Precision.FP32  # `cublasGemmEx`
    if found in {precision, None} or precision not in both or runs:
        return ()
    return (
        f"precision: {device.name} has no matrix units for {precision}, which frameworks refuse or "
        f"emulate slowly; it is predicted as {found}, which the job should name",
    )


def idle_precision(precision: Precision, model: ModelGraph, cluster: Cluster) -> tuple[str, ...]:
    """Return warnings of a format slower than a wider one, or of one that hardly anything uses."""
    slow, order = {}, [*Precision]  # the widest first
    for device in (pool.node.device for pool in cluster.pools):
        rates = device.peak_flop_per_s
        own = device.matrix_peak_flop_per_s(precision)
        wider = [each for each in order[: order.index(precision)] if each in rates]
        fastest = max(wider, key=rates.__getitem__, default=precision)
        if wider and rates[fastest] > own:
            slow[device.name] = (
                f"precision: {precision} is slower than {fastest} by the matrix_peak of "
                f"{device.name}, {own / 1e12:g} and {rates[fastest] / 1e12:g} TFLOP/s; check both"
            )
    if precision not in _OF_LINEAR_LAYERS:
        return tuple(slow.values())
    share = _matmul_share(model, lambda operator: operator.kind is OperatorKind.MATMUL)
    if share >= _SLIGHT:
        return tuple(slow.values())
    return (
        *slow.values(),
        f"precision: {precision} is for linear layers, {100 * share:.1f} % of the products of "
        f"{model.name}; convolutions stay at 16 bit: use bf16",
    )


def idle_release(job: Job, software: Software, precision: Precision) -> tuple[str, ...]:
    """Return warnings of kernels of attention that devices lack, or that were never others."""
    plain = precision if precision in WIDE else Precision.BF16
    devices = [pool.node.device for pool in job.cluster.pools]
    lacking = [each.name for each in devices if not has_newer_matrix_units(each)]
    if software.attention_kernels == "flash4" and lacking:
        return (
            f"traits.attention_kernels: flash4 has no kernels for {lacking[0]}, which is predicted "
            "as native",
        )
    stated = "older_attention" in job.traits and software.older_attention
    if not stated or any(releases_differ(device, software, plain) for device in devices):
        return ()
    return (
        f"traits.older_attention: has no effect: {software.name} had no other kernels of attention "
        f"for {devices[0].name}; leave it out",
    )


def _matmul_share(
    model: ModelGraph, chosen: Callable[[Operator], bool], *, layers: bool = False
) -> float:
    """Return the share of the model's matmul and convolution work that the chosen operators have.

    With `layers`, those of layers alone.

    Sizes are those of one sample and 1,024 tokens; attention without weights is left out.
    """
    total = part = 0.0
    counts = Counter(instance.block for instance in model.instances)
    chosen_in = Counter(each.block for each in model.instances if each.is_layer or not layers)
    for name, count in counts.items():
        for operator in model.blocks[name].operators:
            if operator.kind not in {OperatorKind.MATMUL, OperatorKind.CONVOLUTION}:
                continue
            size = prod(dim.extent.value(micro_batch=1.0, sequence=1024.0) for dim in operator.dims)
            total += count * size
            part += chosen_in[name] * size if chosen(operator) else 0.0
    return part / total if total else 1.0


def is_latent(model: ModelGraph) -> bool:
    """Return whether a model has latent attention."""
    return any(operator.path == LATENT for operator in model.operators)


def has_experts(model: ModelGraph) -> bool:
    """Return whether any operator belongs to the experts of a mixture that ranks can share."""
    if model.own_family:
        return any("experts" in operator.path for operator in model.operators)
    return any(operator.has_dim("expert") for operator in model.operators)

"""The defaults of a job's software for its model, with what the job states."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from wattree.capture import OWN_PRECISION, TRAIT_UNSET, fused, with_interactions
from wattree.capture.families import sdpa_since
from wattree.cost import FOR_LANGUAGE, ON_TPUS, Software, at_precision
from wattree.cost.families import ENGINES, LATENT
from wattree.cost.releases import beside_quantized, runs_sdpa
from wattree.errors import JobError
from wattree.graph import ModelGraph
from wattree.job import Job, WorkloadKind
from wattree.job.engines import FSDP, engine_of, engine_traits
from wattree.lowering.idle import has_experts, is_latent
from wattree.lowering.model import family_of, runs_all_experts
from wattree.strategy import StrategyOptions

#: Without an update, weights are loaded at the 16 bits of the job: `from_pretrained(dtype=...)`.
_LOADED: dict[str, Any] = {"parameter_bytes": 2.0, "gather_bytes": 2.0, "autocast": False}
#: Without streams, `fully_shard` waits for each gather and reduction before it computes on
#: (`torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`).
_FSDP_ON_CPUS: dict[str, Any] = {"overlap_parameters": False, "overlap_gradients": False}
_ALWAYS_FSDP = ("pytorch", "torchtitan")
#: Traits of software that a module's code may state.
_OWN_TRAITS: Final = ("sparse_gradients", "compiled", "channels_last")
#: Precisions of a job → types in which a module's code may compute, too.
_OWN_PRECISIONS: Final = {
    **dict.fromkeys(("bf16", "fp8", "mxfp8", "nvfp4", "int8"), ("bfloat16",)),
    **dict.fromkeys(("fp16", "amp"), ("float16",)),
}


def traits_of_engine(job: Job, strategy: object) -> Mapping[str, Any]:
    """Return the traits of the engine that runs a strategy; empty where nothing is trained."""
    if not _trains(job):
        return {}
    found = engine_traits(job.taken_software, strategy)
    return {**found, **_FSDP_ON_CPUS} if _shards_on_cpus(job, strategy) else found


def _shards_on_cpus(job: Job, strategy: object) -> bool:
    """Return whether processors train with PyTorch's `fully_shard`."""
    if not isinstance(strategy, StrategyOptions) or strategy.memory.sharding == "none":
        return False
    by_engine = job.taken_software in ENGINES and engine_of(strategy) == FSDP
    on_cpus = all(pool.node.device.kind == "cpu" for pool in job.cluster.pools)
    return on_cpus and (by_engine or job.software in _ALWAYS_FSDP)


def software_of(job: Job, model: ModelGraph, engine: Mapping[str, Any]) -> Software:
    """Return the defaults of a job's software, with the traits that the job states.

    Args:
        engine: Traits of its engine.
    """
    software, trains = family_of(job, model), _trains(job)
    if model.language:
        software = replace(software, **FOR_LANGUAGE.get(software.name, {}))
    if not trains:
        software = replace(software, **_LOADED)
    by_kernel = not model.own_family and software.library_kernels  # and has the steps of its own
    kinds = {pool.node.device.kind for pool in job.cluster.pools}
    if by_kernel or "gpu" not in kinds:
        # For other accelerators a whole step is compiled, whatever the software.
        software = replace(software, written_out=False)
    if not kinds <= {"gpu", "cpu"} or runs_all_experts(model, software):  # by `torch.bmm`
        software = replace(software, grouped_by_offsets=False)
    software = _on_devices(software, kinds)
    latent = LATENT.get(software.name, {}) if is_latent(model) else {}  # of all its releases
    software = software.with_traits(job.traits_of(software.name, {**engine, **latent}))
    software = _in_chunks(job, model, software)
    software = replace(software, **beside_base(job, model, software))
    if "fused_attention" not in job.traits:
        software = replace(software, fused_attention=_fuses_attention(job, software, model))
    software = replace(
        software,
        casts_softmax=software.casts_softmax and model.casts_softmax,
        drops_scores=software.drops_scores and model.drops_scores and trains,
        caps_scores=software.caps_scores and model.caps_scores,
        wide_norms=software.wide_norms and _is_quantized(job),
        gates_in_steps=_runs_gates_in_steps(job, software, kinds),
        moe_overlap=software.moe_overlap and trains,  # a forward goes on beside a backward
    )
    return at_precision(software, job.precision)


def _in_chunks(job: Job, model: ModelGraph, software: Software) -> Software:
    """Return software whose loss has as many chunks as are alike, which torchtitan requires.

    `ChunkedLossWrapper` raises an error otherwise (torchtitan/components/loss.py).
    """
    stated = "loss_chunks" in job.traits or not (model.language and job.data.has_sequence)
    if stated or not software.fused_loss or software.loss_chunks <= 1.0:
        return software
    chunks = math.gcd(int(software.loss_chunks), job.data.sequence_length)
    return replace(software, loss_chunks=float(chunks), fused_loss=chunks > 1)


def _on_devices(software: Software, kinds: AbstractSet[str]) -> Software:
    """Return what a family does on devices of some kinds."""
    if "gpu" not in kinds:
        # `_get_foreach_kernels_supported_devices` of PyTorch; blocking launches are CUDA's.
        software = replace(software, foreach=False, mask_tensors=False, launch_blocking=False)
    if not kinds & {"gpu", "cpu"}:
        # Products of XLA's programs for TPUs are "convolution fusions" (a category of its
        # profiles), which take work into their inputs and outputs (cloud.google.com, Profile
        # TensorFlow workloads: matmuls); Gaudi's compiler fuses operators and runs vector and
        # matrix engines as a pipeline (docs.habana.ai, Intel Gaudi Software Suite). Neither says
        # that norms are among it: that they merge what cuDNN's kernels do is a choice.
        software = replace(software, fused_convolutions=software.compiled, promotes_types=False)
    if kinds == {"tpu"}:
        software = replace(software, **ON_TPUS.get(software.name, {}))
    return software


def _trains(job: Job) -> bool:
    return job.workload is WorkloadKind.TRAIN


def _runs_gates_in_steps(job: Job, software: Software, kinds: Collection[str]) -> bool:
    """Return whether gates that clamp run in steps where other modules of the library do not.

    `apply_liger_kernel_to_gpt_oss` replaces norms, rotations and the loss, but no experts.
    """
    if "gates_in_steps" in job.traits or "gpu" not in kinds:
        return software.gates_in_steps
    in_kernels = not (software.written_out or software.compiled or software.inference_kernels)
    return software.library_modules and in_kernels


def _is_quantized(job: Job) -> bool:
    return job.model.lora is not None and bool(job.model.lora.base)


def beside_base(job: Job, model: ModelGraph, software: Software) -> Mapping[str, Any]:
    """Return the traits of how wide is what adapters of a quantized base leave as it is.

    Experts that stay at 16 bits would become twice as large, so a script for those cannot cast.
    """
    stated = "frozen_bytes" in job.traits or not _is_quantized(job)
    if stated or (has_experts(model) and not software.expert_layers):
        return {}
    return beside_quantized(software.name, job.released, job.precision)


def keeps_scores(job: Job, software: Software, model: ModelGraph) -> str | None:
    """Return, as `sdpa_since`, until when the transformers library runs attention step by step."""
    by_library = software.written_out and software.library_modules
    return sdpa_since(model, job.released) if by_library else None


def _fuses_attention(job: Job, software: Software, model: ModelGraph) -> bool:
    if keeps_scores(job, software, model) is not None:
        return False
    by_module = software.library_modules and runs_sdpa(model.architecture, job.released)
    return software.fused_attention or by_module


def without_stated(model: ModelGraph, job: Job, software: Software) -> ModelGraph:
    """Return the graph without warnings of what its module states and the job does, too."""
    traits = (each for each in _OWN_TRAITS if each in job.traits or getattr(software, each))
    stated = [TRAIT_UNSET.format(each) for each in traits]
    stated += [OWN_PRECISION.format(each) for each in _OWN_PRECISIONS.get(job.precision, ())]
    warnings = tuple(line for line in model.warnings if not line.startswith(tuple(stated)))
    return model if warnings == model.warnings else replace(model, warnings=warnings)


def compiled_by(model: ModelGraph, software: Software, source: str) -> tuple[ModelGraph, Software]:
    """Return the graph after a compiler's fusion, and the defaults that remain.

    The operators of the catalog's transformers stay, as trees name them; `compute_costs` counts
    what a compiler's kernels move. Of other graphs, no step of a module is left.
    """
    if software.fused_convolutions and not software.compiled:
        raise JobError(
            source,
            [
                "traits.fused_convolutions: found true, but nothing is compiled, and only compiled "
                "kernels are merged with convolutions; add 'compile: true'"
            ],
        )
    if software.fused_interactions:
        given, model = model, with_interactions(model)
        if model == given:
            idle = (
                f"traits.fused_interactions: true has no effect: {model.name} has no dot products"
            )
            model = replace(model, warnings=(*model.warnings, f"{idle} of features; leave it out"))
    if model.own_family:
        alone = software.library_kernels and not software.compiled
        return model, replace(software, library_kernels=alone)
    if not software.compiled:
        return model, software
    merged = fused(model, convolutions=software.fused_convolutions)
    return merged, replace(software, compiled=False, library_kernels=False, written_out=False)

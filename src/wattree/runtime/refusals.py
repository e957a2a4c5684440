"""Parts of a strategy that `train` does not support, by key of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wattree.job import Job, WorkloadKind
from wattree.strategy import (
    MODULES,
    SAVES,
    SPATIAL,
    ULYSSES,
    PositionOrder,
    Schedule,
    StrategyOptions,
    chunk_layers,
)

#: What to say wherever a strategy is not run.
RUNNABLE = (
    "wattree train runs dp, fsdp, tp, cp, pp and ep with the shardings none, zero1, zero2, zero3 "
    "and hybrid; of presets ddp, zero1, zero2, zero3, fsdp, hsdp, tensor, megatron, phantom and "
    "low_rank"
)
#: What has no way to be run, and the value that stands for its absence.
_ABSENT = {
    "single_process": False,
    "op_shard": False,
    "sync_batch_norm": False,
    "tables": "data-parallel",
}


def misfits_of(job: Job, options: StrategyOptions, schedule: Schedule) -> dict[str, str]:
    """Return key → why the strategy of a job is not supported; all reasons at once."""
    found = {
        f"strategy.{key}": f"found {_shown(options.value(key))}, expected {_shown(absent)}: "
        f"{RUNNABLE}"
        for key, absent in _ABSENT.items()
        if options.value(key) != absent
    }
    if options.traffic.offload.tiers:
        found["strategy.offload"] = (
            "train stores everything on the devices: offload moves state to the host of an "
            "accelerator, and none has been available to try it; leave it out"
        )
    if options.phantoms.enabled and options.tp == 1:
        found["strategy.tp"] = "found 1 with phantom layers; set tp above 1, or use ddp"
    if options.memory.sharding == "hybrid" and options.fsdp == 1:
        found["strategy.sharding"] = (
            "'hybrid' shards over the axis 'fsdp', found degree 1; set fsdp above 1, or use zero3"
        )
    if options.ep > 1 and not (job.model.transformer or {}).get("experts"):
        found["strategy.ep"] = (
            f"found {options.ep}, expected 1: ranks share the experts of a model.transformer that "
            "has some"
        )
    if job.data.document_length is not None:
        found["data.document_length"] = "train attends to whole samples; leave it out"
    found |= dict(_of_forward_passes(job, options))
    found |= dict(_of_number_format(job, options))
    found |= dict(_of_stages(job, options, schedule))
    found |= dict(_of_positions(job, options))
    return found | dict(_of_recomputation(job, options))


def layers_of(job: Job) -> int | None:
    """Return the layers of a built-in model; None of other models."""
    if job.model.ffn is not None:
        return job.model.ffn.depth
    block = job.model.transformer
    return None if block is None else int(block.get("layers", 0))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_forward_passes(job: Job, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    if job.workload is WorkloadKind.TRAIN:
        return
    for key in ("pp", "processes_per_device"):
        if (found := options.value(key)) != 1:
            yield (
                f"strategy.{key}",
                f"found {found} with workload: {job.workload}, expected 1: train runs forward "
                "passes without stages, one process on each device",
            )
    if job.training.checkpoint is not None:
        yield "training.checkpoint", f"found with workload: {job.workload}, which changes nothing"


def _of_number_format(job: Job, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    several = options.replicas * options.cp > 1
    is_sharded = several and options.memory.sharding != "none"
    if job.precision == "amp" and (options.pp > 1 or is_sharded):
        yield (
            "precision",
            "found 'amp', whose loss scale train applies without shards and stages; use bf16",
        )


def _of_stages(job: Job, options: StrategyOptions, schedule: Schedule) -> Iterator[tuple[str, str]]:
    if options.pp == 1:
        return
    layers = layers_of(job)
    if layers is None:
        yield (
            "strategy.pp",
            f"found {options.pp}, expected 1: stages are cut of model.ffn and model.transformer",
        )
    if misfits := schedule.misfits(options.pp):
        yield from misfits.items()
        return
    placed = schedule.placed(options.pp)
    if schedule.micro_batches % placed.copies:
        yield (
            "data.global_batch",
            f"makes {schedule.micro_batches} micro-batches, expected an even number: as many go "
            f"each way through '{schedule.name}'",
        )
    if layers is not None:
        has_ends = job.model.transformer is not None  # an embedding and a head besides layers
        yield from _of_cut(layers, schedule, placed.model_chunks, has_ends=has_ends)


def _of_cut(
    layers: int, schedule: Schedule, chunks: int, *, has_ends: bool
) -> Iterator[tuple[str, str]]:
    given = schedule.stage_layers
    counts = chunk_layers(layers, chunks) if given is None else given
    if given is not None and (len(given) != chunks or sum(given) != layers):
        yield (
            "strategy.stage_layers",
            f"found {len(given)} chunks with {sum(given)} layers, expected {chunks} chunks with "
            f"{layers} layers",
        )
    elif min(counts[1:-1] if has_ends else counts, default=1) < 1:
        yield (
            "strategy.pp",
            f"{chunks} chunks are more than the model's {layers} layers can fill; use fewer "
            "stages, or fewer virtual stages",
        )


def _of_positions(job: Job, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    cp, context = options.cp, options.parallelism.context
    if cp == 1:
        return
    if job.model.transformer is None:
        yield (
            "strategy.cp",
            f"found {cp}, expected 1: positions are spread for model.transformer alone",
        )
        return
    if context == SPATIAL:
        yield "strategy.context", f"found '{SPATIAL}', which is of images; use gather or ring"
    if context == ULYSSES:
        yield from _of_heads(job.model.transformer, options)
    is_zigzag = (
        context != ULYSSES and options.parallelism.context_order == PositionOrder.ZIGZAG.value
    )
    pieces = 2 * cp if is_zigzag else cp
    if job.data.sequence_length % pieces:
        yield (
            "data.sequence_length",
            f"found {job.data.sequence_length}, expected a multiple of {pieces}, the pieces that "
            f"cp {cp} cuts a sample into",
        )


def _of_heads(block: Any, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    heads = int(block.get("kv_heads") or block.get("heads") or 0)
    wanted = options.cp * options.tp
    if heads % wanted:
        yield (
            "strategy.context",
            f"found '{ULYSSES}' with {heads} key/value heads, expected a multiple of {wanted}, "
            "cp × tp: whole heads go to a rank; use gather or ring",
        )


def _of_recomputation(job: Job, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    kind = options.memory.recompute
    if kind.startswith((MODULES, SAVES)):
        yield (
            "strategy.recompute",
            f"found '{kind}', parts of layers by name, which train does not know; use selective",
        )
    if kind.startswith("selective") and job.model.transformer is None:
        yield (
            "strategy.recompute",
            f"found '{kind}', which train knows of model.transformer alone; use none or full",
        )

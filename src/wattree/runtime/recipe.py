"""The parts of a job's strategy that `train` runs, as numbers; rejects all others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from wattree.errors import StrategyError
from wattree.hardware import Precision
from wattree.job import Job, WorkloadKind
from wattree.job.software import usual_precision
from wattree.job.strategy import hybrid_degrees
from wattree.runtime.refusals import RUNNABLE, misfits_of
from wattree.strategy import (
    ACTIVATIONS,
    Mesh,
    Schedule,
    SlotWork,
    StrategyOptions,
)
from wattree.strategy.presets import options_of_preset
from wattree.strategy.presets.combine import schedule_of

#: Axes whose ranks hold the same parameters.
HOLDERS = ("dp", "fsdp", "cp", "ep")


class ReplicaKind(StrEnum):
    """How the ranks of one replica share the model."""

    DDP = "ddp"
    TENSOR = "tensor"
    MEGATRON = "megatron"
    PHANTOM = "phantom"
    LOW_RANK = "low_rank"

    @property
    def has_ghosts(self) -> bool:
        """Whether layers have the function of phantom layers, however that is computed."""
        return self in {ReplicaKind.PHANTOM, ReplicaKind.LOW_RANK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A strategy that can be run.

    Attributes:
        options: Of the job; ranks are in the order of `AXES`, tp innermost.
        schedule: How micro-batches go through the stages.
        processes_per_device: Replicas that share a device, one after another.
        learning_rate_scale: What the learning rate is multiplied by, where their batch grows.
        backward: Gradients are computed and parameters updated: not for forward passes alone.
    """

    options: StrategyOptions
    schedule: Schedule
    processes_per_device: int = 1
    learning_rate_scale: float = 1.0
    backward: bool = True

    @property
    def kind(self) -> ReplicaKind:
        """How the ranks of a replica share its layers."""
        options = self.options
        if options.tp == 1:
            return ReplicaKind.DDP
        if options.phantoms.enabled:
            is_low_rank = options.phantoms.exchange == ACTIVATIONS
            return ReplicaKind.LOW_RANK if is_low_rank else ReplicaKind.PHANTOM
        in_pairs = options.parallelism.tensor_pairs or options.parallelism.sequence_parallel
        return ReplicaKind.MEGATRON if in_pairs else ReplicaKind.TENSOR

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica in a step."""
        return self.schedule.micro_batches

    @property
    def sequence_parallel(self) -> bool:
        """Whether what is between the products is split by position over `tp`."""
        return self.options.parallelism.sequence_parallel and self.options.tp > 1

    @property
    def expert_over_tensor(self) -> bool:
        """Whether whole experts are spread over `ep` times `tp` ranks."""
        return self.options.parallelism.expert_over_tensor and self.options.tp > 1

    @property
    def ghosts(self) -> int:
        """Ghost neurons per rank and layer, of phantom layers."""
        return self.options.phantoms.ghosts or 0

    @property
    def overlap(self) -> bool:
        """Whether communication runs alongside computation."""
        return self.options.traffic.overlap_tensor is not False

    @property
    def holders(self) -> int:
        """Ranks with the same parameters: replicas, and those of other positions."""
        return self.options.replicas * self.options.cp

    @property
    def grid(self) -> Mesh:
        """The positions of ranks on the mesh."""
        return Mesh.of(self.options.degrees)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes whose ranks share the experts of a layer."""
        return ("ep", "tp") if self.expert_over_tensor else ("ep",)

    def shard_axes(self, *, experts: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return axes over which `fully_shard` replicates, and those over which it shards.

        Args:
            experts: What it does so with experts, of which ranks of `ep` have others.
        """
        holders = tuple(axis for axis in HOLDERS if axis != "ep" or not experts)
        sharding = self.options.memory.sharding
        if sharding == "hybrid":
            return tuple(axis for axis in holders if axis != "fsdp"), ("fsdp",)
        return (holders, ()) if sharding == "none" else ((), holders)

    @property
    def is_fully_sharded(self) -> bool:
        """Whether `fully_shard` reduces gradients, and not `DistributedDataParallel`.

        Pipeline schedules of PyTorch reduce gradients at their end by `fully_shard` alone: split
        backward passes call no hooks of `DistributedDataParallel`. That has one group of replicas,
        and experts have fewer than the rest.
        """
        options = self.options
        is_sharded = options.memory.sharding != "none"
        return self.holders > 1 and (options.pp > 1 or options.ep > 1 or is_sharded)

    @property
    def is_two_way(self) -> bool:
        """Whether two stages hold each part of the model, one for each direction."""
        return self.options.pp > 1 and self.schedule.placed(self.options.pp).copies > 1

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are computed separately."""
        if self.options.pp == 1:
            return False
        apart = {SlotWork.INPUT_GRADIENT, SlotWork.WEIGHT_GRADIENT}
        orders = self.schedule.orders(self.options.pp)
        return any(slot.work in apart for order in orders for slot in order)


def recipe_of(job: Job) -> Recipe:
    """Return how to run the strategy of a job.

    Raises:
        StrategyError: It is none that is run; all reasons at once.
    """
    options = job.strategy
    if not isinstance(options, StrategyOptions):
        found = "'auto'" if isinstance(options, str) else "a tree"
        what = "wattree plan finds one; " if isinstance(options, str) else ""
        raise StrategyError(
            {"strategy": f"found {found}, expected a preset with degrees: {what}{RUNNABLE}"},
            source=job.source,
        )
    share = options.replicas * options.pipeline.micro_batch
    schedule = _schedule(options, job.data.global_batch // share)
    misfits = misfits_of(job, options, schedule) | _misfits_of_model(job, options)
    if job.data.global_batch % share:
        misfits["data.global_batch"] = (
            f"{job.data.global_batch} samples cannot be split into micro-batches of "
            f"{options.pipeline.micro_batch} on {options.replicas} replicas; use a multiple of "
            f"{share}"
        )
    if misfits:
        raise StrategyError(misfits, source=job.source)
    return Recipe(options=options, schedule=schedule, backward=job.workload is WorkloadKind.TRAIN)


def _schedule(options: StrategyOptions, micro_batches: int) -> Schedule:
    """Return how micro-batches flow; the usual schedule where there is one stage."""
    if options.pp == 1:
        return Schedule(micro_batches=micro_batches)
    return schedule_of(options, micro_batches)


def with_preset(job: Job, preset: str) -> Job:
    """Return a job with another preset and the same ranks; degrees of replicas stay.

    Presets that split layers do so over the devices of a node where the job splits none.

    Raises:
        UnknownNameError: There is no such preset.
        StrategyError: The job's strategy has no degrees, or lacks what the preset needs.
    """
    options = job.strategy
    if not isinstance(options, StrategyOptions):
        raise StrategyError(
            {"strategy": f"expected a preset with degrees: {RUNNABLE}"}, source=job.source
        )
    tp = options.tp
    if tp == 1 and preset in {*ReplicaKind} - {ReplicaKind.DDP}:
        tp = math.gcd(options.ranks, job.cluster.node.devices)
    whole = options.ranks // tp
    degrees = {"dp": whole, "tp": tp, "micro_batch": options.pipeline.micro_batch}
    if preset == ReplicaKind.DDP:
        share = max(1, job.data.global_batch // options.ranks)
        degrees = {
            "dp": options.ranks,
            "tp": 1,
            "micro_batch": min(options.pipeline.micro_batch, share),
        }
    if preset in {ReplicaKind.PHANTOM, ReplicaKind.LOW_RANK}:
        layers = {
            "ghosts": options.phantoms.ghosts,
            "variant": options.phantoms.variant,
            "regather": options.phantoms.regather and preset == ReplicaKind.PHANTOM,
            **({"phantom_layers": options.phantoms.layers} if options.phantoms.layers else {}),
        }
        return replace(job, strategy=options_of_preset(preset, {**degrees, **layers}), left_open=())
    chosen = options_of_preset(preset, degrees)
    if chosen.memory.sharding == "hybrid":
        chosen = chosen.changed(**hybrid_degrees(whole, tp, job.cluster))
    return replace(job, strategy=chosen, left_open=())


def with_run_precision(job: Job) -> tuple[Job, str]:
    """Return a job with fp32 in the place of fp16 that it does not state, and words on that."""
    usual, reason = usual_precision([pool.node for pool in job.cluster.pools])
    if reason not in job.assumed or usual != Precision.FP16:
        return job, ""
    words = "precision fp32, as the job states none and train does not run fp16; amp is autocast"
    said = (words if line == reason else line for line in job.assumed)
    return replace(job, precision=Precision.FP32.value, assumed=tuple(said)), words


def _misfits_of_model(job: Job, options: StrategyOptions) -> dict[str, str]:
    """Return the features that are run for some models, but not for this one."""
    source = job.model
    is_built_in = source.ffn is not None or source.transformer is not None
    if is_built_in and options.phantoms.layers is not None:
        return {
            "strategy.phantom_layers": "found a list; train makes phantom layers of all layers of "
            "ffn, and of the feed-forward parts of transformer: leave it out"
        }
    if not is_built_in and options.phantoms.exchange == ACTIVATIONS:
        return {
            "strategy.exchange": "found activations, which layers of model.ffn and "
            "model.transformer can send; other models are trained with ddp, tensor and phantom"
        }
    if is_built_in or options.tp == 1:
        return {}
    return {
        f"strategy.{key}": "found true, expected false: only layers of model.ffn and "
        "model.transformer can be split like that; other models are trained with ddp, tensor and "
        "phantom"
        for key in ("tensor_pairs", "sequence_parallel")
        if options.value(key)
    }

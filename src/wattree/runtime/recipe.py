"""What `train` does of a job's strategy, in numbers; refusals of what it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from wattree.errors import StrategyError
from wattree.job import Job
from wattree.strategy import ACTIVATIONS, StrategyOptions
from wattree.strategy.presets import options_of_preset

#: What to say wherever a strategy is not run.
RUNNABLE = (
    "wattree train runs the presets ddp, tensor, megatron, phantom and low_rank, and each with dp"
)


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
        kind: How ranks of one replica share the model.
        dp, tp: Replicas, and ranks of each; `rank = replica * tp + place in it`.
        micro_batch, micro_batches: Samples of a forward pass of a replica, and such in a step.
        sequence_parallel: What is between the products is split by position over `tp`.
        ghosts: Ghost neurons per rank and layer, of phantom layers.
        layer_ghosts: Pattern → ghosts of the layers that it matches, where they have others.
        variant: `pair` or `shared`, whose decompressors they have.
        phantom_layers: Patterns of layers of another's module that become phantom layers; None:
            those of a plan that fits.
        regather: Ghosts are gathered again in backward.
        overlap: Communication runs alongside computation.
        sharded_optimizer: The optimizer's state is sharded over replicas (ZeRO-1).
        processes_per_device: Replicas that share a device, one after another.
        learning_rate_scale: What the learning rate is multiplied by, where their batch grows.
    """

    kind: ReplicaKind
    dp: int
    tp: int
    micro_batch: int
    micro_batches: int
    sequence_parallel: bool = False
    ghosts: int = 0
    layer_ghosts: tuple[tuple[str, int], ...] = ()
    variant: str = "pair"
    phantom_layers: tuple[str, ...] | None = None
    regather: bool = False
    overlap: bool = True
    sharded_optimizer: bool = False
    processes_per_device: int = 1
    learning_rate_scale: float = 1.0

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.dp * self.tp

    def ghosts_of(self, name: str) -> int:
        """Return the ghosts of a layer.

        Args:
            name: Of its module; patterns are of it or its end, as simulations name layers.
        """
        found = (ghosts for pattern, ghosts in self.layer_ghosts if names_layer(pattern, name))
        return next(found, self.ghosts)


def names_layer(pattern: str, name: str) -> bool:
    """Return whether a pattern names a layer of a module: it, or its end.

    In simulations a linear layer that is a block of its own is called `linear` in it.
    """
    known, ends = (name, f"{name}.linear"), (pattern, f"*.{pattern}")
    return any(fnmatchcase(each, end) for each in known for end in ends)


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
    misfits = _misfits(options) | _misfits_of_model(job, options)
    share = options.dp * options.pipeline.micro_batch
    if job.data.global_batch % share:
        misfits["data.global_batch"] = (
            f"{job.data.global_batch} samples do not split into micro-batches of "
            f"{options.pipeline.micro_batch} on {options.dp} replicas; use a multiple of {share}"
        )
    if misfits:
        raise StrategyError(misfits, source=job.source)
    if options.tp == 1:
        kind = ReplicaKind.DDP
    elif options.phantoms.enabled:
        kind = (
            ReplicaKind.LOW_RANK
            if options.phantoms.exchange == ACTIVATIONS
            else ReplicaKind.PHANTOM
        )
    else:
        kind = (
            ReplicaKind.MEGATRON
            if options.parallelism.tensor_pairs or options.parallelism.sequence_parallel
            else ReplicaKind.TENSOR
        )
    return Recipe(
        kind=kind,
        dp=options.dp,
        tp=options.tp,
        micro_batch=options.pipeline.micro_batch,
        micro_batches=job.data.global_batch // share,
        sequence_parallel=options.parallelism.sequence_parallel and options.tp > 1,
        ghosts=options.phantoms.ghosts or 0,
        layer_ghosts=options.phantoms.layer_ghosts,
        variant=options.phantoms.variant,
        phantom_layers=options.phantoms.layers,
        regather=options.phantoms.regather,
        overlap=options.traffic.overlap_tensor is not False,
        sharded_optimizer=options.memory.sharding == "zero1" and options.dp > 1,
    )


def with_preset(job: Job, preset: str) -> Job:
    """Return a job with another preset and the same ranks; degrees of replicas stay.

    Raises:
        UnknownNameError: There is no such preset.
        StrategyError: The job's strategy has no degrees, or lacks what the preset needs.
    """
    options = job.strategy
    if not isinstance(options, StrategyOptions):
        raise StrategyError(
            {"strategy": f"expected a preset with degrees: {RUNNABLE}"}, source=job.source
        )
    degrees = {"dp": options.dp, "tp": options.tp, "micro_batch": options.pipeline.micro_batch}
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
            "layer_ghosts": options.phantoms.layer_ghosts,
            "variant": options.phantoms.variant,
            "regather": options.phantoms.regather and preset == ReplicaKind.PHANTOM,
            **({"phantom_layers": options.phantoms.layers} if options.phantoms.layers else {}),
        }
        return replace(job, strategy=options_of_preset(preset, {**degrees, **layers}))
    return replace(job, strategy=options_of_preset(preset, degrees))


def _misfits(options: StrategyOptions) -> dict[str, str]:
    """Return what of a strategy is not run, by key of the job."""
    misfits = {
        f"strategy.{axis}": f"found {options.value(axis)}, expected 1: {RUNNABLE}"
        for axis in ("fsdp", "cp", "pp", "ep")
        if options.value(axis) != 1
    }
    if options.memory.sharding not in {"none", "zero1"}:
        misfits["strategy.sharding"] = (
            f"found '{options.memory.sharding}', expected none: {RUNNABLE}"
        )
    if options.memory.recompute != "none":
        misfits["strategy.recompute"] = (
            f"found '{options.memory.recompute}', expected none: {RUNNABLE}"
        )
    if options.phantoms.enabled and options.tp == 1:
        misfits["strategy.tp"] = "found 1 with phantom layers; set tp above 1, or use ddp"
    for name in ("single_process", "op_shard", "sync_batch_norm"):
        if options.value(name):
            misfits[f"strategy.{name}"] = f"found true, expected false: {RUNNABLE}"
    return misfits


def _misfits_of_model(job: Job, options: StrategyOptions) -> dict[str, str]:
    """Return what is run of some models, and not of this one."""
    source = job.model
    is_built_in = source.ffn is not None or source.transformer is not None
    if is_built_in and options.phantoms.layers is not None:
        return {
            "strategy.phantom_layers": "found a list; train makes phantom layers of all layers of "
            "ffn, and of the feed-forward parts of transformer: leave it out"
        }
    if is_built_in and options.phantoms.layer_ghosts:
        names = _phantom_names(job)
        known = ", ".join(names)
        unmet = [
            pattern
            for pattern, _ in options.phantoms.layer_ghosts
            if not any(names_layer(pattern, name) for name in names)
        ]
        return {
            f"strategy.layer_ghosts.{pattern}": f"names no phantom layer; there are {known}"
            for pattern in unmet
        }
    if not is_built_in and options.phantoms.exchange == ACTIVATIONS:
        return {
            "strategy.exchange": "found activations, which layers of model.ffn and "
            "model.transformer can send; other models are trained with ddp, tensor and phantom"
        }
    if (
        not is_built_in
        and options.tp > 1
        and (options.parallelism.tensor_pairs or options.parallelism.sequence_parallel)
    ):
        return {
            "strategy": "megatron shares layers of model.ffn and model.transformer; other models "
            "are trained with ddp, tensor and phantom"
        }
    return {}


def _phantom_names(job: Job) -> list[str]:
    """Return the names of the layers of a built-in model that phantom layers are made of."""
    if job.model.ffn is not None:
        return [f"layers.{number}" for number in range(job.model.ffn.depth)]
    count = int((job.model.transformer or {}).get("layers", 0))
    return [f"layers.{number}.mlp.{part}" for number in range(count) for part in ("up", "down")]

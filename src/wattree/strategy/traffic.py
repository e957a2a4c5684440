"""Data movement concurrent with compute: prefetch distance, buckets, streams and destinations.

Data only. The compiler turns it into tasks; what is left out is the software's default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wattree.strategy.knob import knob

#: Kinds of communication that can be put in line with the computation.
IN_LINE = ("gradients", "parameters", "tensor", "context", "experts", "pipeline")
#: Memories behind the devices: main memory of the host, and what it reaches over CXL.
TIERS = ("host", "cxl")
#: What `Offload` gives a tier.
_PLACED = ("optimizer", "parameters", "activations", "tables", "overflow")
_NOTHING_REDUCED = "has no effect with one replica: there are no gradients to reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """How far gathers of sharded parameters run ahead of computation.

    Attributes:
        forward, backward: Blocks ahead of the one that computes; 0 starts a gather when the
            computation before it is done.
        gathers_in_flight: Gathered copies that may exist at once, the one in use included; None
            for as many as the depths ask for.
        after_reductions: In backward a gather also waits for the reductions of the block before.
    """

    forward: int = 1
    backward: int = 1
    gathers_in_flight: int | None = None
    after_reductions: bool = False

    def ahead(self, depth: int) -> int:
        """Return how many blocks a gather runs ahead of the block that it waits for."""
        return min(depth + 1, self.gathers_in_flight or depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Tensors stored outside of the devices, each in one of `TIERS`, or None.

    Attributes:
        optimizer: Its state; gradients are sent there, and the host updates.
        parameters: What the device stores of them; copied in for each use.
        activations: What the first layers of each stage keep for backward.
        layers: How many layers of a stage.
        tensors: Of what these keep, `input` or names of `SAVED_OUTPUTS`; empty: all.
        prefetch: Layers ahead of the one that computes, for copies of activations both ways.
        tables: Those that samples look up in, with their optimizer state: rows that are looked up
            come in, gradients of rows go out, and the host updates.
        cached: Share of each table that the device keeps nevertheless.
        hits: Share of the lookups that what it keeps serves.
        overflow: Whatever does not fit on the device, evenly of all that is there; only to memory
            that the device reads and writes itself.
    """

    optimizer: str | None = None
    parameters: str | None = None
    activations: str | None = None
    layers: int = 0
    tensors: tuple[str, ...] = ()
    prefetch: int = 1
    tables: str | None = None
    cached: float = 0.0
    hits: float = 0.0
    overflow: str | None = None

    def __str__(self) -> str:
        places = ((name, getattr(self, name)) for name in _PLACED)
        return ", ".join(f"{name}: {tier}" for name, tier in places if tier is not None)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers in use."""
        used = {getattr(self, name) for name in _PLACED}
        return tuple(tier for tier in TIERS if tier in used)

    def without(self, other: Offload) -> Offload:
        """Return a copy without the tensors that `other` stores in a tier."""
        taken = {name: None for name in _PLACED if getattr(other, name) is not None}
        return replace(self, **taken) if taken else self  # type: ignore[arg-type]

    def only(self, tier: str) -> Offload:
        """Return a copy with only the tensors stored in one tier."""
        others = {name: None for name in _PLACED if getattr(self, name) not in {None, tier}}
        return replace(self, **others) if others else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How data moves during compute; None means the software's default.

    Kinds of `IN_LINE` run on the computation's own stream. Gradients are reduced after each
    micro-batch, or only after the last (PyTorch's `no_sync`), which keeps them whole; by default
    after each if they are sharded. Buckets are gradients reduced together, by default as the
    software does, and updated parameters gathered together, by default by block. [B]
    """

    overlap_gradients: bool | None = knob(
        None,
        "true or false, whether reductions of gradients run during backward; without it as the "
        "software",
        needs="reductions",
        idle=_NOTHING_REDUCED,
    )
    overlap_parameters: bool | None = knob(
        None,
        "true or false, whether gathers of sharded parameters run ahead of their use; without it "
        "as the software",
        needs="shards",
        idle="has no effect with parameters and optimizer state whole on every rank: there is "
        "nothing to gather",
    )
    overlap_tensor: bool | None = knob(
        None,
        "true or false, whether tensor-parallel traffic runs alongside computation; without it as "
        "the software",
        needs="tp",
        idle="has no effect with tp 1: there is no tensor-parallel traffic",
    )
    tensor_pieces: int | None = knob(
        None,
        "a whole number, pieces of a matmul that hide tensor-parallel traffic; without it 4, and "
        "all-reduces are not cut",
    )
    overlap_pipeline: bool | None = knob(
        None,
        "true or false, whether computation goes on during sends between stages; without it as the "
        "software",
    )
    overlap_optimizer: bool = knob(
        False, "true or false, whether a bucket is updated as soon as it is reduced"
    )
    reduce_every_micro_batch: bool | None = knob(
        None,
        "true or false, whether gradients are reduced after each micro-batch instead of after the "
        "last; without it true for sharded gradients",
        needs="reductions",
        idle=_NOTHING_REDUCED,
    )
    in_line: tuple[str, ...] = knob(
        (),
        "a list of gradients, parameters, tensor, context, experts or pipeline: "
        "communication on the stream of the computation",
    )
    prefetch: Prefetch | None = knob(None, "a mapping with forward, backward and gathers_in_flight")
    reshard_after_forward: bool = knob(
        True, "true or false, whether gathered parameters are dropped after forward"
    )
    gradient_bucket_bytes: float | None = None
    parameter_bucket_bytes: float | None = None
    offload: Offload = knob(Offload(), "a mapping with optimizer, parameters and activations")

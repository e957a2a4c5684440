"""What moves beside the computation: how far ahead, in what portions, on which stream, to where.

Data only. The compiler turns it into tasks; what is left out is the habit of the software.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["IN_LINE", "TIERS", "Offload", "Prefetch", "Traffic"]

#: Kinds of communication that can be put in line with the computation.
IN_LINE = ("gradients", "parameters", "tensor", "context", "experts", "pipeline")
#: Memories behind the devices: main memory of the host, and what it reaches over CXL.
TIERS = ("host", "cxl")
#: What `Offload` gives a tier.
_PLACED = ("optimizer", "parameters", "activations", "tables", "overflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """How far gathers of sharded parameters run ahead of the computation.

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
        """Return by how many blocks a gather lags behind the one whose end it waits for."""
        return min(depth + 1, self.gathers_in_flight or depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What waits outside of the devices, each in one of `TIERS`, or None.

    Attributes:
        optimizer: Its state; gradients are sent there, and the host updates.
        parameters: What the device stores of them; copied in for each use.
        activations: What the first layers of each stage keep for backward.
        layers: How many layers of a stage.
        prefetch: Layers ahead of the one that computes, for copies of activations both ways.
        tables: Those that samples look up in, with their optimiser state: rows that are looked up
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
    prefetch: int = 1
    tables: str | None = None
    cached: float = 0.0
    hits: float = 0.0
    overflow: str | None = None

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers in use."""
        used = {getattr(self, name) for name in _PLACED}
        return tuple(tier for tier in TIERS if tier in used)

    def without(self, other: Offload) -> Offload:
        """Return it without what `other` gives a tier."""
        taken = {name: None for name in _PLACED if getattr(other, name) is not None}
        return replace(self, **taken) if taken else self  # type: ignore[arg-type]

    def only(self, tier: str) -> Offload:
        """Return what of it waits in one tier."""
        others = {name: None for name in _PLACED if getattr(self, name) not in {None, tier}}
        return replace(self, **others) if others else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How data moves beside the computation.

    Attributes:
        in_line: Kinds of `IN_LINE` that run on the computation's own stream.
        overlap_pipeline: Computation goes on during transfers between stages; None: the habit.
        overlap_optimizer: Parameters are updated as soon as their gradients are reduced.
        prefetch: Of sharded parameters; None: the habit.
        reshard_after_forward: Gathered parameters are dropped between forward and backward.
        gradient_bucket_bytes: Gradients reduced together; None: as the software does. [B]
        parameter_bucket_bytes: Updated parameters gathered together; None: by block. [B]
        offload: What waits outside of the devices.
    """

    in_line: tuple[str, ...] = ()
    overlap_pipeline: bool | None = None
    overlap_optimizer: bool = False
    prefetch: Prefetch | None = None
    reshard_after_forward: bool = True
    gradient_bucket_bytes: float | None = None
    parameter_bucket_bytes: float | None = None
    offload: Offload = field(default_factory=Offload)

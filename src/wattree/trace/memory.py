"""Memory of one step: of the fullest device, and of what lies behind the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFix:
    """A change that would make the job fit (or fit better).

    Attributes:
        change: Description of the change.
        peak_bytes: Memory with it. [B]
        step_time_s: Step with it. [s]
    """

    change: str
    peak_bytes: float
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors:
    """Equal tensors of one rank that are live at its peak.

    Attributes:
        category: A category of `MemoryUse.by_category`.
        kind: `stored` for the whole step, `saved` from forward to backward, `gathered` from other
            ranks, `deferred` until a weight's gradient is computed, `temporary`, or a `buffer`.
        block: Block of the model that they belong to; empty if none.
        name: Tensor in the block, or the operator whose temporary result it is.
        tensors: Number of tensors: blocks of that kind x micro-batches.
        micro_batches: Number of micro-batches; None if they belong to the whole step.
        bytes: Size of all of them. [B]
    """

    category: str
    kind: str
    block: str
    name: str
    tensors: int
    bytes: float
    micro_batches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorUse:
    """Memory of a modeled allocator for the tensors of one rank. [B]

    Attributes:
        name: `caching`, `expandable` or `bfc`.
        tensor_bytes: Peak of live tensors in the part of the step that was executed.
        allocated_bytes: The same, each tensor rounded up to the allocator's blocks.
        reserved_bytes: Memory that it reserves on the device.
        fragmentation_bytes: Reserved memory without the tensors.
        retries: Tensors for which it first had to free cached memory.
        events: Allocations and frees that were executed.
        complete: Whether these are all of the step's.
    """

    name: str
    tensor_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    fragmentation_bytes: float
    retries: int
    events: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak device memory of the fullest rank. [B]

    Attributes:
        peak_bytes: Peak, with the framework's overhead.
        capacity_bytes: Memory of the device.
        fits: Whether the peak is within the capacity.
        by_category: Parts of the peak; add up to it.
        fixes: The cheapest changes that help, cheapest in step time first.
        live: The live tensors at the peak of the ranks `live_on`, largest first; empty if the
            simulation is not detailed.
        live_on: The fullest ranks, or the requested ones.
        live_bytes: Sum of `live`: the peak of their live tensors.
        allocator: Memory of an allocator for them; None unless requested.
    """

    peak_bytes: float
    capacity_bytes: float
    fits: bool
    by_category: Mapping[str, float]
    fixes: tuple[MemoryFix, ...] = ()
    live: tuple[LiveTensors, ...] = ()
    live_on: str = ""
    live_bytes: float = 0.0
    allocator: AllocatorUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """A memory behind the devices in one step.

    Attributes:
        name: `host` or `cxl`.
        rank_bytes: Bytes of the rank with the most. [B]
        used_bytes, capacity_bytes: Use and capacity of one `capacity_of`. [B]
        capacity_of: `device`, `node` or `pool`.
        fits: Whether the use is within the capacity.
        traffic_bytes: Bytes read and written by all ranks in a step. [B]
    """

    name: str
    rank_bytes: float
    used_bytes: float
    capacity_bytes: float
    capacity_of: str
    fits: bool
    traffic_bytes: float

"""Which settings the closed form knows, and which traffic they leave hidden behind computation."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.cost import Software
from wattree.hardware import Cluster
from wattree.lowering.memory_tier_access import reached_offload
from wattree.strategy import StrategyOptions

__all__ = ["Hidden", "gathered_copies", "habit", "hidden_traffic", "is_expressible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Whether each kind of traffic runs beside computation.

    Attributes:
        gradients: Their reductions.
        forward_gathers, backward_gathers: Of sharded parameters, for use.
        updates: Gathers of what a sharded optimiser updated.
        transfers: Between pipeline stages.
    """

    gradients: bool
    forward_gathers: bool
    backward_gathers: bool
    updates: bool
    transfers: bool


def hidden_traffic(options: StrategyOptions, software: Software) -> Hidden:
    """Return what is hidden where the strategy chooses, or else what the software hides."""
    traffic = options.traffic
    parameters = habit(
        choice=options.traffic.overlap_parameters, default=software.overlap_parameters
    )
    forward = backward = parameters
    if (prefetch := traffic.prefetch) is not None:
        forward = prefetch.ahead(prefetch.forward) > 1
        backward = prefetch.ahead(prefetch.backward) > 1
    separate = "parameters" not in traffic.in_line
    gradients = habit(choice=options.traffic.overlap_gradients, default=software.overlap_gradients)
    transfers = habit(choice=traffic.overlap_pipeline, default=software.overlap_pipeline)
    return Hidden(
        gradients=gradients and "gradients" not in traffic.in_line,
        forward_gathers=separate and forward,
        backward_gathers=separate and backward,
        updates=separate and parameters,
        transfers=transfers and "pipeline" not in traffic.in_line,
    )


def gathered_copies(options: StrategyOptions) -> float:
    """Return how many blocks' parameters are gathered at once beside those that are kept."""
    traffic = options.traffic
    if not traffic.reshard_after_forward:
        return 0.0
    if "parameters" in traffic.in_line:
        return 1.0
    if (prefetch := traffic.prefetch) is None:
        return 2.0
    return float(max(prefetch.ahead(depth) for depth in (prefetch.forward, prefetch.backward)))


def is_expressible(options: StrategyOptions, cluster: Cluster) -> bool:
    """Return whether the closed form knows all settings.

    Not what is copied to memory behind the devices or freed early, and not what makes ranks differ:
    owners of tables, or a first device that does more than the others.

    Args:
        options: The settings.
        cluster: Whose nodes say how memory behind the devices is used.
    """
    offload = options.traffic.offload
    copied = bool(offload.tiers)
    if copied and not cluster.is_mixed:
        copied = bool(reached_offload(offload, cluster.node)[0].tiers)
    alike = options.parallelism.tables == "data-parallel" and not options.parallelism.single_process
    moves_plainly = not options.traffic.overlap_optimizer
    return alike and moves_plainly and not copied


def habit(*, choice: bool | None, default: bool) -> bool:
    """Return what a strategy chooses, or else what its software does."""
    return default if choice is None else choice

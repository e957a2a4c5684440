"""Check which settings the closed form supports."""

from __future__ import annotations

from wattree.hardware import Cluster
from wattree.lowering.memory_tier_access import split_offload
from wattree.strategy import StrategyOptions


def is_expressible(options: StrategyOptions, cluster: Cluster) -> bool:
    """Return whether the closed form supports all settings.

    Not what is copied to memory behind the devices or freed early, and not what makes ranks differ:
    owners of tables, or a first device that does more than the others.

    Args:
        cluster: Whose nodes say how memory behind the devices is used.
    """
    offload = options.traffic.offload
    copied = bool(offload.tiers)
    if copied and not cluster.is_mixed:
        copied = bool(split_offload(offload, cluster.node)[0].tiers)
    alike = options.parallelism.tables == "data-parallel" and not options.parallelism.single_process
    moves_plainly = not options.traffic.overlap_optimizer
    return alike and moves_plainly and not copied

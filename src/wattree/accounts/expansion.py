"""Memory tiers in an executed step: their contents, and the overflow of the devices.

What overflows is taken evenly from all that is on a device, of the fullest rank as of all others:
the share `1 - capacity / footprint` of it lies in expanded memory, and as large a share of the
accesses goes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.accounts.executed import ExecutedStep
from wattree.accounts.overhead import process_bytes, strategy_groups_bytes
from wattree.arrays import Floats, Integers
from wattree.cost.expanded import ExpandedMemory, bandwidth_factor
from wattree.cost.rates import Rates
from wattree.graph import ModelGraph
from wattree.hardware import Cluster, Node
from wattree.lowering.memory_tier_access import expanded_memory, split_offload
from wattree.strategy import Offload, StrategyOptions
from wattree.trace import MemoryUse, TierUse

#: Strategies whose memory is slower by the same within one part in so many share their costs.
_APART = 256.0


def spilled_share(footprint: Floats, capacity: float, offload: Offload) -> Floats:
    """Return the share of what is on a device that overflows to expanded memory, from 0 to 1.

    Args:
        footprint: Of the fullest device, as the driver would count it. [B]
        capacity: Of a device. [B]
    """
    if offload.overflow is None:
        return np.zeros_like(footprint)
    return np.maximum(0.0, 1.0 - capacity / np.maximum(footprint, 1.0))


def tier_capacity(node: Node, name: str) -> tuple[float, str]:
    """Return the capacity of a memory tier, and its owner: device, node or pool. [B]"""
    if name == "host":
        return node.host.memory_bytes, "node"
    assert node.cxl is not None
    whose = "device" if node.cxl.per_device else "node"
    return node.cxl.memory_bytes, "pool" if node.cxl.pooled else whose


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedTier:
    """Expanded memory of strategies that share their options.

    Attributes:
        tier2_offload: What lies there by class.
        spilled: Share of the rest that overflows, `(n,)`; None: nothing.
    """

    cluster: Cluster
    tier2_offload: Offload
    spilled: Floats | None

    @classmethod
    def of(cls, cluster: Cluster, options: StrategyOptions, spilled: Floats | None) -> ExpandedTier:
        """Return what `options` put there."""
        offload = options.traffic.offload
        tier2_offload = Offload()
        if offload.tiers and not cluster.is_mixed:
            _, tier2_offload = split_offload(offload, cluster.node)
        return cls(cluster=cluster, tier2_offload=tier2_offload, spilled=spilled)

    def distinguishing_columns(self, stages: Floats) -> tuple[Floats, ...]:
        """Return columns of whole numbers that tell strategies of other bandwidth apart."""
        columns: tuple[Floats, ...] = ()
        if self.spilled is not None and (tier := self._tier(np.zeros(1), np.ones(1))) is not None:
            factor = bandwidth_factor(self.spilled, tier.ratio, concurrent=False)
            slower = np.round(_APART * np.log(factor))
            columns = (slower - slower.min(initial=0.0),)
        return (*columns, stages) if self.tier2_offload.activations else columns

    def rates(self, rates: Rates, model: ModelGraph, chosen: Integers, stages: Floats) -> Rates:
        """Return what devices reach under some of the strategies.

        Args:
            stages: Pipeline degree of all, `(n,)`.
        """
        if self.spilled is None and not replace(self.tier2_offload, overflow=None).tiers:
            return rates
        over = np.zeros(len(chosen)) if self.spilled is None else self.spilled[chosen]
        tier = self._tier(over, max(model.layers, 1) / stages[chosen])
        return rates if tier is None else replace(rates, expanded=tier)

    def _tier(self, spilled: Floats, stage_layers: Floats) -> ExpandedMemory | None:
        if not self.tier2_offload.tiers:
            return None
        return expanded_memory(
            self.tier2_offload,
            self.cluster.node,
            devices=self.cluster.devices,
            spilled=spilled,
            stage_layers=stage_layers,
        )


def tier_uses(step: ExecutedStep) -> tuple[TierUse, ...]:
    """Return the contents and traffic of each memory tier that a step uses."""
    trace, cluster, ranks = step.trace, step.cluster, step.ranks
    found = []
    for each in step.compilation.tiers:
        node = cluster.node
        over = np.zeros(len(trace.peak_bytes))
        if each.name == "cxl":
            groups = strategy_groups_bytes(step.strategy, node, step.setting)
            over = step.spilled * process_bytes(trace.peak_bytes, step.setting, node.device, groups)
        most = each.placed_bytes + float(over.max())
        every = each.placed_total_bytes + float(over @ trace.graph.class_ranks)
        capacity, whose = tier_capacity(node, each.name)
        together = {"device": most, "node": most * min(ranks, node.devices), "pool": every}
        found.append(
            TierUse(
                name=each.name,
                rank_bytes=most,
                used_bytes=together[whose],
                capacity_bytes=capacity,
                capacity_of=whose,
                fits=together[whose] <= capacity,
                traffic_bytes=each.traffic_bytes,
            )
        )
    return tuple(found)


def tier_notes(step: ExecutedStep) -> tuple[str, ...]:
    """Return what a reader must know of expanded memory that devices reach."""
    cluster, offload, spilled = step.cluster, step.strategy.traffic.offload, step.spilled
    if (
        "cxl" not in offload.tiers
        or cluster.node.cxl is None
        or not cluster.node.cxl.is_accessed_in_place
    ):
        return ()
    way = {
        "serial": "one access after another",
        "concurrent": "streaming at once with their own memory",
    }[cluster.node.cxl.access]
    notes = [f"devices read and write expanded memory as they work, {way}"]
    if offload.overflow is not None:
        share = f"{spilled:.1%} of what is on a device overflows, and as much of its accesses"
        notes.append(share if spilled > 0 else "nothing overflows: all has room on the devices")
    return tuple(notes)


def with_spill(memory: MemoryUse, spilled: float, tiers: Sequence[TierUse]) -> MemoryUse:
    """Return the memory of the fullest device, less what overflows."""
    if spilled > 0:
        kept = 1.0 - spilled
        memory = replace(
            memory,
            peak_bytes=min(kept * memory.peak_bytes, memory.capacity_bytes),
            fits=True,
            by_category={name: kept * size for name, size in memory.by_category.items()},
        )
    return replace(memory, fits=memory.fits and all(tier.fits for tier in tiers))

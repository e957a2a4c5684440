"""Memory and traffic of a step in each memory tier behind the devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.compiler.tasks.copies import COPIES
from wattree.compiler.tasks.step_tasks import BuiltStage
from wattree.cost.update import tier2_update_share
from wattree.lowering.step import LoweredJob, LoweredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTraffic:
    """A memory behind the devices in one step.

    Attributes:
        name: One of `strategy.TIERS`.
        placed_bytes: What the rank with most there has there by class. [B]
        placed_total_bytes: The same of all ranks. [B]
        traffic_bytes: To and from it, of all ranks. [B]
    """

    name: str
    placed_bytes: float
    placed_total_bytes: float
    traffic_bytes: float


def tier_traffic(
    steps: LoweredJob, built: Sequence[Sequence[BuiltStage]]
) -> tuple[TierTraffic, ...]:
    """Return the use of each memory tier behind the devices in one step.

    Args:
        built: Its stages, each at every level of ranks.
    """
    found = []
    for tier in steps.of_kind[0].strategy.traffic.offload.tiers:
        most, total, moved = 0.0, 0.0, 0.0
        for ranks, level, stage, number in _executed(steps, built):
            held = stage.waiting.get(tier, 0.0)
            most, total = max(most, held), total + ranks * held
            records, rows = stage.program.records, stage.program.rows
            copies = rows[np.isin(records["copy"], COPIES[tier])[rows]]
            moved += ranks * float(records["wire_bytes"][copies].sum())
            if tier in steps.of_kind[0].moves.tier2_offload.tiers:
                moved += ranks * _accessed_bytes(steps.of_kind[0], number, level)
        found.append(
            TierTraffic(name=tier, placed_bytes=most, placed_total_bytes=total, traffic_bytes=moved)
        )
    return tuple(found)


def _executed(
    steps: LoweredJob, built: Sequence[Sequence[BuiltStage]]
) -> Iterator[tuple[int, int, BuiltStage, int]]:
    """Yield ranks of a stage at a level, the level, their program, and the stage's number."""
    levels, topology = steps.of_kind[0].levels, steps.topology
    for number, own in enumerate(built):
        ranks = topology.stage_ranks(number)
        for level, stage in enumerate(own):
            mine = ranks if levels is None else ranks[levels.of_rank[ranks] == level]
            yield len(mine), level, stage, number


def _accessed_bytes(step: LoweredStep, stage: int, level: int) -> float:
    """Return the bytes that one rank of a stage accesses in expanded memory in a step. [B]"""
    schedule, count = step.strategy.schedule, step.strategy.mesh.pipeline
    chunks, placement = step.chunks, schedule.placed(count)
    own = [chunks[placement.model_chunk(stage, chunk)] for chunk in range(placement.chunks)]
    programs = [step.program.instances[instance] for chunk in own for instance in chunk]
    each = sum(_at(step.costs[program].tier2_traffic_bytes, level) for program in programs)
    storages = [step.storages[program] for program in programs]
    updated, rows, wider = (
        sum(_at(getattr(s, name), level) for s in storages)
        for name in ("updated_elements", "tier2_elements", "wider_state")
    )
    near = step.moves.update_traffic_bytes(updated, wider)
    tier2 = step.moves.update_traffic_bytes(rows, 0.0)
    tier2 = tier2 if step.moves.tier2_offload.tables is not None else 0.0
    share = tier2_update_share(step.state_bytes, step.software, step.rates)
    micro_batches = schedule.micro_batches / placement.copies
    return float(micro_batches * each + near * share + tier2)


def _at(values: np.ndarray | None, level: int) -> float:
    if values is None:
        return 0.0
    return float(values[level] if len(values) > 1 else values[0])

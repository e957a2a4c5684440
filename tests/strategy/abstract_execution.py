"""Schedules played with equal chunks and free transfers: slow, obvious, no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattree.strategy.schedules import (
    PIPELINE_SCHEDULES,
    ChunkPlacement,
    Order,
    Place,
    Slot,
    SlotWork,
    stage_orders,
)
from wattree.strategy.schedules.check import most_live

__all__ = ["Played", "execute", "orders_of", "play_orders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened.

    Attributes:
        makespan: End of the last slot.
        stuck: Stages that wait for ever; empty if all finished.
        in_flight: Most micro-batches whose activations a stage holds, chunk by chunk, by stage.
        idle: Time between a stage's first start and its last end in which it does nothing.
        first: Start of each stage's first slot.
        last: End of each stage's last slot.
        busy: Work of each stage.
    """

    makespan: float
    stuck: tuple[int, ...]
    in_flight: tuple[int, ...]
    idle: tuple[float, ...]
    first: tuple[float, ...]
    last: tuple[float, ...]
    busy: tuple[float, ...]


def orders_of(name: str, stages: int, chunks: int, micro_batches: int) -> list[Order]:
    """Return the order of every stage."""
    return list(stage_orders(name, stages=stages, chunks=chunks, micro_batches=micro_batches))


def play_orders(
    name: str,
    stages: int,
    chunks: int,
    micro_batches: int,
    *,
    forward: float,
    backward: float,
    weight: float | None = None,
    pairs: bool = False,
) -> Played:
    """Play a schedule by name.

    Args:
        name: Of the schedule.
        stages: Pipeline degree.
        chunks: On each stage.
        micro_batches: Per step.
        forward: Time of a chunk's forward.
        backward: Time of its whole backward.
        weight: The part of `backward` that the weight gradient takes; half if not given.
        pairs: As `execute`.
    """
    chunks = PIPELINE_SCHEDULES[name].chunks or chunks
    placement = PIPELINE_SCHEDULES[name].placement(stages, chunks)
    weight = backward / 2 if weight is None else weight
    times = {
        SlotWork.FORWARD: forward,
        SlotWork.BACKWARD: backward,
        SlotWork.INPUT_GRADIENT: backward - weight,
        SlotWork.WEIGHT_GRADIENT: weight,
    }
    orders = orders_of(name, stages, chunks, micro_batches)
    return execute(orders, placement, times, pairs=pairs)


def execute(
    orders: Sequence[Order],
    placement: ChunkPlacement,
    times: dict[SlotWork, float],
    *,
    pairs: bool = False,
) -> Played:
    """Play every stage's order; a slot starts when its stage is free and its input is there.

    Args:
        orders: One per stage.
        placement: Where the chunks lie.
        times: Of each kind of work.
        pairs: Slots side by side start and end together.
    """
    stages = len(orders)
    ended: dict[tuple[Place, int, bool], float] = {}  # (place, micro-batch, backward) -> time
    at = [0] * stages
    free = [0.0] * stages
    first: list[float | None] = [None] * stages
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                slots = order[at[stage] : at[stage] + 2]
                if not pairs or not slots[-1].overlaps:
                    slots = slots[:1]
                ready = [_ready(s, Place(stage, s.chunk), placement, ended) for s in slots]
                if None in ready:
                    break
                start = max(free[stage], *(r for r in ready if r is not None))
                if first[stage] is None:
                    first[stage] = start
                free[stage] = start + sum(times[slot.work] for slot in slots)
                for slot in slots:
                    if slot.hands_on:
                        place = Place(stage, slot.chunk)
                        ended[place, slot.micro_batch, slot.backward] = free[stage]
                at[stage] += len(slots)
                moved = True
    starts = tuple(start or 0.0 for start in first)
    busy = tuple(sum(times[slot.work] for slot in order) for order in orders)
    return Played(
        makespan=max(free),
        stuck=tuple(s for s, order in enumerate(orders) if at[s] < len(order)),
        in_flight=tuple(most_live(order) for order in orders),
        idle=tuple(e - s - b for e, s, b in zip(free, starts, busy, strict=True)),
        first=starts,
        last=tuple(free),
        busy=busy,
    )


def _ready(
    slot: Slot,
    place: Place,
    placement: ChunkPlacement,
    ended: dict[tuple[Place, int, bool], float],
) -> float | None:
    """Return when the slot's input is there, or None if it is not yet known."""
    if slot.work is SlotWork.FORWARD:
        hop = placement.before.get(place)
        return 0.0 if hop is None else ended.get((hop.place, slot.micro_batch, False))
    own = ended.get((place, slot.micro_batch, slot.work is SlotWork.WEIGHT_GRADIENT))
    hop = placement.after.get(place)
    if own is None or hop is None or slot.work is SlotWork.WEIGHT_GRADIENT:
        return own
    return ended.get((hop.place, slot.micro_batch, True))

"""Schedules played with equal chunks and free transfers: slow, obvious, no compiler."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.strategy.schedules import Slot, stage_order

__all__ = ["Played", "play_orders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened.

    Attributes:
        makespan: End of the last slot.
        stuck: Stages that wait for ever; empty if all finished.
        in_flight: Most micro-batches whose activations a stage holds, chunk by chunk, by stage.
    """

    makespan: float
    stuck: tuple[int, ...]
    in_flight: tuple[int, ...]


def play_orders(
    name: str, stages: int, chunks: int, micro_batches: int, *, forward: float, backward: float
) -> Played:
    """Play every stage's order; a slot starts when its stage is free and its input is there."""
    orders = [
        stage_order(name, stage=s, stages=stages, chunks=chunks, micro_batches=micro_batches)
        for s in range(stages)
    ]
    ended: dict[tuple[int, int, bool], float] = {}  # (global chunk, micro-batch, backward) -> time
    at = [0] * stages
    free = [0.0] * stages
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                slot = order[at[stage]]
                ready = _ready(slot, stage, stages, stages * chunks, ended)
                if ready is None:
                    break
                start = max(free[stage], ready)
                free[stage] = start + (backward if slot.backward else forward)
                ended[slot.chunk * stages + stage, slot.micro_batch, slot.backward] = free[stage]
                at[stage] += 1
                moved = True
    stuck = tuple(s for s, order in enumerate(orders) if at[s] < len(order))
    return Played(
        makespan=max(free), stuck=stuck, in_flight=tuple(_most_in_flight(o) for o in orders)
    )


def _ready(
    slot: Slot, stage: int, stages: int, total: int, ended: dict[tuple[int, int, bool], float]
) -> float | None:
    """Return when the slot's input is there, or None if it is not yet known."""
    chunk, m = slot.chunk * stages + stage, slot.micro_batch
    if not slot.backward:
        return 0.0 if chunk == 0 else ended.get((chunk - 1, m, False))
    own = ended.get((chunk, m, False))
    if chunk == total - 1 or own is None:
        return own
    return ended.get((chunk + 1, m, True))


def _most_in_flight(order: tuple[Slot, ...]) -> int:
    level = most = 0
    for slot in order:
        level += -1 if slot.backward else 1
        most = max(most, level)
    return most

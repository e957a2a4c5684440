"""Checks of pipeline orders, one per stage, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.strategy.schedules.placement import ChunkPlacement, Place
from wattree.strategy.schedules.schedule import Order
from wattree.strategy.schedules.slot import Slot, SlotWork

#: Problems named at most: one fault in an order often shows in every micro-batch.
_SHOWN = 8


def order_problems(
    orders: Sequence[Order],
    placement: ChunkPlacement,
    micro_batches: int,
) -> list[str]:
    """Return the problems of `orders`; empty if they can run.

    Checked: every piece once, on a chunk that the micro-batch comes by; forward before backward,
    input gradient before weight gradient; no stage that waits for ever.

    Args:
        orders: One per stage.
    """
    found = [
        problem
        for stage, order in enumerate(orders)
        for problem in _own_problems(stage, order, placement, micro_batches)
    ]
    if not found:
        found = _stuck(orders, placement)
    rest = len(found) - _SHOWN
    return found if rest <= 0 else [*found[:_SHOWN], f"and {rest} more problem(s)"]


def most_live(order: Order) -> int:
    """Return the peak number of chunk micro-batches with stored activations.

    They live from the forward to the weight gradient, or to the whole backward.
    """
    return sum(live_by_chunk(order, 1 + max((slot.chunk for slot in order), default=0)))


def live_by_chunk(order: Order, chunks: int) -> tuple[int, ...]:
    """Return the micro-batches with stored activations on each chunk, at the stage's peak."""
    live = [0] * chunks
    total = most = 0
    at_peak = tuple(live)
    for slot in order:
        if slot.work is SlotWork.FORWARD:
            live[slot.chunk] += 1
            total += 1
        elif slot.ends:
            live[slot.chunk] -= 1
            total -= 1
        if total > most:
            most, at_peak = total, tuple(live)
    return at_peak


def _own_problems(
    stage: int, order: Order, placement: ChunkPlacement, micro_batches: int
) -> list[str]:
    """Return the problems visible in the order of one stage alone."""
    found = []
    seen: set[Slot] = set()
    for slot in (slot.alone for slot in order):
        where = slot.in_words(stage)
        if not 0 <= slot.chunk < placement.chunks:
            found.append(f"{where}: the stage holds {placement.chunks} chunk(s), counted from 0")
            continue
        passing = placement.micro_batches(Place(stage, slot.chunk), micro_batches)
        if slot.micro_batch not in passing:
            found.append(f"{where}: expected micro-batches {_span(passing)} on this chunk")
            continue
        if slot in seen:
            found.append(f"{where}: comes twice")
            continue
        if (problem := _too_early(slot, seen)) is not None:
            found.append(f"{where}: {problem}")
        seen.add(slot)
    for chunk in range(placement.chunks):
        for m in placement.micro_batches(Place(stage, chunk), micro_batches):
            found += [
                f"{missing.in_words(stage)}: is missing" for missing in _missing(chunk, m, seen)
            ]
    return found


def _span(passing: range) -> str:
    return f"{passing.start} to {passing.stop - 1}" if len(passing) else "none"


def _too_early(slot: Slot, seen: set[Slot]) -> str | None:
    if slot.work is SlotWork.FORWARD:
        return None
    if slot._replace(work=SlotWork.FORWARD) not in seen:
        return "comes before its forward"
    whole = slot._replace(work=SlotWork.BACKWARD)
    split = slot._replace(work=SlotWork.INPUT_GRADIENT)
    if slot.work is SlotWork.BACKWARD:
        return "repeats an input gradient; write B, or I and W" if split in seen else None
    if whole in seen:
        return "repeats a whole backward; write B, or I and W"
    if slot.work is SlotWork.WEIGHT_GRADIENT and split not in seen:
        return "comes before its input gradient"
    return None


def _missing(chunk: int, micro_batch: int, seen: set[Slot]) -> list[Slot]:
    forward, backward, split, weight = (Slot(chunk, micro_batch, work) for work in SlotWork)
    missing = [] if forward in seen else [forward]
    if split in seen or weight in seen:
        return missing + [piece for piece in (split, weight) if piece not in seen]
    return missing if backward in seen else [*missing, backward]


def _stuck(orders: Sequence[Order], placement: ChunkPlacement) -> list[str]:
    """Return one line for each blocked slot, with the dependency it waits for."""
    at = [0] * len(orders)
    sent: set[tuple[Place, int, bool]] = set()
    moved = True
    while moved:
        # A list, not a generator: every stage gets its turn in every round.
        moves = [_advanced(stage, order, at, placement, sent) for stage, order in enumerate(orders)]
        moved = any(moves)
    found = []
    for stage, order in enumerate(orders):
        for slot in _together(order, at[stage]):
            source = _wait(slot, stage, placement, sent)
            if source is not None:
                found.append(_wait_in_words(slot, stage, source, orders, at))
    return found


def _advanced(
    stage: int,
    order: Order,
    at: list[int],
    placement: ChunkPlacement,
    sent: set[tuple[Place, int, bool]],
) -> bool:
    """Advance a stage as far as possible; return whether it advanced."""
    before = at[stage]
    while at[stage] < len(order):
        together = _together(order, at[stage])
        if any(_wait(slot, stage, placement, sent) is not None for slot in together):
            break
        for slot in together:
            if slot.hands_on:
                sent.add((Place(stage, slot.chunk), slot.micro_batch, slot.backward))
        at[stage] += len(together)
    return at[stage] > before


def _together(order: Order, at: int) -> Order:
    """Return the slot at a position of an order and its overlapped partner; none at the end."""
    return (
        order[at : at + 2] if at + 1 < len(order) and order[at + 1].overlaps else order[at : at + 1]
    )


def _wait(
    slot: Slot,
    stage: int,
    placement: ChunkPlacement,
    sent: set[tuple[Place, int, bool]],
) -> Place | None:
    """Return the place whose result `slot` depends on and that has not finished."""
    if not slot.hands_on:
        return None
    hops = placement.after if slot.backward else placement.before
    hop = hops.get(Place(stage, slot.chunk))
    if hop is None or (hop.place, slot.micro_batch, slot.backward) in sent:
        return None
    return hop.place


def _wait_in_words(
    slot: Slot, stage: int, source: Place, orders: Sequence[Order], at: Sequence[int]
) -> str:
    works = (SlotWork.BACKWARD, SlotWork.INPUT_GRADIENT) if slot.backward else (SlotWork.FORWARD,)
    wanted = next(
        other
        for other in orders[source.stage]
        if (other.chunk, other.micro_batch) == (source.chunk, slot.micro_batch)
        and other.work in works
    )
    head = orders[source.stage][at[source.stage]]
    behind = "" if head == wanted else f", which stands behind {head.in_words(source.stage)}"
    return f"{slot.in_words(stage)}: waits for ever for {wanted.in_words(source.stage)}{behind}"

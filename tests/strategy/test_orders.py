"""Orders of pipeline schedules as they are written, and what the check says of wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import StrategyError, UnknownNameError
from wattree.strategy import Schedule
from wattree.strategy.schedules import Slot, SlotWork, looped, read_slot, stage_orders
from wattree.strategy.schedules.check import order_problems
from wattree.strategy.schedules.orders import schedule_misfits

# ---------------------------------------------------------------- what orders say


def test_one_order_written_out() -> None:
    """Second of three stages, four micro-batches: one forward to warm up, then pairs."""
    order = stage_orders("1f1b", stages=3, chunks=1, micro_batches=4)[1]

    shown = "".join(str(slot) for slot in order)

    assert shown == "F0F1B0F2B1F3B2B3"


def test_a_split_order_written_out() -> None:
    """Last of three stages under ZB-H1: two weight gradients wait for the end."""
    order = stage_orders("zb-h1", stages=3, chunks=1, micro_batches=4)[2]

    shown = " ".join(str(slot) for slot in order)

    assert shown == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


@given(
    chunk=st.integers(0, 9), micro_batch=st.integers(0, 999), work=st.sampled_from(list(SlotWork))
)
def test_a_piece_is_read_as_it_is_written(chunk: int, micro_batch: int, work: SlotWork) -> None:
    """`W3@1`: the weight gradient of micro-batch 3 on the stage's second chunk."""
    slot = Slot(chunk, micro_batch, work)

    assert read_slot(str(slot)) == slot


def problems_of(*orders: str, chunks: int = 1, micro_batches: int = 2) -> list[str]:
    """Return what is wrong with orders written as text."""
    slots = [tuple(read_slot(piece) for piece in order.split()) for order in orders]
    return order_problems(slots, looped(len(orders), chunks), micro_batches)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ("F0 B0 F0 F1 B1", "stage 0, chunk 0, micro-batch 0, forward: comes twice"),
        (
            "F0 B1 F1 B0",
            "stage 0, chunk 0, micro-batch 1, backward: comes before its forward",
        ),
        (
            "F0 F1 W0 I0 B1",
            "stage 0, chunk 0, micro-batch 0, weight gradient: comes before its input gradient",
        ),
        ("F0 F1 B0", "stage 0, chunk 0, micro-batch 1, backward: is missing"),
        ("F0 F1 B0 I1", "stage 0, chunk 0, micro-batch 1, weight gradient: is missing"),
        (
            "F0 F1 B0 B1 W1",
            "stage 0, chunk 0, micro-batch 1, weight gradient: repeats a whole backward; "
            "write B, or I and W",
        ),
        (
            "F0 F1 F2 B0 B1",
            "stage 0, chunk 0, micro-batch 2, forward: expected micro-batches 0 to 1 on this chunk",
        ),
        (
            "F0 F1 B0 B1 F0@1",
            "stage 0, chunk 1, micro-batch 0, forward: the stage holds 1 chunk(s), counted from 0",
        ),
    ],
)
def test_the_check_names_the_piece_that_is_wrong(order: str, problem: str) -> None:
    """With stage, chunk and micro-batch, and what to write instead."""
    assert problem in problems_of(order)


def test_a_deadlock_names_who_waits_for_whom() -> None:
    """The first stage wants a gradient before it hands on what the second stage does before."""
    problems = problems_of("F0 B0 F1 B1", "F0 F1 B0 B1")

    assert problems == [
        "stage 0, chunk 0, micro-batch 0, backward: waits for ever for stage 1, chunk 0, "
        "micro-batch 0, backward, which stands behind stage 1, chunk 0, micro-batch 1, forward",
        "stage 1, chunk 0, micro-batch 1, forward: waits for ever for stage 0, chunk 0, "
        "micro-batch 1, forward, which stands behind stage 0, chunk 0, micro-batch 0, backward",
    ]


def test_a_custom_order_is_checked_before_it_runs() -> None:
    """The error of the whole strategy carries the check's words."""
    order = tuple(
        tuple(Slot(0, m, w) for m, w in ((0, SlotWork.BACKWARD), (0, SlotWork.FORWARD)))
        for _ in "a"
    )

    with pytest.raises(StrategyError, match="micro-batch 0, backward: comes before its forward"):
        Schedule(name="custom", order=order).orders(1)


@pytest.mark.parametrize(
    ("name", "stages", "chunks", "misfit"),
    [
        (
            "zb-h1",
            4,
            2,
            {"name": "zb-h1 runs one chunk on each stage, found 2 virtual stages; use interleaved"},
        ),
        (
            "zb-v",
            4,
            3,
            {"virtual_stages": "zb-v runs 2 chunks on each stage, found 3; leave it out"},
        ),
        (
            "dualpipe",
            3,
            1,
            {"name": "dualpipe pairs each stage with its mirror, found pp 3; use an even pp"},
        ),
        ("dualpipev", 3, 2, {}),
    ],
)
def test_what_a_schedule_cannot_run_on_is_said(
    name: str, stages: int, chunks: int, misfit: dict[str, str]
) -> None:
    """By key of the schedule, with what would help."""
    assert schedule_misfits(name, stages=stages, chunks=chunks) == misfit


def test_an_unknown_schedule_is_refused_with_the_nearest_one() -> None:
    """A spelling mistake is mended by the message."""
    with pytest.raises(UnknownNameError) as caught:
        stage_orders("interleave", stages=1, chunks=1, micro_batches=1)

    assert str(caught.value) == (
        "unknown pipeline schedule 'interleave'; did you mean 'interleaved'? "
        "known: 1f1b, breadth-first, dualpipe, dualpipev, gpipe, interleaved, zb-h1, zb-h2, zb-v"
    )

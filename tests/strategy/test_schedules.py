"""Pipeline schedules: legal, free of deadlock, and as good as their papers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategy.abstract_play import play_orders
from wattree.errors import UnknownNameError
from wattree.strategy.schedules import SCHEDULE_ORDERS, Slot, check_order, stage_order

NAMES = tuple(SCHEDULE_ORDERS)
stages_of = st.integers(1, 7)
micro_batches_of = st.integers(1, 17)
chunks_of = st.integers(1, 4)
seconds = st.floats(0.1, 10.0)


@given(
    name=st.sampled_from(NAMES), stages=stages_of, chunks=chunks_of, micro_batches=micro_batches_of
)
def test_every_stage_does_everything_once_and_forward_first(
    name: str, stages: int, chunks: int, micro_batches: int
) -> None:
    """No task twice, none left out, no backward before its forward."""
    chunks = 1 if name == "1f1b" else chunks  # which runs one chunk on each stage

    problems = [
        check_order(
            stage_order(
                name, stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches
            ),
            chunks=chunks,
            micro_batches=micro_batches,
        )
        for stage in range(stages)
    ]

    assert problems == [[]] * stages


@given(
    name=st.sampled_from(NAMES),
    stages=stages_of,
    chunks=chunks_of,
    micro_batches=micro_batches_of,
    forward=seconds,
    backward=seconds,
)
def test_no_schedule_comes_to_a_deadlock(
    *, name: str, stages: int, chunks: int, micro_batches: int, forward: float, backward: float
) -> None:
    """Whatever the ratio of forward and backward, and if rounds do not divide as well."""
    chunks = 1 if name == "1f1b" else chunks

    played = play_orders(name, stages, chunks, micro_batches, forward=forward, backward=backward)

    assert played.stuck == ()


@given(
    name=st.sampled_from(("gpipe", "1f1b")),
    stages=stages_of,
    micro_batches=micro_batches_of,
    forward=seconds,
    backward=seconds,
)
def test_the_bubble_is_that_of_the_papers(
    name: str, stages: int, micro_batches: int, forward: float, backward: float
) -> None:
    """(p - 1) / m of the ideal time (Huang et al. 2019; Narayanan et al., SC 2021, §2.2.1)."""
    ideal = micro_batches * (forward + backward)
    bubble = (stages - 1) / micro_batches * ideal

    played = play_orders(name, stages, 1, micro_batches, forward=forward, backward=backward)

    assert played.makespan == pytest.approx(ideal + bubble, rel=1e-9)


@given(stages=stages_of, chunks=chunks_of, rounds=st.integers(1, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, chunks: int, rounds: int
) -> None:
    """(p - 1) / (m v) of the ideal time (Narayanan et al., SC 2021, §2.2.2)."""
    micro_batches = rounds * stages
    ideal = micro_batches * 3.0
    bubble = (stages - 1) / (micro_batches * chunks) * ideal

    played = play_orders(
        "interleaved", stages, chunks, micro_batches, forward=1 / chunks, backward=2 / chunks
    )

    assert played.makespan == pytest.approx(ideal + bubble, rel=1e-9)


@given(stages=stages_of, chunks=chunks_of, more=st.integers(0, 12))
def test_rounds_that_do_not_divide_leave_no_larger_bubble(
    stages: int, chunks: int, more: int
) -> None:
    """The paper asks for a multiple of the stages; longer rounds do as well."""
    micro_batches = stages + more
    bubble = (stages - 1) * 3.0 / chunks

    played = play_orders(
        "interleaved", stages, chunks, micro_batches, forward=1 / chunks, backward=2 / chunks
    )

    assert played.makespan <= micro_batches * 3.0 + bubble + 1e-9


@given(stages=stages_of, micro_batches=micro_batches_of)
def test_1f1b_keeps_at_most_as_many_micro_batches_as_stages_are_left(
    stages: int, micro_batches: int
) -> None:
    """Narayanan et al., PipeDream-2BW 2021, §2.2: p micro-batches in flight, not m as in GPipe."""
    played = play_orders("1f1b", stages, 1, micro_batches, forward=1.0, backward=2.0)

    assert played.in_flight == tuple(min(stages - s, micro_batches) for s in range(stages))


@given(stages=stages_of, micro_batches=micro_batches_of)
def test_gpipe_keeps_every_micro_batch(stages: int, micro_batches: int) -> None:
    """All forwards come before all backwards."""
    played = play_orders("gpipe", stages, 1, micro_batches, forward=1.0, backward=2.0)

    assert played.in_flight == (micro_batches,) * stages


@given(stages=st.integers(2, 7), chunks=st.integers(2, 4), rounds=st.integers(2, 4))
def test_interleaving_keeps_more_than_1f1b_but_no_more_than_its_warm_up(
    stages: int, chunks: int, rounds: int
) -> None:
    """Korthikanti et al. 2022, §4.2.3: 1 + (p - 1) / (p v) of 1F1B's activations on the first."""
    played = play_orders("interleaved", stages, chunks, rounds * stages, forward=1.0, backward=2.0)

    first_in_layers = played.in_flight[0] / chunks

    assert first_in_layers == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


def test_one_order_written_out() -> None:
    """Second of three stages, four micro-batches: one forward to warm up, then pairs."""
    order = stage_order("1f1b", stage=1, stages=3, chunks=1, micro_batches=4)

    shown = "".join(f"{'B' if slot.backward else 'F'}{slot.micro_batch}" for slot in order)

    assert shown == "F0F1B0F2B1F3B2B3"


def test_the_check_names_what_is_wrong() -> None:
    """A backward too early, a forward twice, the rest missing."""
    backward, forward = Slot(0, 0, True), Slot(0, 0, False)

    problems = check_order((backward, forward, forward), chunks=1, micro_batches=2)

    assert problems == [
        f"{backward} comes before its forward",
        f"{forward} comes twice",
        "2 task(s) are missing",
    ]


def test_an_unknown_schedule_is_refused_with_the_nearest_one() -> None:
    """A spelling mistake is mended by the message."""
    with pytest.raises(UnknownNameError) as caught:
        stage_order("interleave", stage=0, stages=1, chunks=1, micro_batches=1)

    assert str(caught.value) == (
        "unknown pipeline schedule 'interleave'; did you mean 'interleaved'? "
        "known: 1f1b, gpipe, interleaved"
    )

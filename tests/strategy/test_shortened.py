"""Shorter orders: the turns that are left out are those that a long order repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.strategy.schedules import (
    PIPELINE_SCHEDULES,
    Order,
    longest_run,
    shortened,
    stage_orders,
)

REPEATED = tuple(name for name, each in PIPELINE_SCHEDULES.items() if each.turns(2, 64))


def with_turns(order: Order, begin: int, length: int, turn: int, times: int) -> Order:
    """Return an order in which a turn of `length` slots comes again before what follows it."""
    end = begin + length
    again = [
        slot._replace(micro_batch=slot.micro_batch + count * turn)
        for count in range(1, times + 1)
        for slot in order[begin:end]
    ]
    later = [slot._replace(micro_batch=slot.micro_batch + times * turn) for slot in order[end:]]
    return (*order[:end], *again, *later)


def test_orders_that_put_weights_off_or_go_forward_first_are_left_whole() -> None:
    """In the first the state at the end of a turn is not that at its begin, as a rule."""
    assert set(REPEATED) == {"1f1b", "interleaved"}


@given(
    name=st.sampled_from(REPEATED),
    stages=st.integers(1, 9),
    chunks=st.integers(2, 4),
    micro_batches=st.integers(1, 160),
    after=st.sampled_from((0, 1)),
)
def test_the_long_order_is_the_short_one_with_more_turns(
    *, name: str, stages: int, chunks: int, micro_batches: int, after: int
) -> None:
    """At every place where a turn follows its like, so also in the middle of them."""
    shape = {"stages": stages, "chunks": PIPELINE_SCHEDULES[name].chunks or chunks}
    short = shortened(name, **shape, micro_batches=micro_batches, after=after)
    if short is None:
        return

    long = stage_orders(name, **shape, micro_batches=micro_batches)

    for whole, order, middle in zip(long, short.orders, short.middle, strict=True):
        assert with_turns(order, middle, short.length, short.turn, short.times) == whole
        assert len(order) <= len(whole) // 2 + short.length


def test_few_micro_batches_are_not_worth_it() -> None:
    """What is left out must be at least half."""
    shape = {"stages": 4, "chunks": 1}

    assert shortened("1f1b", **shape, micro_batches=21) is None
    assert shortened("1f1b", **shape, micro_batches=22) is not None
    assert shortened("gpipe", **shape, micro_batches=1000) is None
    assert shortened("interleaved", **{**shape, "chunks": 2}, micro_batches=1001) is None


@pytest.mark.parametrize(
    ("holds", "expected"),
    [([], (0, 0)), ([0, 0], (0, 0)), ([1, 0, 1, 1], (2, 4)), ([1, 1, 0, 1, 1], (0, 2))],
)
def test_the_longest_run_is_the_first_of_equals(
    holds: list[int], expected: tuple[int, int]
) -> None:
    """By hand."""
    assert longest_run([bool(each) for each in holds]) == expected

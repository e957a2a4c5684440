"""Messages of gloo's calls: how many bytes, between whom, and what waits for what."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from benchmarks.netlab.scenario import COLLECTIVES, ScenarioTask
from benchmarks.netlab.traffic import Message, messages_of


def call(kind: str, ranks: int, size_bytes: int, root: int = 0) -> list[Message]:
    """Return the messages of one call."""
    hosts = tuple(f"h{rank}" for rank in range(ranks))
    return messages_of(
        ScenarioTask(
            name="t",
            kind=kind,
            hosts=hosts,
            stream="w",
            communicator="w",
            size_bytes=size_bytes,
            root=root,
        )
    )


#: Bytes that each rank sends, over the size: byte counters of the recorded scenarios.
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


@given(kind=st.sampled_from(sorted(SENT)), ranks=st.integers(2, 9), parts=st.integers(1, 3_000_000))
def test_every_rank_sends_and_receives_what_the_counters_saw(
    kind: str, ranks: int, parts: int
) -> None:
    """All ranks alike: torch's reduce-scatter moves the bytes of an all-reduce."""
    size_bytes = 4 * ranks * parts
    messages = call(kind, ranks, size_bytes)

    for rank in range(ranks):
        sent = sum(one.size_bytes for one in messages if one.source == rank)
        received = sum(one.size_bytes for one in messages if one.target == rank)
        assert sent == pytest.approx(SENT[kind](ranks) * size_bytes)
        assert received == pytest.approx(sent)


@given(ranks=st.integers(2, 17), root=st.integers(0, 16))
def test_a_broadcast_tells_every_rank_once_and_only_after_its_sender_heard(
    ranks: int, root: int
) -> None:
    """Whole messages: nothing is passed on before all of it is there."""
    root %= ranks
    messages = call("broadcast", ranks, 1000, root)

    heard = {root}
    for one in messages:
        assert one.source in heard
        assert {messages[k].target for k in one.arrived} == {one.source} - {root}
        heard.add(one.target)
    assert (len(messages), heard) == (ranks - 1, set(range(ranks)))


@given(kind=st.sampled_from(COLLECTIVES), ranks=st.integers(2, 9), parts=st.integers(1, 10**7))
def test_a_message_waits_for_earlier_ones_only(kind: str, ranks: int, parts: int) -> None:
    """So no call can wait for itself."""
    for index, one in enumerate(call(kind, ranks, 4 * ranks * parts)):
        assert all(k < index for k in (*one.arrived, *one.sent))
        assert one.source != one.target


def test_a_ring_goes_the_way_gloo_goes() -> None:
    """An all-reduce sends to the rank before, an all-gather to the rank after."""
    assert {(m.source, m.target) for m in call("all_reduce", 3, 1200)} == {(0, 2), (1, 0), (2, 1)}
    assert {(m.source, m.target) for m in call("all_gather", 3, 1200)} == {(0, 1), (1, 2), (2, 0)}


def test_segments_are_at_most_a_mebibyte_and_at_least_two_per_part() -> None:
    """16 MiB over 4 ranks go in 4 segments per part, 512 KiB in 2."""
    assert {m.size_bytes for m in call("all_reduce", 4, 16 * 2**20)} == {2**20}
    assert {m.size_bytes for m in call("all_reduce", 4, 2**19)} == {2**16}

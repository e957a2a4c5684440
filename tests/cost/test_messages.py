"""Messages of collectives: they do what the collective is, and send no byte too many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.executor import bytes_between, carried_bytes, wrong_ends
from tests.cost.groups import contiguous_group
from wattree.cost.algorithms import ALGORITHMS, Call, schedule_of
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import EVERY, MessageSchedule
from wattree.cost.algorithms.registry import KINDS
from wattree.errors import CostError, UnknownNameError

EVEN_ONLY = {"hierarchical", "nvls", "sharp", "rail"}
#: Algorithm → what it can do; the test below compares it with what each of them refuses.
CAN = {
    "direct": set(KINDS),
    "halving-doubling": {"all_reduce", "all_gather", "reduce_scatter"},
    "hierarchical": {"all_reduce", "all_gather", "reduce_scatter"},
    "nvls": {"all_reduce", "all_gather", "reduce_scatter"},
    "rail": {"all_to_all"},
    "ring": set(KINDS),
    "sharp": {"all_reduce"},
    "torus": {"all_reduce", "all_gather", "reduce_scatter"},
    "tree": {"all_reduce"},
}
PAIRS = [(name, kind) for name in sorted(CAN) for kind in sorted(CAN[name])]


@st.composite
def groups(draw: st.DrawFn, *, even: bool = False, most: int = 14) -> RankGroup:
    """Return ranks spread over domains, in any order, with switches that add."""
    if even:
        domains, inside = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        sizes = [inside] * domains
    else:
        sizes = draw(
            st.lists(st.integers(1, 5), min_size=1, max_size=5).filter(lambda s: sum(s) <= most)
        )
    node = draw(st.permutations([index for index, size in enumerate(sizes) for _ in range(size)]))
    devices = draw(st.permutations(range(len(node))))
    return RankGroup(
        devices=np.array(devices, dtype=np.int64),
        node=np.array(node, dtype=np.int64),
        switches=tuple(f"switch{index}" for index in range(len(sizes))),
    )


@st.composite
def tori(draw: st.DrawFn) -> RankGroup:
    """Return ranks that fill a grid of one to three axes, some of length one."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    ranks = int(np.prod(shape))
    devices = np.array(draw(st.permutations(range(ranks))), dtype=np.int64)
    return RankGroup(devices=devices, node=np.zeros(ranks, dtype=np.int64), shape=shape)


def drawn(algorithm: str, kind: str, draw: st.DataObject) -> tuple[Call, MessageSchedule]:
    """Return a call and its messages."""
    shaped = tori() if algorithm == "torus" else groups(even=algorithm in EVEN_ONLY)
    size = draw.draw(st.integers(0, 10**9))
    call = Call(kind=kind, size_bytes=size, group=draw.draw(shaped), switch="spine")
    return call, schedule_of(call, algorithm)


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
@given(draw=st.data())
@settings(max_examples=40)
def test_every_rank_ends_with_what_it_should(
    algorithm: str, kind: str, draw: st.DataObject
) -> None:
    """Played on data: sums hold every contribution once, gathers every part, for any group."""
    _, schedule = drawn(algorithm, kind, draw)

    assert wrong_ends(schedule) == []


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
@given(draw=st.data())
@settings(max_examples=15)
def test_chunks_say_what_the_collective_is(algorithm: str, kind: str, draw: st.DataObject) -> None:
    """Whoever makes the messages, the parts of the ranks are those of the definition."""
    call, schedule = drawn(algorithm, kind, draw)
    n = call.group.ranks
    if n == 1:
        return
    owned = np.zeros((n, n) if kind == "all_to_all" else n)
    for size, source, target in zip(
        schedule.chunk_bytes, schedule.source, schedule.target, strict=True
    ):
        if kind == "all_to_all":
            owned[source, target] += size
        elif kind == "all_gather":
            owned[source] += size
        elif kind == "reduce_scatter":
            owned[target] += size
    total = float(schedule.chunk_bytes.sum())

    if kind == "all_to_all":
        away = ~np.eye(n, dtype=bool)
        assert owned[away] == pytest.approx(np.full(n * (n - 1), call.size_bytes / n))
    elif kind in {"all_gather", "reduce_scatter"}:
        assert owned == pytest.approx(np.full(n, call.size_bytes / n))
    else:
        assert total == pytest.approx(call.size_bytes)


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
@given(draw=st.data())
@settings(max_examples=15)
def test_bytes_sent_are_bytes_received(algorithm: str, kind: str, draw: st.DataObject) -> None:
    """And both are what the chunks of the messages add up to."""
    _, schedule = drawn(algorithm, kind, draw)
    counted = bytes_between(schedule)

    assert carried_bytes(schedule, "sender") == pytest.approx(counted.sum(axis=1))
    assert carried_bytes(schedule, "receiver") == pytest.approx(counted.sum(axis=0))


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
@given(draw=st.data())
@settings(max_examples=15)
def test_no_rank_receives_less_than_it_needs(
    algorithm: str, kind: str, draw: st.DataObject
) -> None:
    """Lower bounds: what a rank must end with and does not begin with has to come in."""
    _, schedule = drawn(algorithm, kind, draw)
    needed = np.zeros(len(schedule.vertices))
    for rank in range(schedule.ranks):
        is_target = (schedule.target == rank) | (schedule.target == EVERY)
        has_all = (schedule.source == rank) | (schedule.ranks == 1)
        needed[rank] = schedule.chunk_bytes[is_target & ~has_all].sum()

    received = carried_bytes(schedule, "receiver")
    # Where all contribute, a rank can make up its own part of the sum and have the rest added
    # elsewhere, but every byte of the sum of others comes in.
    assert np.all(received >= needed * (1 - 1e-9))


@pytest.mark.parametrize("algorithm", sorted(CAN))
def test_an_algorithm_refuses_what_it_has_not(algorithm: str) -> None:
    """And the table of this file is the truth about what it has."""
    group = RankGroup(
        devices=np.arange(4),
        node=np.array([0, 0, 1, 1]),
        switches=("switch0", "switch1"),
        shape=(2, 2),
    )
    call = {kind: Call(kind=kind, size_bytes=4.0, group=group, switch="spine") for kind in KINDS}
    for kind in set(KINDS) - CAN[algorithm]:
        with pytest.raises(CostError, match=f"'{algorithm}' has no {kind}; it has "):
            schedule_of(call[kind], algorithm)

    assert all(schedule_of(call[kind], algorithm).rounds for kind in CAN[algorithm])
    assert set(CAN) == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", sorted(CAN))
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_sends_nothing(algorithm: str, kind: str) -> None:
    """It has no one to talk to."""
    call = Call(kind=kind, size_bytes=1e9, group=contiguous_group(1, 1))

    schedule = schedule_of(call, algorithm)

    assert schedule.rounds == ()


def test_an_unknown_algorithm_is_refused() -> None:
    """The known ones are listed."""
    call = Call(kind="all_reduce", size_bytes=1.0, group=contiguous_group(2, 2))

    with pytest.raises(
        UnknownNameError, match="unknown collective algorithm 'rign'; did you mean 'ring'"
    ):
        schedule_of(call, "rign")


GROUP = contiguous_group(4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gossip"}, "unknown collective 'gossip'; known: all_reduce, all_gather,"),
        ({"size_bytes": -1.0}, "all_reduce: size -1.0 B, expected 0 or more"),
        ({"size_bytes": float("nan")}, "all_reduce: size nan B, expected 0 or more"),
    ],
)
def test_a_call_that_means_nothing_is_refused(change: dict[str, object], message: str) -> None:
    """The message names what was asked for."""
    asked: dict[str, object] = {"kind": "all_reduce", "size_bytes": 1.0, "group": GROUP}

    with pytest.raises(CostError, match=message):
        Call(**(asked | change))  # type: ignore[arg-type]


def test_groups_that_cannot_be_are_refused() -> None:
    """A device that takes part twice, a group of no one."""
    with pytest.raises(CostError, match="device 3 is in the group more than once"):
        RankGroup(devices=np.array([3, 1, 3]), node=np.array([0, 0, 0]))
    with pytest.raises(CostError, match="needs at least one rank and a domain for each, found 0"):
        RankGroup(devices=np.array([], dtype=np.int64), node=np.array([], dtype=np.int64))


@pytest.mark.parametrize("algorithm", sorted(EVEN_ONLY))
def test_algorithms_on_two_levels_need_even_groups(algorithm: str) -> None:
    """The message says what can be used instead."""
    group = RankGroup(devices=np.arange(3), node=np.array([0, 0, 1]), switches=("a", "b"))
    kind = min(CAN[algorithm])

    with pytest.raises(CostError, match="found 1 to 2; use 'ring', 'tree' or 'direct'"):
        schedule_of(Call(kind=kind, size_bytes=1.0, group=group, switch="spine"), algorithm)


def test_switches_that_cannot_add_are_refused() -> None:
    """NVLS on devices without it, SHARP without saying where."""
    call = Call(kind="all_reduce", size_bytes=1.0, group=GROUP)

    with pytest.raises(CostError, match="needs a switch that adds in every domain"):
        schedule_of(call, "nvls")
    with pytest.raises(CostError, match="'sharp' needs the vertex whose switches add"):
        schedule_of(call, "sharp")
    with pytest.raises(
        CostError, match="'torus' needs a group that fills a torus, or a whole slic"
    ):
        schedule_of(call, "torus")

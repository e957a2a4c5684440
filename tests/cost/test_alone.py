"""Time and link loads of collectives: closed forms, ASTRA-sim's runs, and nodes that share."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.executor import carried_bytes
from tests.cost.groups import contiguous_group, uneven_exchange
from tests.cost.one_switch import names
from tests.cost.switches import by_link, cluster
from wattree.cost.algorithms import (
    Call,
    Routes,
    group_of,
    link_loads,
    schedule_of,
    time_alone,
)
from wattree.cost.algorithms.group import RankGroup
from wattree.errors import CostError, HardwareError
from wattree.hardware import Link, Network
from wattree.hardware.network import cable
from wattree.hardware.topologies import join
from wattree.hardware.topologies.switch import switch_fabric

ALPHA_S, RATE = 2e-6, 5e9
sizes = st.integers(1, 10**10)


def one_switch(ranks: int) -> Routes:
    """Return ranks on a switch: any pair at full rate, as closed forms assume."""
    fabric = switch_fabric(names(ranks), bandwidth_bytes_per_s=RATE, latency_s=ALPHA_S)
    return Routes(fabric)


def alone_s(kind: str, size: float, group: RankGroup, algorithm: str, routes: Routes) -> float:
    """Return the time of a collective alone."""
    schedule = schedule_of(Call(kind=kind, size_bytes=size, group=group), algorithm)
    return time_alone(schedule, routes).total_s


# ------------------------------------------------------------------------------ closed forms


@pytest.mark.parametrize(
    ("kind", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]
)
@given(ranks=st.integers(2, 64), size=sizes)
@settings(max_examples=25)
def test_a_ring_takes_its_closed_form(kind: str, passes: int, ranks: int, size: int) -> None:
    """(n - 1) (alpha + S / n beta) for each pass: Thakur et al. 2005, section 4."""
    expected = passes * (ranks - 1) * (ALPHA_S + size / ranks / RATE)

    found = alone_s(kind, size, contiguous_group(ranks, ranks), "ring", one_switch(ranks))

    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]
)
@given(power=st.integers(1, 7), size=sizes)
@settings(max_examples=25)
def test_halving_and_doubling_take_their_closed_form(
    kind: str, passes: int, power: int, size: int
) -> None:
    """Per pass lg n alpha + (n - 1) / n S beta: Rabenseifner 2004, Thakur et al. 2005."""
    n = 2**power
    expected = passes * (power * ALPHA_S + (n - 1) / n * size / RATE)

    found = alone_s(kind, size, contiguous_group(n, n), "halving-doubling", one_switch(n))

    assert found == pytest.approx(expected, rel=1e-9)


@given(ranks=st.integers(2, 100).filter(lambda n: n & (n - 1)), size=sizes)
@settings(max_examples=25)
def test_halving_pays_two_whole_steps_where_the_ranks_are_no_power_of_two(
    ranks: int, size: int
) -> None:
    """Thakur et al. 2005, section 4.5: the ranks out hand their data over, and get it back."""
    power = ranks.bit_length() - 1
    extra = ranks - 2**power
    # The first `extra` members stand for two ranks each, so that theirs is the largest block.
    largest = sum(min(2 * 2**bit, 2**bit + extra) for bit in range(power)) / ranks
    expected = (2 * power + 2) * ALPHA_S + 2 * (1 + largest) * size / RATE

    found = alone_s(
        "all_reduce", size, contiguous_group(ranks, ranks), "halving-doubling", one_switch(ranks)
    )

    assert found == pytest.approx(expected, rel=1e-9)


@given(ranks=st.integers(2, 40), size=sizes)
@settings(max_examples=20)
def test_a_direct_exchange_takes_one_step(ranks: int, size: int) -> None:
    """It takes alpha + (n - 1) / n S beta, since all parts of a rank leave by one port."""
    expected = ALPHA_S + (ranks - 1) / ranks * size / RATE

    found = alone_s("all_to_all", size, contiguous_group(ranks, ranks), "direct", one_switch(ranks))

    assert found == pytest.approx(expected, rel=1e-9)


@given(domains=st.integers(2, 33), size=sizes)
@settings(max_examples=25)
def test_double_trees_send_the_data_once_up_and_once_down(domains: int, size: int) -> None:
    """Sanders et al. 2009: two trees with half of the data; latency 2 (lg n + 1) alpha or less."""
    group = contiguous_group(domains, 1)
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=size, group=group), "tree")
    alone = time_alone(schedule, one_switch(domains))
    sent = carried_bytes(schedule, "sender")

    assert float(sent.sum()) == pytest.approx(2 * (domains - 1) * size)
    assert float(sent.max()) <= 2 * size * (1 + 1e-9)
    # Both directions are full at once: up to one S each way alongside the S of the other.
    assert size / RATE * (domains - 1) / domains <= alone.transfer_s * (1 + 1e-9)
    assert alone.transfer_s <= 2 * size / RATE * (1 + 1e-9)
    assert alone.latency_s <= 2 * (math.floor(math.log2(domains)) + 1) * ALPHA_S * (1 + 1e-9)


@given(domains=st.integers(1, 6), inside=st.integers(1, 8), size=sizes)
@settings(max_examples=25)
def test_two_levels_take_their_closed_form(domains: int, inside: int, size: int) -> None:
    """2 (m - 1) (a + S / m b) + 2 (N - 1) (a' + S / (m N) b')."""
    n = domains * inside
    if n == 1:
        return
    routes = two_levels(domains, inside)
    within = 2 * (inside - 1) * (ALPHA_S + size / inside / RATE)
    between = 2 * (domains - 1) * (5 * ALPHA_S + size / n / (RATE / 8))

    found = alone_s("all_reduce", size, contiguous_group(n, inside), "hierarchical", routes)

    assert found == pytest.approx(within + between, rel=1e-9)


def two_levels(domains: int, inside: int) -> Routes:
    """Return switches within domains, and a slower switch for every place between them."""
    every = names(domains * inside)
    parts = [
        switch_fabric(
            every[domain * inside : (domain + 1) * inside],
            bandwidth_bytes_per_s=RATE,
            latency_s=ALPHA_S,
            name=f"inner{domain}",
        )
        for domain in range(domains)
    ]
    parts += [
        switch_fabric(
            every[place::inside],
            bandwidth_bytes_per_s=RATE / 8,
            latency_s=5 * ALPHA_S,
            name=f"outer{place}",
        )
        for place in range(inside)
    ]
    # Fewest links first, and the inner switch among equals: a domain keeps its own traffic.
    return Routes(join(parts))


# -------------------------------------------------------------------------------------- rest


@given(draw=st.data())
@settings(max_examples=60)
def test_routes_are_those_of_the_network(draw: st.DataObject) -> None:
    """The compiled search breaks ties as `Network.path` does, one pair or many."""
    count = draw.draw(st.integers(2, 9))
    ends = st.integers(0, count - 1)
    pairs = draw.draw(
        st.lists(st.tuples(ends, ends).filter(lambda p: p[0] != p[1]), min_size=1, max_size=30)
    )
    links = tuple(Link(source=f"v{a}", target=f"v{b}", bandwidth_bytes_per_s=1.0) for a, b in pairs)
    vertices = Network(links=links).vertices
    passing = draw.draw(st.none() | st.sets(st.sampled_from(vertices)))
    network = Network(links=links, forwards=None if passing is None else frozenset(passing))
    routes = Routes(network)
    for one in vertices:
        for other in vertices:
            places = routes.places([one, other])
            try:
                expected = network.path(one, other)
            except HardwareError:
                with pytest.raises(CostError, match=f"no path leads from '{one}' to '{other}'"):
                    routes.crossed(places[:1], places[1:])
                continue
            assert tuple(routes.crossed(places[:1], places[1:]).links.tolist()) == expected


def test_ranks_that_are_not_joined_are_named() -> None:
    """Both the rank that is nowhere and the two that cannot reach each other."""
    routes = Routes(Network(links=(*cable("d0", "d1", 1.0), *cable("d2", "d3", 1.0))))
    apart = Call(
        kind="all_reduce",
        size_bytes=1.0,
        group=RankGroup(devices=np.array([0, 1, 2]), node=np.zeros(3, dtype=np.int64)),
    )
    nowhere = Call(
        kind="all_reduce",
        size_bytes=1.0,
        group=RankGroup(devices=np.array([0, 7]), node=np.zeros(2, dtype=np.int64)),
    )

    with pytest.raises(CostError, match="no path leads from 'd2' to 'd0'; join them with links"):
        link_loads(schedule_of(apart, "ring"), routes)
    with pytest.raises(
        CostError, match="no link of the network touches 'd7', which is in the group"
    ):
        time_alone(schedule_of(nowhere, "ring"), routes)


def test_a_device_outside_the_cluster_is_refused() -> None:
    """The message says how many there are."""
    with pytest.raises(CostError, match="device 16 of the group is not in the cluster"):
        group_of(cluster("hgx-h100", 2), [0, 16])


def test_one_rank_takes_no_time() -> None:
    """Nor any link, in whatever network."""
    schedule = schedule_of(
        Call(kind="all_reduce", size_bytes=1e9, group=contiguous_group(1, 1)), "ring"
    )

    assert time_alone(schedule, one_switch(2)).total_s == 0.0
    assert not link_loads(schedule, one_switch(2)).any()


def test_uneven_parts_load_links_by_the_matrix() -> None:
    """As routing to experts makes them: one hot rank receives most."""
    matrix = np.array([[5.0, 100.0, 1.0], [2.0, 7.0, 3.0], [4.0, 50.0, 9.0]])

    loads = by_link(uneven_exchange(matrix), one_switch(3))

    assert loads["nvswitch0>d1"] == 150.0
    assert loads["d1>nvswitch0"] == 5.0
    assert loads["d0>nvswitch0"] == 101.0


def test_large_groups_take_milliseconds() -> None:
    """16,384 ranks in a ring, 64 in an exchange: the best of a few tries, on any machine."""

    def best_s(make: Call, algorithm: str) -> float:
        took = []
        for _ in range(5):
            start = time.thread_time()
            schedule_of(make, algorithm)
            took.append(time.thread_time() - start)
        return min(took)

    ring_call = Call(kind="all_reduce", size_bytes=1e9, group=contiguous_group(16_384, 8))
    exchange = Call(kind="all_to_all", size_bytes=1e9, group=contiguous_group(64, 8))

    assert best_s(ring_call, "ring") < 0.2
    assert best_s(exchange, "direct") < 0.02

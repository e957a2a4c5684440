"""Bounds, identities and symmetries of the collectives' cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cost import GroupShape, LinkRates, collective_latency_s, port_loads, volume_factor
from wattree.cost.collective import PortLoads
from wattree.errors import CostError
from wattree.graph import TokenRouting

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
RING = ("all_gather", "reduce_scatter")
sizes_bytes = st.floats(0.0, 2.0**40)
kinds = st.sampled_from(KINDS)


@st.composite
def groups(draw: st.DrawFn) -> GroupShape:
    """Return whole domains of equal size."""
    inside, domains = draw(st.integers(1, 72)), draw(st.integers(1, 64))
    return GroupShape(ranks=np.array([float(inside * domains)]), inside=np.array([float(inside)]))


@st.composite
def links(draw: st.DrawFn) -> LinkRates:
    """Return links whose switches may add."""
    scale_up = draw(st.floats(1e8, 1e12))
    return LinkRates(
        scale_up_bytes_per_s=scale_up,
        scale_up_reduce_bytes_per_s=scale_up * draw(st.floats(1.0, 2.0)),
        adapter_bytes_per_s=draw(st.floats(1e8, 1e11)),
        alpha_s=draw(st.floats(0.0, 1e-4)),
        alpha_network_s=draw(st.floats(0.0, 1e-4)),
    )


def faster(given_links: LinkRates, factor: float) -> LinkRates:
    """Return links with `factor` times the bandwidth."""
    return LinkRates(
        scale_up_bytes_per_s=given_links.scale_up_bytes_per_s * factor,
        scale_up_reduce_bytes_per_s=given_links.scale_up_reduce_bytes_per_s * factor,
        adapter_bytes_per_s=given_links.adapter_bytes_per_s * factor,
        alpha_s=given_links.alpha_s,
        alpha_network_s=given_links.alpha_network_s,
    )


def loads(kind: str, size: float, group: GroupShape, rates: LinkRates) -> PortLoads:
    """Return the loads of a buffer."""
    return port_loads(kind, np.array([size]), group, rates)


def time_s(kind: str, size: float, group: GroupShape, rates: LinkRates) -> float:
    """Return latency plus the busier port's time."""
    load = loads(kind, size, group, rates)
    work = max(
        float(load.scale_up[0]) / rates.scale_up_bytes_per_s,
        float(load.adapter[0]) / rates.adapter_bytes_per_s,
    )
    return float(collective_latency_s(kind, group, rates)[0]) + work


@given(kind=kinds, size=sizes_bytes, rates=links())
def test_one_rank_costs_nothing(kind: str, size: float, rates: LinkRates) -> None:
    """It has no one to talk to."""
    alone = GroupShape(ranks=np.array([1.0]), inside=np.array([1.0]))

    assert time_s(kind, size, alone, rates) == 0.0
    assert float(volume_factor(kind, np.array([1.0]))[0]) == 0.0


@given(ranks=st.integers(1, 100_000))
def test_scatter_and_gather_move_the_bytes_of_an_all_reduce(ranks: int) -> None:
    """Patarasuk and Yuan 2009: the ring all-reduce is one after the other."""
    n = np.array([float(ranks)])

    both = volume_factor("reduce_scatter", n) + volume_factor("all_gather", n)

    assert both == pytest.approx(volume_factor("all_reduce", n))


@given(size=sizes_bytes, group=groups(), rates=links())
def test_an_all_reduce_never_beats_the_ring_bound(
    size: float, group: GroupShape, rates: LinkRates
) -> None:
    """2 (n - 1) / n * S through the busiest port, the switches' advantage taken into account."""
    n = float(group.ranks[0])
    fastest = max(rates.scale_up_reduce_bytes_per_s, rates.adapter_bytes_per_s * group.inside[0])
    bound_s = 2 * (n - 1) / n * size / fastest

    assert time_s("all_reduce", size, group, rates) >= bound_s * (1 - 1e-9)


@given(kind=st.sampled_from(RING), size=sizes_bytes, group=groups(), rates=links())
def test_a_gather_takes_the_ring_time_inside_a_domain(
    kind: str, size: float, group: GroupShape, rates: LinkRates
) -> None:
    """(n - 1) / n * S / bandwidth, plus one latency."""
    one = GroupShape(ranks=group.inside, inside=group.inside)
    n = float(one.ranks[0])
    expected = (n - 1) / n * size / rates.scale_up_bytes_per_s + (rates.alpha_s if n > 1 else 0.0)

    assert time_s(kind, size, one, rates) == pytest.approx(expected, rel=1e-12)


@given(kind=kinds, size=sizes_bytes, group=groups(), rates=links(), factor=st.floats(1.0, 100.0))
def test_more_bandwidth_never_takes_longer(
    kind: str, size: float, group: GroupShape, rates: LinkRates, factor: float
) -> None:
    """Cost functions are monotone, other than the executor."""
    slow = time_s(kind, size, group, rates)

    assert time_s(kind, size, group, faster(rates, factor)) <= slow * (1 + 1e-12)


@given(kind=kinds, size=sizes_bytes, more=sizes_bytes, group=groups(), rates=links())
def test_more_bytes_never_take_less(
    kind: str, size: float, more: float, group: GroupShape, rates: LinkRates
) -> None:
    """Time grows with the buffer."""
    small = time_s(kind, size, group, rates)

    assert time_s(kind, size + more, group, rates) >= small * (1 - 1e-12)


@given(size=sizes_bytes, group=groups(), rates=links())
def test_an_exchange_sends_every_peer_its_part_once(
    size: float, group: GroupShape, rates: LinkRates
) -> None:
    """What leaves by both ports is (n - 1) / n of the buffer, as in nccl-tests."""
    load = loads("all_to_all", size, group, rates)
    n = float(group.ranks[0])

    assert float(load.scale_up[0] + load.adapter[0]) == pytest.approx(size * (n - 1) / n, rel=1e-9)


@given(size=sizes_bytes, group=groups(), rates=links(), copies=st.floats(1.0, 16.0))
def test_routed_copies_never_load_the_network_more(
    size: float, group: GroupShape, rates: LinkRates, copies: float
) -> None:
    """A token that visits two experts of a domain crosses to it once."""
    alone = port_loads("all_to_all", np.array([size]), group, rates)
    together = port_loads(
        "all_to_all", np.array([size]), group, rates, routing=TokenRouting(copies)
    )

    assert float(together.adapter[0]) <= float(alone.adapter[0]) * (1 + 1e-9)


def test_a_token_reaches_no_more_domains_than_its_groups_lie_in() -> None:
    """DeepSeek V3 sends a token to 4 of 8 nodes at most, 3.6 of them on average."""
    domains = np.array([1.0, 2.0, 4.0, 5.0, 6.0, 12.0, 8.0, 16.0, 64.0])
    group = GroupShape(ranks=8 * domains, inside=np.full(9, 8.0))
    rates = LinkRates(
        scale_up_bytes_per_s=1.0,
        scale_up_reduce_bytes_per_s=1.0,
        adapter_bytes_per_s=1.0,
        alpha_s=0.0,
        alpha_network_s=0.0,
    )
    free, limited = (
        port_loads("all_to_all", np.ones(9), group, rates, routing=routing).adapter
        for routing in (TokenRouting(8), TokenRouting(8, 8, 4))
    )
    rng = np.random.default_rng(0)
    drawn = [
        np.unique(
            (rng.choice(8, 4, replace=False)[rng.integers(0, 4, 8)] + rng.random(8)) * n // 8
        ).size
        for n in domains[:7]
        for _ in range(4000)
    ]
    reached = np.array(drawn).reshape(7, -1).mean(axis=1)

    assert limited[:7] == pytest.approx(reached * (1 - 1 / domains[:7]) / 8, rel=0.02)
    assert limited[6] == pytest.approx(4 * (1 - 0.75**8) * (7 / 8) / 8)
    assert (limited <= free).all()


@given(kind=kinds, size=sizes_bytes, rates=links(), order=st.permutations(range(6)))
def test_groups_of_one_shape_cost_the_same(
    kind: str, size: float, rates: LinkRates, order: list[int]
) -> None:
    """A cost depends on a group's links, not on its place in the arrays."""
    shape = GroupShape(
        ranks=np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0]),
        inside=np.array([1.0, 2.0, 4.0, 8.0, 8.0, 8.0]),
    )
    turned = GroupShape(ranks=shape.ranks[order], inside=shape.inside[order])
    buffer = np.full(6, size)

    straight, moved = (port_loads(kind, buffer, group, rates) for group in (shape, turned))

    assert moved.scale_up.tolist() == straight.scale_up[order].tolist()
    assert moved.adapter.tolist() == straight.adapter[order].tolist()


def test_an_unknown_collective_is_refused() -> None:
    """The message names it."""
    with pytest.raises(CostError, match="unknown collective 'gossip'"):
        volume_factor("gossip", np.array([2.0]))


def test_rings_of_gathers_visit_every_rank_and_trees_double() -> None:
    """As on 10 nodes of H100 (nccl-tests): 0.09 ms with one rank in each, 0.55 ms with eight."""
    rates = LinkRates(
        scale_up_bytes_per_s=3e11, scale_up_reduce_bytes_per_s=4e11, adapter_bytes_per_s=4e10,
        alpha_s=3e-5, alpha_network_s=7e-6, ring_step_s=7e-6,
    )  # fmt: skip

    def found(kind: str, domains: int, inside: int, given: LinkRates = rates) -> float:
        group = GroupShape(ranks=np.array([domains * inside]), inside=np.array([float(inside)]))
        return float(np.asarray(collective_latency_s(kind, group, given))[0])

    assert found("all_gather", 10, 1) == pytest.approx(0.09e-3, rel=0.1)
    assert found("reduce_scatter", 10, 8) == pytest.approx(0.55e-3, rel=0.1)
    assert found("all_gather", 1, 8) == pytest.approx(rates.alpha_s)
    doubled = replace(rates, ring_step_s=None)
    for domains in (2, 16, 256):
        assert found("all_reduce", domains, 8) == found("all_reduce", domains, 8, doubled)
    assert found("all_gather", 256, 8) > 200 * found("all_gather", 256, 8, doubled) / 8
    assert found("all_gather", 4, 72) == pytest.approx(found("all_gather", 4, 8))

"""Time and link loads of collectives: closed forms, ASTRA-sim's runs, and nodes that share."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.groups import contiguous_group
from wattree.cost import GroupShape, LinkRates, port_loads
from wattree.cost.algorithms import (
    Call,
    MessageSchedule,
    Protocol,
    RankGroup,
    Routes,
    group_of,
    link_loads,
    schedule_of,
    time_alone,
)
from wattree.errors import CostError, HardwareError
from wattree.hardware import Cluster, Link, Network, cable, load_fabric, load_node, load_site
from wattree.hardware.topologies import (
    device_name,
    join,
    network_of,
    ring,
    switch_fabric,
)

ALPHA_S, RATE = 2e-6, 5e9
sizes = st.integers(1, 10**10)


def names(count: int) -> list[str]:
    """Return device names."""
    return [device_name(device) for device in range(count)]


def one_switch(ranks: int) -> Routes:
    """Return ranks on a switch: any pair at full rate, as closed forms assume."""
    fabric = switch_fabric(names(ranks), bandwidth_bytes_per_s=RATE, latency_s=ALPHA_S)
    return Routes(fabric)


def alone_s(kind: str, size: float, group: RankGroup, algorithm: str, routes: Routes) -> float:
    """Return the time of a collective alone."""
    schedule = schedule_of(Call(kind=kind, size_bytes=size, group=group), algorithm)
    return time_alone(schedule, routes).total_s


def cluster(node: str, nodes: int, fabric: str = "rail-optimised-ndr") -> Cluster:
    """Return nodes of the catalog."""
    return Cluster(
        node=load_node(node),
        nodes=nodes,
        fabric=load_fabric(fabric),
        site=load_site("world-average"),
    )


def by_link(schedule: MessageSchedule, routes: Routes) -> dict[str, float]:
    """Return the loads by name of link."""
    loads = link_loads(schedule, routes)
    return {
        link.name: float(load)
        for link, load in zip(routes.network.links, loads, strict=True)
        if load
    }


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


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@given(ranks=st.integers(2, 100), size=sizes, root=st.integers(0, 99))
@settings(max_examples=25)
def test_a_binomial_tree_takes_its_closed_form(kind: str, ranks: int, size: int, root: int) -> None:
    """ceil(lg n) (alpha + S beta): Thakur et al. 2005, section 4.4."""
    call = Call(kind=kind, size_bytes=size, group=contiguous_group(ranks, ranks), root=root % ranks)
    expected = math.ceil(math.log2(ranks)) * (ALPHA_S + size / RATE)

    found = time_alone(schedule_of(call, "binomial"), one_switch(ranks)).total_s

    assert found == pytest.approx(expected, rel=1e-9)


@given(power=st.integers(1, 6), size=sizes)
@settings(max_examples=20)
def test_a_binomial_scatter_takes_its_closed_form(power: int, size: int) -> None:
    """Per pass lg n alpha + (n - 1) / n S beta."""
    n = 2**power
    expected = power * ALPHA_S + (n - 1) / n * size / RATE

    found = alone_s("scatter", size, contiguous_group(n, n), "binomial", one_switch(n))

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

    assert float(schedule.sent_bytes().sum()) == pytest.approx(2 * (domains - 1) * size)
    assert float(schedule.sent_bytes().max()) <= 2 * size * (1 + 1e-9)
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


# --------------------------------------------------------------------------------- ASTRA-sim

GIB_PER_S = 2.0**30  # of ASTRA-sim's network files; its memory files count 1e9


@pytest.mark.parametrize(
    ("kind", "seen_ns", "formula_ns"),
    [
        ("all_reduce", 64_440, 64_400),
        ("all_gather", 151_016, 150_976),
        ("reduce_scatter", 33_080, 33_040),
        ("all_to_all", 125_480, 125_440),
    ],
)
def test_rings_take_as_long_as_in_astra_sim(kind: str, seen_ns: int, formula_ns: int) -> None:
    """Runs of ASTRA-sim master 518bd51 on its own micro-benchmarks of 1 MB.

    8 ranks in a ring of 50 GB/s and 500 ns, 4 chunks one after another, 10 ns of endpoint delay,
    local memory of 1600 GB/s. Its all-gather takes the part of a rank as the size. Its own
    formula is some 40 ns below its runs, and it cuts every time to whole nanoseconds.
    """
    network = ring(names(8), bandwidth_bytes_per_s=2 * 50 * GIB_PER_S, latency_s=500e-9)
    size = 2**20 * (8 if kind == "all_gather" else 1)
    call = Call(kind=kind, size_bytes=size / 4, group=contiguous_group(8, 8))

    alone = time_alone(
        schedule_of(call, "ring"), Routes(network), endpoint_s=10e-9, memory_bytes_per_s=1600e9
    )
    found_ns = 4 * alone.total_s * 1e9

    assert found_ns == pytest.approx(seen_ns, rel=1e-3)
    # A residual of its memory term, cut to nanoseconds in 28 steps, is all of the difference.
    assert found_ns == pytest.approx(formula_ns, rel=1.6e-3)


@pytest.mark.parametrize(
    ("memory", "seen_ns"), [(None, 248_402), (2000e9, 270_398)], ids=["no memory", "memory"]
)
def test_two_dimensions_take_as_long_as_in_astra_sim(memory: float | None, seen_ns: int) -> None:
    """Its run `localBWAware`: all-reduce of 16 MiB over switches 4 x 2, 300 and 25 GB/s.

    Latencies of 500 and 2000 ns count twice on the way through a switch.
    """
    routes = astra_switches()
    call = Call(kind="all_reduce", size_bytes=2**24, group=contiguous_group(8, 4))

    alone = time_alone(
        schedule_of(call, "hierarchical"), routes, endpoint_s=1e-9, memory_bytes_per_s=memory
    )

    assert alone.total_s * 1e9 == pytest.approx(seen_ns, rel=1e-3)


def test_all_reduces_in_each_dimension_take_as_long_as_in_astra_sim() -> None:
    """Its run `baseline`: all of the data is reduced in every dimension, one after the other."""
    routes = astra_switches()
    total_s = 0.0
    for ranks in ([0, 1, 2, 3], [0, 4]):
        group = RankGroup(devices=np.array(ranks), node=np.zeros(len(ranks), dtype=np.int64))
        call = Call(kind="all_reduce", size_bytes=2**24, group=group)
        total_s += time_alone(schedule_of(call, "ring"), routes, endpoint_s=1e-9).total_s

    assert total_s * 1e9 == pytest.approx(717_160, rel=1e-3)


def astra_switches() -> Routes:
    """Return 4 x 2 ranks on switches of 300 GB/s, and pairs on switches of 25 GB/s."""
    inner = [
        switch_fabric(
            names(8)[4 * row : 4 * row + 4],
            bandwidth_bytes_per_s=300 * GIB_PER_S,
            latency_s=1000e-9,
            name=f"row{row}",
        )
        for row in range(2)
    ]
    outer = [
        switch_fabric(
            names(8)[place::4],
            bandwidth_bytes_per_s=25 * GIB_PER_S,
            latency_s=4000e-9,
            name=f"column{place}",
        )
        for place in range(4)
    ]
    return Routes(join([*inner, *outer]))


# ---------------------------------------------------------------------- groups on real nodes


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_a_group_over_whole_nodes_loads_every_adapter_as_the_closed_form(
    kind: str, nodes: int
) -> None:
    """Tensor parallelism over two nodes, for one: all eight adapters carry an eighth each.

    Within the node a ring that leaves it has one hop less than members, so that a device sends
    (m - 1) / m of what `port_loads` counts, which lets the ring close.
    """
    place = cluster("hgx-h100", nodes)
    routes = Routes(network_of(place))
    n, size = place.devices, 16e9
    schedule = schedule_of(
        Call(kind=kind, size_bytes=size, group=group_of(place, range(n))), "ring"
    )
    loads = by_link(schedule, routes)
    closed = closed_loads(kind, size, n, 8)
    out = [load for name, load in loads.items() if name.startswith("nic") and ">leaf" in name]
    inside = [load for name, load in loads.items() if ">nvswitch" in name]

    # Every second node is crossed backwards, so that rings stay on rails and off the spine; with
    # an odd number of nodes the last hop cannot.
    assert any("spine" in name for name in loads) == (nodes == 3)
    assert len(inside) == n
    share = 7 / 8 if nodes > 1 else 1.0
    assert inside == pytest.approx([float(closed.scale_up[0]) * share] * n)
    assert len(out) == (n if nodes > 1 else 0)
    assert out == pytest.approx([float(closed.adapter[0])] * len(out))


def closed_loads(kind: str, size: float, ranks: int, inside: int):  # noqa: ANN201
    """Return the loads of the closed form, of links alike in reductions and gathers."""
    rates = LinkRates(
        scale_up_bytes_per_s=1e9,
        scale_up_reduce_bytes_per_s=1e9,
        adapter_bytes_per_s=1e9,
        alpha_s=0.0,
        alpha_network_s=0.0,
    )
    shape = GroupShape(ranks=np.array([float(ranks)]), inside=np.array([float(inside)]))
    return port_loads(kind, np.array([size]), shape, rates)


@pytest.mark.parametrize("algorithm", ["direct", "rail"])
def test_an_exchange_loads_adapters_as_the_closed_form(algorithm: str) -> None:
    """Half of the data of a rank is for the other node, whichever way it takes."""
    place = cluster("hgx-h100", 2)
    routes = Routes(network_of(place))
    call = Call(kind="all_to_all", size_bytes=16e9, group=group_of(place, range(16)))
    loads = by_link(schedule_of(call, algorithm), routes)
    closed = closed_loads("all_to_all", 16e9, 16, 8)
    out = [load for name, load in loads.items() if ">leaf" in name and name.startswith("nic")]
    crossing = sum(load for name, load in loads.items() if name.endswith(">spine"))

    assert out == pytest.approx([float(closed.adapter[0])] * 16)
    # Rails of the sender and the receiver are the same in one of eight pairs, with PXN in all.
    assert crossing == pytest.approx({"direct": 16 * 8e9 * 7 / 8, "rail": 0.0}[algorithm])
    if algorithm == "direct":
        inside = [load for name, load in loads.items() if ">nvswitch" in name]
        assert inside == pytest.approx([float(closed.scale_up[0])] * 16)


def test_nvls_sends_the_data_once_and_a_shard() -> None:
    """S (1 + 1 / m) each way instead of 2 (m - 1) / m S."""
    place = cluster("hgx-h100", 1)
    routes = Routes(network_of(place))
    call = Call(kind="all_reduce", size_bytes=8e9, group=group_of(place, range(8)))

    loads = by_link(schedule_of(call, "nvls"), routes)

    assert list(loads.values()) == pytest.approx([9e9] * 16)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "hierarchical"])
def test_eight_groups_of_a_node_share_its_adapters(algorithm: str) -> None:
    """One data-parallel group for each place: every group stays on its own rail."""
    place = cluster("hgx-h100", 4)
    routes = Routes(network_of(place))
    total = np.zeros(len(routes.network.links))
    for local in range(8):
        group = group_of(place, [8 * node + local for node in range(4)])
        call = Call(kind="all_reduce", size_bytes=8e9, group=group)
        total += link_loads(schedule_of(call, algorithm), routes)
    out = {
        link.name: float(load)
        for link, load in zip(routes.network.links, total, strict=True)
        if link.source.startswith("nic") and link.target.startswith("leaf")
    }

    assert len(out) == 32
    if algorithm != "tree":  # whose inner nodes send more than its leaves
        assert list(out.values()) == pytest.approx([2 * 3 / 4 * 8e9] * 32)
    assert sum(out.values()) == pytest.approx(8 * 2 * 3 * 8e9)
    assert not any(
        load for link, load in zip(routes.network.links, total, strict=True) if "spine" in link.name
    )


def test_groups_on_fewer_adapters_add_up_on_them() -> None:
    """DGX-1 has four adapters for eight devices: two groups meet on each."""
    place = cluster("dgx-1", 2, "infiniband-edr-fat-tree")
    routes = Routes(network_of(place))
    total = np.zeros(len(routes.network.links))
    for local in range(8):
        call = Call(kind="all_reduce", size_bytes=1e9, group=group_of(place, [local, 8 + local]))
        total += link_loads(schedule_of(call, "ring"), routes)
    out = [
        float(load)
        for link, load in zip(routes.network.links, total, strict=True)
        if link.source.startswith("nic") and link.target.startswith("leaf")
    ]

    assert out == pytest.approx([2e9] * 8)


def test_rings_use_every_nvlink_of_a_cube_mesh_alike() -> None:
    """Three rings, both ways, over 24 cables each way: no cable carries more than another."""
    place = cluster("dgx-1", 1)
    routes = Routes(network_of(place))
    group = group_of(place, range(8))
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=6e9, group=group), "ring")
    loads = link_loads(schedule, routes)
    per_cable = {
        link.name: round(float(load) / (link.bandwidth_bytes_per_s / 25e9))
        for link, load in zip(routes.network.links, loads, strict=True)
        if link.kind == "nvlink"
    }

    assert len(group.cycles) == 6
    assert set(per_cable.values()) == {round(2 * 7 / 8 * 1e9)}
    assert not any(
        load
        for link, load in zip(routes.network.links, loads, strict=True)
        if link.kind != "nvlink"
    )


@pytest.mark.parametrize(("hosts", "length"), [(16, 4), (128, 8)])
def test_a_torus_keeps_all_links_of_a_pod_busy_alike(hosts: int, length: int) -> None:
    """Cubes of TPU v4, 4 or 8 chips a side: every link carries 1 / 6 of what a ring would.

    2 (n - 1) / n S leaves a device in all, over six links; latency is 2 x 3 (length - 1) hops.
    """
    place = cluster("tpu-v4-host", hosts)
    routes = Routes(network_of(place))
    n, size = place.devices, 6e9
    group = group_of(place, range(n))
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=size, group=group), "torus")
    alone = time_alone(schedule, routes)
    loads = by_link(schedule, routes)

    assert group.shape == (length,) * 3
    assert len(loads) == 6 * n
    assert list(loads.values()) == pytest.approx([2 * (n - 1) / n * size / 6] * (6 * n))
    assert alone.latency_s == pytest.approx(6 * (length - 1) * place.node.scale_up.latency_s)
    assert alone.transfer_s == pytest.approx(2 * (n - 1) / n * size / 300e9)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "direct", "binomial"])
@given(draw=st.data())
@settings(max_examples=10)
def test_links_of_a_rank_carry_what_it_sends(algorithm: str, draw: st.DataObject) -> None:
    """Whoever the ranks are: nothing is lost on the way out of the devices, nor into them."""
    place = cluster("hgx-h100", 3)
    routes = Routes(network_of(place))
    ranks = draw.draw(st.lists(st.integers(0, 23), min_size=2, max_size=12, unique=True))
    kind = "broadcast" if algorithm == "binomial" else "all_reduce"
    schedule = schedule_of(Call(kind=kind, size_bytes=1e6, group=group_of(place, ranks)), algorithm)
    loads = by_link(schedule, routes)
    out = [
        sum(load for name, load in loads.items() if name.startswith(f"{vertex}>"))
        for vertex in schedule.vertices
    ]
    back = [
        sum(load for name, load in loads.items() if name.endswith(f">{vertex}"))
        for vertex in schedule.vertices
    ]

    assert out == pytest.approx(schedule.sent_bytes().tolist())
    assert back == pytest.approx(schedule.received_bytes().tolist())


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


def test_impossible_settings_are_refused() -> None:
    """Negative endpoint times, memory without bandwidth."""
    schedule = schedule_of(
        Call(kind="all_reduce", size_bytes=1.0, group=contiguous_group(2, 2)), "ring"
    )

    with pytest.raises(CostError, match=r"endpoint time -1.0 s"):
        time_alone(schedule, one_switch(2), endpoint_s=-1.0)
    with pytest.raises(CostError, match=r"memory bandwidth 0.0 B/s"):
        time_alone(schedule, one_switch(2), memory_bytes_per_s=0.0)


def test_one_rank_takes_no_time() -> None:
    """Nor any link, in whatever network."""
    schedule = schedule_of(
        Call(kind="all_reduce", size_bytes=1e9, group=contiguous_group(1, 1)), "ring"
    )

    assert time_alone(schedule, one_switch(2), protocol=Protocol.LL).total_s == 0.0
    assert not link_loads(schedule, one_switch(2)).any()


def test_protocols_trade_latency_for_bandwidth() -> None:
    """LL starts fastest, Simple carries most: NCCL's reason to have three."""
    schedule = schedule_of(
        Call(kind="all_reduce", size_bytes=1e9, group=contiguous_group(8, 8)), "ring"
    )
    ll, ll128, simple = (
        time_alone(schedule, one_switch(8), protocol=protocol) for protocol in Protocol
    )

    assert ll.latency_s == pytest.approx((6.6 + 14 * 0.6) * 1e-6)
    assert ll.latency_s < ll128.latency_s < simple.latency_s + 0.1e-6 * 14 * 19
    assert simple.transfer_s == pytest.approx(2 * 7 / 8 * 1e9 / RATE)
    assert ll.transfer_s == pytest.approx(2 * simple.transfer_s)
    assert ll128.transfer_s == pytest.approx(simple.transfer_s * 128 / 120)


def test_uneven_parts_load_links_by_the_matrix() -> None:
    """As routing to experts makes them: one hot rank receives most."""
    matrix = np.array([[5.0, 100.0, 1.0], [2.0, 7.0, 3.0], [4.0, 50.0, 9.0]])
    call = Call(
        kind="all_to_all", size_bytes=0.0, group=contiguous_group(3, 3), matrix_bytes=matrix
    )

    loads = by_link(schedule_of(call, "direct"), one_switch(3))

    assert loads["nvswitch0>d1"] == 150.0
    assert loads["d1>nvswitch0"] == 5.0
    assert loads["d0>nvswitch0"] == 101.0


def test_large_groups_take_milliseconds() -> None:
    """16,384 ranks in a ring, 64 in an exchange: the best of a few tries, on any machine."""

    def best_s(make: Call, algorithm: str) -> float:
        took = []
        for _ in range(5):
            start = time.perf_counter()
            schedule_of(make, algorithm)
            took.append(time.perf_counter() - start)
        return min(took)

    ring_call = Call(kind="all_reduce", size_bytes=1e9, group=contiguous_group(16_384, 8))
    exchange = Call(kind="all_to_all", size_bytes=1e9, group=contiguous_group(64, 8))

    assert best_s(ring_call, "ring") < 0.2
    assert best_s(exchange, "direct") < 0.02

"""What collectives load on the links of real nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.executor import carried_bytes
from tests.cost.switches import by_link, cluster
from wattree.cost import GroupShape, LinkRates, port_loads
from wattree.cost.algorithms import (
    Call,
    Routes,
    group_of,
    link_loads,
    schedule_of,
    time_alone,
)
from wattree.hardware.topologies import (
    network_of,
)

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


@pytest.mark.parametrize(
    ("hosts", "shape"),
    [(16, (4, 4, 4)), (32, (4, 4, 8)), (64, (4, 8, 8)), (128, (8, 8, 8)), (192, (8, 8, 12))],
)
def test_a_torus_keeps_all_links_of_a_pod_busy_alike(hosts: int, shape: tuple[int, ...]) -> None:
    """Slices of TPU v4: every link carries 1 / 6 of what a ring would, so that time grows with n.

    2 (n - 1) / n S leaves a device in all, over six links; latency is that of all axes in turn.
    """
    place = cluster("tpu-v4-host", hosts)
    routes = Routes(network_of(place))
    n, size = place.devices, 6e9
    group = group_of(place, range(n))
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=size, group=group), "torus")
    alone = time_alone(schedule, routes)
    loads = by_link(schedule, routes)

    assert group.shape == shape
    assert len(loads) == 6 * n
    assert list(loads.values()) == pytest.approx([2 * (n - 1) / n * size / 6] * (6 * n))
    assert alone.latency_s == pytest.approx(
        2 * sum(length - 1 for length in shape) * place.node.scale_up.latency_s
    )
    assert alone.transfer_s == pytest.approx(2 * (n - 1) / n * size / 300e9)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "direct"])
@given(draw=st.data())
@settings(max_examples=10)
def test_links_of_a_rank_carry_what_it_sends(algorithm: str, draw: st.DataObject) -> None:
    """Whoever the ranks are: nothing is lost on the way out of the devices, nor into them."""
    place = cluster("hgx-h100", 3)
    routes = Routes(network_of(place))
    ranks = draw.draw(st.lists(st.integers(0, 23), min_size=2, max_size=12, unique=True))
    call = Call(kind="all_reduce", size_bytes=1e6, group=group_of(place, ranks))
    schedule = schedule_of(call, algorithm)
    loads = by_link(schedule, routes)
    out = [
        sum(load for name, load in loads.items() if name.startswith(f"{vertex}>"))
        for vertex in schedule.vertices
    ]
    back = [
        sum(load for name, load in loads.items() if name.endswith(f">{vertex}"))
        for vertex in schedule.vertices
    ]

    assert out == pytest.approx(carried_bytes(schedule, "sender").tolist())
    assert back == pytest.approx(carried_bytes(schedule, "receiver").tolist())

"""Topologies: what is joined to what, at which rate, and how many cables that takes."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hardware.networks import leaving, names, route
from wattree.errors import HardwareError
from wattree.hardware import Network
from wattree.hardware.network import cable
from wattree.hardware.node import ScaleUp
from wattree.hardware.topologies import axis_order, dragonfly, join, ring, slice_shape, torus
from wattree.hardware.topologies.cluster_network import scale_up_network
from wattree.hardware.topologies.cube_mesh import cube_mesh
from wattree.hardware.topologies.fat_tree import fat_tree
from wattree.hardware.topologies.host_tree import host_tree
from wattree.hardware.topologies.join import check_connected
from wattree.hardware.topologies.memory_tier import with_memory_tier
from wattree.hardware.topologies.mesh import full_mesh
from wattree.hardware.topologies.switch import switch_fabric

LATENCY_S = 1e-6


def test_a_switch_gives_every_pair_its_full_rate() -> None:
    """One port each; two links between any two; the latency between devices is that given."""
    network = switch_fabric(names(4), bandwidth_bytes_per_s=8.0, latency_s=LATENCY_S)

    assert route(network, "d0", "d3") == ["d0>nvswitch0", "nvswitch0>d3"]
    assert {link.bandwidth_bytes_per_s for link in network.links} == {8.0}
    assert sum(network.links[i].latency_s for i in network.path("d0", "d3")) == LATENCY_S


def test_a_full_mesh_splits_the_rate_over_the_peers() -> None:
    """Seven links of 64 GB/s: MI300X."""
    network = full_mesh(names(8), bandwidth_bytes_per_s=448e9, latency_s=LATENCY_S)

    assert len(network.links) == 8 * 7
    assert {link.bandwidth_bytes_per_s for link in network.links} == {64e9}
    assert route(network, "d2", "d7") == ["d2>d7"]


def test_a_cube_mesh_has_six_links_to_four_peers() -> None:
    """Two single and two double NVLinks at every device; the other three are one hop further."""
    network = cube_mesh(names(8), bandwidth_bytes_per_s=150e9, latency_s=LATENCY_S)
    widths = [
        sorted(link.bandwidth_bytes_per_s for link in network.links if link.source == name)
        for name in names(8)
    ]

    assert widths == [[25e9, 25e9, 50e9, 50e9]] * 8
    assert {len(route(network, "d0", name)) for name in names(8)[5:]} == {2}


def test_a_cube_mesh_of_another_size_is_refused() -> None:
    """The message says what else there is."""
    with pytest.raises(HardwareError, match="joins 8 devices, found 4; use `mesh`, `links` or 8"):
        cube_mesh(names(4), bandwidth_bytes_per_s=1.0, latency_s=0.0)


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), wrap=st.booleans())
def test_a_torus_has_the_cables_of_its_axes(shape: list[int], wrap: bool) -> None:  # noqa: FBT001
    """Length cables along each line where it wraps and has three or more, one less otherwise."""
    count = 1
    for length in shape:
        count *= length
    lines = [count // length for length in shape]
    cables = sum(
        line * (length if wrap and length > 2 else length - 1)
        for line, length in zip(lines, shape, strict=True)
    )
    network = torus(
        names(count),
        shape=shape,
        wraps=[wrap] * len(shape),
        bandwidth_bytes_per_s=6.0,
        latency_s=0.0,
    )

    assert len(network.links) == 2 * cables
    assert len({link.name for link in network.links}) == 2 * cables


def test_a_torus_reaches_its_corner_backwards() -> None:
    """Around the wrap in one hop an axis; across a mesh in as many as it is long."""
    around, across = (
        torus(
            names(64),
            shape=[4, 4, 4],
            wraps=[wraps] * 3,
            bandwidth_bytes_per_s=6.0,
            latency_s=0.0,
        )
        for wraps in (True, False)
    )

    assert len(route(around, "d0", "d63")) == 3
    assert len(route(across, "d0", "d63")) == 9
    assert {link.bandwidth_bytes_per_s for link in around.links} == {1.0}


def test_a_torus_whose_shape_holds_others_is_refused() -> None:
    """The product is named."""
    with pytest.raises(HardwareError, match="torus of shape 2x3: holds 6 devices, found 5"):
        torus(names(5), shape=[2, 3], wraps=[True] * 2, bandwidth_bytes_per_s=1.0, latency_s=0.0)


def test_a_ring_of_two_has_one_cable() -> None:
    """No second one around the back."""
    rings = {n: ring(names(n), bandwidth_bytes_per_s=2.0, latency_s=0.0) for n in (2, 3)}

    assert [len(network.links) for network in rings.values()] == [2, 6]


@pytest.mark.parametrize(("whole", "rate"), [(2, 8.0), (4, 4.0)])
def test_both_links_of_a_ring_of_two_end_at_its_other_device(whole: int, rate: float) -> None:
    """Two devices of a larger ring have one cable between them."""
    wires = ScaleUp(kind="ring", bandwidth_bytes_per_s=8.0, latency_s=0.0, domain_devices=whole)

    assert {link.bandwidth_bytes_per_s for link in scale_up_network(wires, names(2)).links} == {
        rate
    }


@pytest.mark.parametrize(
    ("devices", "largest", "unit", "shape"),
    [
        (8, (16, 16, 16), 4, (2, 2, 2)),
        (16, (16, 16, 16), 4, (2, 2, 4)),
        (32, (16, 16, 16), 4, (2, 4, 4)),
        (64, (16, 16, 16), 4, (4, 4, 4)),
        (128, (16, 16, 16), 4, (4, 4, 8)),
        (4096, (16, 16, 16), 4, (16, 16, 16)),
        (8, (16, 16), 16, (2, 4)),
        (128, (16, 16), 16, (8, 16)),
        (256, (16, 16), 16, (16, 16)),
    ],
)
def test_slices_have_the_shapes_that_google_lists(
    devices: int, largest: tuple[int, ...], unit: int, shape: tuple[int, ...]
) -> None:
    """Topologies of v4 and v5e in the Google Cloud TPU documentation."""
    assert slice_shape(devices, largest, unit) == shape


@pytest.mark.parametrize(
    ("shape", "degrees", "order"),
    [
        ((4, 4, 8), (4, 32), {(8, 4, 4), (4, 8, 4)}),
        ((4, 4, 8), (8, 16), {(4, 4, 8)}),
        ((4, 4, 8), (4, 8, 4), {(4, 8, 4)}),
        ((4, 4, 16), (16, 16), {(16, 4, 4)}),
        ((4, 4, 8), (2, 64), {(8, 4, 4)}),
    ],
)
def test_a_mesh_lies_on_a_torus_as_jax_lays_it(
    shape: tuple[int, ...], degrees: tuple[int, ...], order: set[tuple[int, ...]]
) -> None:
    """What `mesh_utils.create_device_mesh` of JAX 0.10.2 gives, the mesh's last axis first."""
    assert axis_order(shape, degrees) in order


@given(st.permutations((2, 4, 4, 8)), st.permutations((2, 4, 4, 8)), st.sets(st.integers(1, 3)))
def test_a_mesh_that_can_fill_the_axes_of_a_torus_does(
    shape: list[int], placed: list[int], cuts: set[int]
) -> None:
    """However the torus lists its axes, and whichever of them an axis of the mesh needs."""
    bounds = [0, *sorted(cuts), 4]
    degrees = [prod(placed[first:last]) for first, last in pairwise(bounds)]

    ends = accumulate(reversed(axis_order(shape, degrees)), mul)

    assert set(accumulate(degrees, mul)) <= set(ends)


def test_slices_that_do_not_fit_are_refused() -> None:
    """A prime larger than any axis."""
    with pytest.raises(HardwareError, match="17 devices form no box inside a torus of 16x16"):
        slice_shape(17, (16, 16))


def test_a_host_tree_shares_switches_and_sockets() -> None:
    """Same switch, same socket, other socket: two, four and five links."""
    network = host_tree(
        names(8),
        bandwidth_bytes_per_s=32e9,
        latency_s=LATENCY_S,
        devices_per_switch=2,
        sockets=2,
        socket_bandwidth_bytes_per_s=24e9,
        adapters=4,
        adapter_bandwidth_bytes_per_s=25e9,
    )

    assert route(network, "d0", "d1") == ["d0>pcie0", "pcie0>d1"]
    assert len(route(network, "d0", "d2")) == 4
    assert route(network, "d0", "d7") == [
        "d0>pcie0",
        "pcie0>cpu0",
        "cpu0>cpu1",
        "cpu1>pcie3",
        "pcie3>d7",
    ]
    assert route(network, "d3", "nic1") == ["d3>pcie1", "pcie1>nic1"]
    assert sum(network.links[i].latency_s for i in network.path("d0", "d7")) == LATENCY_S


def test_adapters_can_be_ports_of_their_device() -> None:
    """Gaudi 2: three ports of 12.5 GB/s and a slot of 32 GB/s."""
    network = host_tree(
        names(2),
        bandwidth_bytes_per_s=32e9,
        adapters=2,
        adapter_bandwidth_bytes_per_s=37.5e9,
        adapters_on_devices=True,
    )

    assert route(network, "d1", "nic1") == ["d1>nic1"]


def test_a_fat_tree_divides_uplinks_by_the_oversubscription() -> None:
    """Four nodes of two adapters, two nodes to a leaf, three to one."""
    adapters = [[f"nic{port}@{node}" for port in range(2)] for node in range(4)]
    tree = fat_tree(
        adapters,
        bandwidth_bytes_per_s=12.0,
        latency_s=LATENCY_S,
        leaf_nodes=2,
        oversubscription=3.0,
    )

    assert route(tree, "nic0@0", "nic1@1") == ["nic0@0>leaf0", "leaf0>nic1@1"]
    assert route(tree, "nic0@0", "nic0@3") == [
        "nic0@0>leaf0",
        "leaf0>spine",
        "spine>leaf1",
        "leaf1>nic0@3",
    ]
    assert leaving(tree, "spine") == 2 * (4 * 12.0 / 3)
    assert sum(tree.links[i].latency_s for i in tree.path("nic0@0", "nic0@3")) == LATENCY_S


def test_rails_meet_only_above_the_leaves() -> None:
    """Adapter i of every node is on leaf i; another rail is over the spine."""
    adapters = [[f"nic{port}@{node}" for port in range(2)] for node in range(2)]
    tree = fat_tree(adapters, bandwidth_bytes_per_s=1.0, latency_s=0.0, leaf_nodes=2, rails=True)

    assert route(tree, "nic1@0", "nic1@1") == ["nic1@0>leaf0.1", "leaf0.1>nic1@1"]
    assert len(route(tree, "nic0@0", "nic1@1")) == 4


def test_fabrics_that_cannot_be_are_refused() -> None:
    """Less than nothing shared, groups of no one."""
    with pytest.raises(HardwareError, match=r"oversubscription 0.5 and 2 nodes to a leaf"):
        fat_tree([], bandwidth_bytes_per_s=1.0, latency_s=0.0, leaf_nodes=2, oversubscription=0.5)
    with pytest.raises(HardwareError, match="dragonfly: 0 nodes to a group"):
        dragonfly([], bandwidth_bytes_per_s=1.0, latency_s=0.0, group_nodes=0)


def test_a_dragonfly_joins_every_two_groups() -> None:
    """One switch to a group: local, then one global link; the last group may be part full."""
    adapters = [[f"nic{port}@{node}" for port in range(2)] for node in range(5)]
    fly = dragonfly(adapters, bandwidth_bytes_per_s=6.0, latency_s=0.0, group_nodes=2)

    assert route(fly, "nic0@0", "nic1@1") == ["nic0@0>group0", "group0>nic1@1"]
    assert route(fly, "nic0@0", "nic0@4") == ["nic0@0>group0", "group0>group2", "group2>nic0@4"]
    between = [link for link in fly.links if link.source == "group0" and "group" in link.target]
    assert [link.bandwidth_bytes_per_s for link in between] == [4 * 6.0 / 2] * 2


def test_memory_over_cxl_hangs_on_hosts_and_carries_no_traffic_between_them() -> None:
    """One memory for each host, or one pool for all."""
    hosts = Network(links=cable("cpu0@0", "net", 1.0) + cable("cpu0@1", "net", 1.0))
    own, pool = (
        with_memory_tier(
            hosts,
            ["cpu0@0", "cpu0@1"],
            bandwidth_bytes_per_s=64e9,
            latency_s=LATENCY_S,
            pooled=pooled,
        )
        for pooled in (False, True)
    )

    assert route(own, "cpu0@1", "cxl1") == ["cpu0@1>cxl1"]
    assert route(pool, "cpu0@1", "cxl") == ["cpu0@1>cxl"]
    assert route(pool, "cpu0@0", "cpu0@1") == ["cpu0@0>net", "net>cpu0@1"]


def test_networks_join_where_names_are_the_same() -> None:
    """What may pass traffic on in one part may in the whole."""
    inner = switch_fabric(names(2), bandwidth_bytes_per_s=1.0, latency_s=0.0)
    outer = Network(links=cable("d1", "d2", 1.0))

    whole = join([inner, outer])

    assert len(route(whole, "d0", "d2")) == 3


def test_what_is_cut_off_is_named() -> None:
    """The first vertex that cannot be reached."""
    network = Network(links=cable("d0", "d1", 1.0) + cable("d2", "d3", 1.0))

    with pytest.raises(HardwareError, match="my node: no path leads from 'd0' to 'd2'"):
        check_connected(network, names(4), where="my node")

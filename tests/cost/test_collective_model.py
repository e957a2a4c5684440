"""Costs of a job's collectives, against messages played on the network of the whole cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cost.collective_places import SIZE, Spans, asked, cost, ideal, layout_of, shape_of
from tests.cost.switches import cluster
from wattree.cost import collective_latency_s, port_loads
from wattree.cost.algorithms import (
    Call,
    Protocol,
    Routes,
    group_of,
    link_loads,
    schedule_of,
    time_alone,
)
from wattree.cost.algorithms.messages import MessageSchedule
from wattree.cost.algorithms.registry import KINDS
from wattree.cost.collective_model import CollectiveModel
from wattree.hardware import Cluster
from wattree.hardware.topologies import network_of

#: What ideal links would be calibrated to.
TOLERANCE = 1e-3


def wired(place: Cluster, kind: str) -> Cluster:
    """Return a cluster with another kind of links in its nodes, each device's rate unchanged."""
    node = replace(place.node, scale_up=replace(place.node.scale_up, kind=kind), links=())
    return replace(place, node=node)


def all_groups(place: Cluster, kind: str, algorithm: str, spans: Spans) -> list[MessageSchedule]:
    """Return the messages of every group of the mesh, all devices of the cluster in use."""
    devices = np.arange(place.devices)
    bases = devices[np.all([devices // stride % degree == 0 for degree, stride in spans], axis=0)]
    offsets = layout_of(place, spans).offsets
    return [
        schedule_of(Call(kind=kind, size_bytes=SIZE, group=group_of(place, offsets + b)), algorithm)
        for b in bases.tolist()
    ]


def together_s(place: Cluster, kind: str, algorithm: str, spans: Spans) -> float:
    """Return the time of the busiest link of the cluster's network under all groups. [s]"""
    routes = Routes(network_of(place))
    loads = sum(link_loads(each, routes) for each in all_groups(place, kind, algorithm, spans))
    return float((loads / routes.bandwidth_bytes_per_s).max())


NODES = ("dgx-1", "4x-v100-sxm2-16gb", "8x-mi300x", "8x-gaudi2", "8x-a100-pcie", "8x-l40s")


IN_A_NODE = (((2, 1),), ((2, 2),), ((4, 1),), ((2, 4),), ((8, 1),))
#: Neighbours of two nodes, whole nodes, one device of each, every second of each.
OVER_NODES = (((16, 1),), ((8, 1), (4, 8)), ((4, 8),), ((16, 2),), ((2, 1), (4, 8)))


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_one_node_take_as_long_as_its_links(node: str, kind: str) -> None:
    """Whoever is next to whom: the model is the play of all groups on the node's network."""
    place = cluster(node, 1)
    algorithm = "direct" if kind == "all_to_all" else "ring"
    fitting = [spans for spans in IN_A_NODE if spans[0][0] * spans[0][1] <= place.devices]

    found = [float(cost(place, kind, spans).work_s[0]) for spans in fitting]

    expected = [together_s(place, kind, algorithm, spans) for spans in fitting]
    assert found == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("node", [node for node in NODES if node.startswith(("8x", "dgx"))])
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_groups_over_nodes_without_switches_take_as_long_as_all_links(node: str, kind: str) -> None:
    """Ports of PCIe carry what goes to adapters alongside what stays; meshes have cables apart.

    Closed forms count what leaves a node at the port, too: no links are faster than a switch.
    """
    place = cluster(node, 4)
    algorithm = "direct" if kind == "all_to_all" else "ring"
    switched = wired(place, "switch")

    found = [float(cost(place, kind, spans).work_s[0]) for spans in OVER_NODES]

    expected = [
        max(together_s(place, kind, algorithm, spans), cost(switched, kind, spans).work_s[0])
        for spans in OVER_NODES
    ]
    assert found == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("wiring", ["ring", "mesh"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_links_are_faster_than_a_switch_of_the_same_rate(wiring: str, kind: str) -> None:
    """Whoever leaves a switch out must not gain by it, on one node or across several."""
    switched = wired(cluster("8x-gaudi2", 4), "switch")
    linked = wired(switched, wiring)

    faster = [
        spans
        for spans in (*IN_A_NODE, *OVER_NODES)
        if cost(linked, kind, spans).work_s[0]
        < cost(switched, kind, spans).work_s[0] * (1 - TOLERANCE)
    ]

    assert faster == []


@pytest.mark.parametrize(("ranks", "nvlinks"), [(2, 1), (3, 2), (4, 4), (8, 6)])
def test_rings_of_a_dgx_1_have_as_many_nvlinks_as_nccl_finds(ranks: int, nvlinks: int) -> None:
    """25 GB/s each: nccl-tests on this node reach 22, 45, 85 and 133 GB/s with that many devices.

    (vTrain, github.com/VIA-Research/vTrain, trace of all-reduce on V100; eight take all six links.)
    """
    place = cluster("dgx-1", 1)
    model = CollectiveModel(cluster=place)
    shape = shape_of(place, ((ranks, 1),), filled=ranks)

    found = model.cost("all_reduce", np.array([SIZE]), shape, ideal(place))

    bus_bytes_per_s = 2 * (ranks - 1) / ranks * SIZE / found.work_s[0]
    assert bus_bytes_per_s == pytest.approx(nvlinks * 25e9)


@pytest.mark.parametrize("node", ["dgx-h100", "hgx-h100"])
@pytest.mark.parametrize(
    ("spans", "kind", "algorithm"),
    [
        (((16, 1),), "all_reduce", "ring"),  # tensor parallelism over two nodes
        (((4, 8),), "all_reduce", "ring"),  # eight data-parallel groups of a node
        (((4, 8),), "all_gather", "ring"),
        (((2, 1), (4, 8)), "reduce_scatter", "ring"),
        (((4, 2), (4, 8)), "all_reduce", "ring"),
        (((32, 1),), "all_to_all", "direct"),
        (((32, 1),), "all_to_all", "rail"),
        (((4, 8),), "all_reduce", "halving-doubling"),
        (((4, 8),), "all_reduce", "hierarchical"),
        (((4, 8),), "all_gather", "direct"),
    ],
)
def test_groups_across_nodes_take_as_long_as_the_network(
    node: str, spans: Spans, kind: str, algorithm: str
) -> None:
    """The adapters of a node carry all of its groups at once, as the links of the network do."""
    place = cluster(node, 4)

    found = cost(place, kind, spans, asked(algorithm))

    expected = together_s(place, kind, algorithm, spans)
    assert found.work_s[0] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "direct"])
def test_the_most_spread_group_holds_all_up(algorithm: str) -> None:
    """Groups of three over nodes of eight: devices 6, 7 and 8 need adapters, most others do not."""
    place = cluster("dgx-h100", 3)
    group = group_of(place, [6, 7, 8])
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=SIZE, group=group), algorithm)

    found = cost(place, "all_reduce", ((3, 1),), asked(algorithm))

    expected = time_alone(schedule, Routes(network_of(place))).transfer_s
    assert found.work_s[0] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("spans", [((16, 1),), ((4, 8),), ((2, 1), (4, 8)), ((4, 2), (4, 8))])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_closed_form_is_near_the_messages(kind: str, spans: Spans) -> None:
    """Where adapters decide, a ring is what the default has always said."""
    place = cluster("dgx-h100", 4)

    closed, rings = cost(place, kind, spans), cost(place, kind, spans, asked("ring"))

    assert closed.work_s[0] == pytest.approx(rings.work_s[0], rel=0.03)
    assert closed.loads.adapter[0] == pytest.approx(rings.loads.adapter[0], rel=TOLERANCE)


@pytest.mark.parametrize("algorithm", ["hierarchical", "halving-doubling", "tree", "nvls"])
@pytest.mark.parametrize("spans", [((8, 1),), ((8, 1), (4, 8)), ((4, 8),), ((4, 1), (2, 8))])
def test_one_group_takes_the_time_of_its_messages(algorithm: str, spans: Spans) -> None:
    """Phases that follow one another add up; those that are pipelined do not."""
    place = cluster("dgx-h100", 4)
    links = ideal(place)
    inside = int((layout_of(place, spans).offsets < 8).sum())
    if algorithm == "nvls":  # what its all-reduce would be calibrated to, were it ideal
        bus = 2 * (inside - 1) / inside / (1 + 1 / inside) if inside > 1 else 1.0
        port = links.scale_up_bytes_per_s
        links = replace(links, scale_up_reduce_bytes_per_s=port * max(bus, 1e-6))
    model = CollectiveModel(cluster=place, requests=asked(algorithm), refuses=True)
    group = group_of(place, layout_of(place, spans).offsets)
    schedule = schedule_of(Call(kind="all_reduce", size_bytes=SIZE, group=group), algorithm)
    alone = time_alone(schedule, Routes(network_of(place)))

    found = model.cost("all_reduce", np.array([SIZE]), shape_of(place, spans), links)

    assert found.work_s[0] == pytest.approx(alone.transfer_s, rel=TOLERANCE)
    assert found.latency_s[0] == pytest.approx(alone.latency_s, rel=0.35)
    if inside == 8 and len(spans) == 1:
        assert found.latency_s[0] == pytest.approx(alone.latency_s)


def test_a_hierarchical_all_reduce_loads_adapters_less_than_groups_of_single_ranks() -> None:
    """`S / m` goes between nodes; a ring of one rank of each node has all of `S` there."""
    place = cluster("dgx-h100", 4)

    whole = cost(place, "all_reduce", ((32, 1),), asked("hierarchical")).loads
    single = cost(place, "all_reduce", ((4, 8),), asked("hierarchical")).loads

    assert whole.adapter[0] == pytest.approx(single.adapter[0] / 8)
    assert single.scale_up[0] == 0.0


@pytest.mark.parametrize(("kind", "steps"), [("all_reduce", 10), ("all_gather", 5)])
def test_halving_pays_a_latency_for_each_doubling(kind: str, steps: int) -> None:
    """32 ranks, 2 lg n steps: three doublings inside the node, two between nodes."""
    place = cluster("dgx-h100", 4)
    node, fabric = place.node, place.fabric
    between = node.nic_latency_s + fabric.switch_latency_s

    found = cost(place, kind, ((32, 1),), asked("halving-doubling"))

    expected = steps / 5 * (3 * node.scale_up.latency_s + 2 * between)
    assert found.latency_s[0] == pytest.approx(expected)


def test_routed_tokens_keep_to_rails() -> None:
    """PXN: first to the neighbour on the receiver's rail, then out; adapters carry the same."""
    place = cluster("dgx-h100", 4)

    rail = cost(place, "all_to_all", ((32, 1),), asked("rail")).loads
    direct = cost(place, "all_to_all", ((32, 1),), asked("direct")).loads

    assert rail.adapter[0] == pytest.approx(direct.adapter[0])
    assert rail.scale_up[0] == pytest.approx(SIZE * 7 / 8)
    assert direct.scale_up[0] == pytest.approx(SIZE * 7 / 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flag_beside_the_data_takes_its_part_of_every_link(kind: str) -> None:
    """LL sends four bytes of flag with four of data; its steps are quicker."""
    place = cluster("dgx-h100", 4)

    plain = cost(place, kind, ((32, 1),), asked("direct", Protocol.SIMPLE))
    flags = cost(place, kind, ((32, 1),), asked("direct", Protocol.LL))

    assert flags.work_s[0] == pytest.approx(2 * plain.work_s[0])
    assert flags.latency_s[0] < plain.latency_s[0]


@pytest.mark.parametrize("kind", KINDS)
def test_switched_nodes_keep_their_closed_form(kind: str) -> None:
    """To the last bit: nothing is looked up where any pair has its ports to itself."""
    place = cluster("dgx-h100", 4)
    links = replace(ideal(place), alpha_s=2e-5, alpha_network_s=5e-6)
    shape = shape_of(place, ((2, 4), (4, 8)))

    found = CollectiveModel(cluster=place).cost(kind, np.array([SIZE]), shape, links)

    assert found.loads == port_loads(kind, np.array([SIZE]), shape, links)
    assert found.latency_s == collective_latency_s(kind, shape, links)


@pytest.mark.parametrize("wiring", ["switch", "mesh", "ring"])
def test_a_named_ring_across_nodes_loads_ports_with_what_stays_inside(wiring: str) -> None:
    """Of eight devices, one sends out of the node, which `auto` counts at the port, too."""
    place = wired(cluster("8x-gaudi2", 4), wiring)
    named, automatic = (
        cost(place, "all_reduce", ((16, 1),), requests)
        for requests in (asked("ring"), asked("auto"))
    )

    assert named.work_s == pytest.approx(7 / 8 * automatic.work_s)

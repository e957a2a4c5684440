"""Costs of a job's collectives, against messages played on the network of the whole cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.test_alone import cluster
from wattree.cost import GroupShape, LinkRates, collective_latency_s, port_loads
from wattree.cost.algorithms import (
    Call,
    NcclSystem,
    Protocol,
    Routes,
    group_of,
    link_loads,
    nccl_choice,
    schedule_of,
    time_alone,
)
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.messages import MessageSchedule
from wattree.cost.algorithms.tuning import NCCL_KEYS, nccl_columns, nccl_expected_s
from wattree.cost.collective_model import CollectiveCost, CollectiveModel
from wattree.cost.requests import COMPILED_KINDS, CollectiveRequests, Request
from wattree.errors import StrategyError
from wattree.hardware import Cluster
from wattree.hardware.topologies import network_of
from wattree.strategy import Mesh

SIZE = 64e6
#: What ideal links would be calibrated to.
TOLERANCE = 1e-3

Spans = tuple[tuple[int, int], ...]


def ideal(place: Cluster) -> LinkRates:
    """Return links that reach their datasheet's rates, without latency."""
    node = place.node
    port = node.scale_up.bandwidth_bytes_per_s
    return LinkRates(
        scale_up_bytes_per_s=port,
        scale_up_reduce_bytes_per_s=port,
        adapter_bytes_per_s=node.nics * node.nic_bandwidth_bytes_per_s / node.devices,
        alpha_s=0.0,
        alpha_network_s=0.0,
    )


def asked(algorithm: str, protocol: Protocol | None = None) -> CollectiveRequests:
    """Return the same request for every kind."""
    request = Request(algorithm=algorithm, protocol=protocol)
    return CollectiveRequests(by_kind=dict.fromkeys(COMPILED_KINDS, request))


def shape_of(place: Cluster, spans: Spans, *, filled: int | None = None) -> GroupShape:
    """Return the shape of one kind of groups, as the compiler would give it."""
    layout = layout_of(place, spans)
    domains = len(np.unique(layout.offsets // place.domain_devices))
    one = np.ones(1)
    return GroupShape(
        ranks=one * layout.ranks,
        inside=one * max(layout.ranks / domains, 1.0),
        spans=tuple((one * degree, one * stride) for degree, stride in spans),
        filled=one * (filled or place.domain_devices),
    )


def layout_of(place: Cluster, spans: Spans) -> GroupLayout:
    """Return the layout of groups on all devices."""
    return GroupLayout(
        spans=spans,
        domain=place.domain_devices,
        leaf=place.node.devices * place.fabric.leaf_nodes,
        filled=place.domain_devices,
    )


def cost(
    place: Cluster, kind: str, spans: Spans, requests: CollectiveRequests | None = None
) -> CollectiveCost:
    """Return what the model says of one size."""
    model = CollectiveModel(cluster=place, requests=requests or CollectiveRequests(), refuses=True)
    return model.cost(kind, np.array([SIZE]), shape_of(place, spans), ideal(place))


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
@pytest.mark.parametrize("kind", COMPILED_KINDS)
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
    """Ports of PCIe carry what goes to adapters alongside what stays; meshes have cables apart."""
    place = cluster(node, 4)
    algorithm = "direct" if kind == "all_to_all" else "ring"

    found = [float(cost(place, kind, spans).work_s[0]) for spans in OVER_NODES]

    expected = [together_s(place, kind, algorithm, spans) for spans in OVER_NODES]
    assert found == pytest.approx(expected, rel=TOLERANCE)


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


@pytest.mark.parametrize("kind", COMPILED_KINDS)
def test_a_flag_beside_the_data_takes_its_part_of_every_link(kind: str) -> None:
    """LL sends four bytes of flag with four of data; its steps are quicker."""
    place = cluster("dgx-h100", 4)

    plain = cost(place, kind, ((32, 1),), asked("direct", Protocol.SIMPLE))
    flags = cost(place, kind, ((32, 1),), asked("direct", Protocol.LL))

    assert flags.work_s[0] == pytest.approx(2 * plain.work_s[0])
    assert flags.latency_s[0] < plain.latency_s[0]


@pytest.mark.parametrize("kind", COMPILED_KINDS)
def test_switched_nodes_keep_their_closed_form(kind: str) -> None:
    """To the last bit: nothing is looked up where any pair has its ports to itself."""
    place = cluster("dgx-h100", 4)
    links = replace(ideal(place), alpha_s=2e-5, alpha_network_s=5e-6)
    shape = shape_of(place, ((2, 4), (4, 8)))

    found = CollectiveModel(cluster=place).cost(kind, np.array([SIZE]), shape, links)

    assert found.loads == port_loads(kind, np.array([SIZE]), shape, links)
    assert found.latency_s == collective_latency_s(kind, shape, links)


@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    sizes=st.lists(st.integers(1, 2**34).map(float), min_size=1, max_size=20),
    per_node=st.integers(1, 8),
    nodes=st.integers(2, 64),
    capability=st.sampled_from([60, 70, 80, 90, 100]),
)
@settings(max_examples=60)
def test_many_sizes_are_chosen_for_as_one_by_one(
    kind: str, sizes: list[float], per_node: int, nodes: int, capability: int
) -> None:
    """Arrays of sizes only save time."""
    system = NcclSystem(
        ranks=per_node * nodes,
        nodes=nodes,
        compute_capability=capability,
        inside_bytes_per_s=4.5e11,
        between_bytes_per_s=5e10 * per_node,
        nvls=capability >= 90 and per_node > 2,
    )

    columns = nccl_columns(kind, [system]).of(np.zeros(len(sizes), dtype=np.int64))
    fastest = np.argmin(nccl_expected_s(kind, np.array(sizes), columns), axis=0)

    chosen = [nccl_choice(kind, size, system) for size in sizes]
    assert [NCCL_KEYS[k] for k in fastest.tolist()] == [(c.algorithm, c.protocol) for c in chosen]


def test_nccl_takes_other_protocols_for_other_sizes() -> None:
    """Small calls pay latency, large ones bytes; both in one array."""
    place = cluster("dgx-h100", 4)
    model = CollectiveModel(cluster=place, requests=asked("nccl"))
    sizes = np.array([1e3, 1e9])
    shape = shape_of(place, ((32, 1),))
    both = GroupShape(
        ranks=np.repeat(shape.ranks, 2),
        inside=np.repeat(shape.inside, 2),
        spans=tuple((np.repeat(d, 2), np.repeat(s, 2)) for d, s in shape.spans),
        filled=np.array([8.0, 8.0]),
    )

    found = model.cost("all_reduce", sizes, both, ideal(place))

    assert found.latency_s[0] < found.latency_s[1]
    for index, size in enumerate(sizes):
        one = model.cost("all_reduce", np.array([size]), shape, ideal(place))
        assert found.latency_s[index] == one.latency_s[0]
        assert found.work_s[index] == one.work_s[0]


@given(draw=st.data())
@settings(max_examples=40)
def test_a_layout_is_the_groups_of_a_mesh(draw: st.DataObject) -> None:
    """Whatever the order of the axes: the first group, and who begins the others."""
    degrees = draw.draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
    mesh = Mesh(axes=tuple(zip(("dp", "cp", "tp"), degrees, strict=True)))
    axes = draw.draw(st.lists(st.sampled_from(["dp", "cp", "tp"]), min_size=1, unique=True))
    strides = {"dp": degrees[1] * degrees[2], "cp": degrees[2], "tp": 1}
    spans = sorted((strides[axis], mesh.degree(axis)) for axis in axes)
    groups = mesh.groups(axes)

    layout = GroupLayout(
        spans=tuple((degree, stride) for stride, degree in spans if degree > 1),
        domain=mesh.ranks,
        leaf=mesh.ranks,
        filled=mesh.ranks,
    )

    assert layout.offsets.tolist() == groups[0].tolist()
    assert layout.bases().tolist() == sorted(groups[:, 0].tolist())


def test_an_algorithm_that_cannot_serve_a_group_is_refused_with_what_can() -> None:
    """Every third device, five of them, over two nodes: shares are not equal."""
    place = cluster("dgx-h100", 4)

    with pytest.raises(StrategyError) as raised:
        cost(place, "all_reduce", ((5, 3),), asked("hierarchical"))

    assert raised.value.misfits == {
        "collectives.all_reduce": "algorithm 'hierarchical' needs as many ranks in every domain, "
        "found 2 to 3; use 'ring', 'tree' or 'direct'"
    }


def test_among_many_strategies_such_a_group_is_nobodys_choice() -> None:
    """Screening goes on; the figure is finite, so that it spoils no other."""
    place = cluster("dgx-h100", 4)
    model = CollectiveModel(cluster=place, requests=asked("hierarchical"))

    found = model.cost("all_reduce", np.ones(1), shape_of(place, ((5, 3),)), ideal(place))

    assert 1e6 < found.work_s[0] < np.inf


@pytest.mark.parametrize(("node", "far", "slower"), [("dgx-1", 1, 6.0), ("dgx-h100", 1, 1.0)])
def test_a_message_inside_a_node_has_the_cable_to_its_receiver(
    node: str, far: int, slower: float
) -> None:
    """Neighbours on DGX-1 share one of six NVLinks; behind a switch a port is theirs whole."""
    place = cluster(node, 1)

    found = CollectiveModel(cluster=place).transfer_stretch(np.array([float(far)]), np.full(1, 8.0))

    assert found[0] == pytest.approx(slower)

"""Networks of the nodes of the catalog, and links of files of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each import each
from tests.hardware.networks import leaving, names, route
from tests.hardware.user_node import HOST
from wattree.errors import HardwareError, JobError
from wattree.hardware import Cluster, load_fabric, load_node, load_site, node_names
from wattree.hardware.load import default_fabric_name
from wattree.hardware.topologies import adapter_of, device_name, network_of, node_network
from wattree.hardware.topologies.join import check_connected


def cluster(node: str, nodes: int, fabric: str | None = None) -> Cluster:
    """Return nodes of the catalog on their fabric or another."""
    return Cluster(
        node=load_node(node),
        nodes=nodes,
        fabric=load_fabric(fabric or default_fabric_name(node)),
        site=load_site("world-average"),
    )


# ------------------------------------------------------------------------------ the catalog


@each("name", node_names())
def test_every_node_of_the_catalogue_is_one_network(name: str) -> None:
    """All devices reach each other and their adapters; no device has more than its rate."""
    node = load_node(name)
    network = node_network(node)
    adapters = {vertex for vertex in network.vertices if vertex.startswith("nic")}

    check_connected(network, names(node.devices), where=name)
    for device in range(node.devices if adapters else 0):
        own = f"nic{adapter_of(device, devices=node.devices, adapters=len(adapters))}"
        check_connected(network, [device_name(device), own], where=name)
    if node.scale_up.kind not in {"pcie", "links"} and node.devices > 1:
        fast = [
            sum(
                link.bandwidth_bytes_per_s
                for link in network.links
                if link.source == device and link.kind not in {"pcie", "sockets"}
            )
            for device in names(node.devices)
        ]
        # A host of TPUs holds a corner of the torus, whose other links leave it.
        assert max(fast) <= node.scale_up.bandwidth_bytes_per_s * (1 + 1e-9)
        if node.scale_up.kind != "torus" or node.scale_up.domain_devices == node.devices:
            assert min(fast) == pytest.approx(node.scale_up.bandwidth_bytes_per_s)


@each("name", sorted(set(node_names())))
def test_two_nodes_of_the_catalogue_reach_each_other(name: str) -> None:
    """Over adapters and switches, or refused where nothing joins them."""
    if cluster(name, 1).fabric.kind == "none":  # workstations come without a network
        with pytest.raises(HardwareError, match="joins no nodes"):
            cluster(name, 2)
        return
    two = cluster(name, 2)
    network = network_of(two)

    check_connected(network, names(two.devices), where=name)
    if two.domain_devices == two.node.devices:
        far = route(network, "d0", device_name(two.devices - 1))
        assert sum(name.startswith("nic") for name in far) == 2  # out of one, into another's node


def test_nodes_without_a_network_make_no_cluster() -> None:
    """Unless one scale-up domain holds them all."""
    with pytest.raises(HardwareError, match="joins no nodes"):
        cluster("workstation-rtx-4090", 2)


def test_an_nvlink_domain_spans_its_nodes() -> None:
    """Eighteen trays of four on one switch."""
    rack = network_of(cluster("gb200-nvl72", 18))

    assert route(rack, "d0", "d71") == ["d0>nvswitch0", "nvswitch0>d71"]


def test_a_pod_of_tpus_is_a_torus_across_hosts() -> None:
    """64 chips of v4: a cube that wraps; 8: a cube of two that does not."""
    cube = network_of(cluster("tpu-v4-host", 16))

    assert len(route(cube, "d0", "d63")) == 3
    assert leaving(cube, "d0", "ici") == pytest.approx(300e9)
    assert leaving(network_of(cluster("tpu-v4-host", 2)), "d0", "ici") == pytest.approx(150e9)


def test_frontier_has_the_links_of_its_dies() -> None:
    """Eight links of 50 GB/s at a die, less those to the host and to its adapter."""
    network = node_network(load_node("frontier"))
    rates = [leaving(network, device, "xgmi") for device in names(8)]

    assert rates == [350e9, 300e9] * 4
    assert route(network, "d1", "nic0") == ["d1>nic0"]


def test_a_message_between_nodes_pays_adapters_and_switches_once() -> None:
    """As in the closed form of the compiler, wherever in the fabric the other node is."""
    far = cluster("hgx-h100", 64)
    network = network_of(far)
    expected = far.node.nic_latency_s + far.fabric.switch_latency_s
    for device in (8, 8 * 63, 8 * 63 + 5):
        path = network.path("d0", device_name(device))
        assert sum(network.links[i].latency_s for i in path) == pytest.approx(expected)


def test_traffic_to_another_rail_crosses_the_spine_and_no_other_device() -> None:
    """The nearest adapter wins over one that is read through the host."""
    network = network_of(cluster("hgx-h100", 2))

    assert route(network, "d0", "d9") == [
        "d0>pcie0@0",
        "pcie0@0>nic0@0",
        "nic0@0>leaf0.0",
        "leaf0.0>spine",
        "spine>leaf0.1",
        "leaf0.1>nic1@1",
        "nic1@1>pcie1@1",
        "pcie1@1>d9",
    ]


def test_thousands_of_devices_are_built_in_seconds() -> None:
    """4,096 devices; the links of a node are made once and renamed."""
    network = network_of(cluster("hgx-h100", 512))

    assert sum(vertex.startswith("d") for vertex in network.vertices) == 4096
    assert len(network.links) == 2 * (512 * (8 + 8 + 8 + 8 + 8) + 16 * 8)


# ----------------------------------------------------------------------- links of users' files

NODE = (
    """\
name: my-node
title: My node
device: h100
fabric: ethernet-100g
sources: {sheet: "My wiring, 2026"}
devices: {value: 3, source: sheet}
scale_up:
  kind: links
  bandwidth: {value: "100 GB/s", source: sheet}
  latency: {value: "2 us", source: sheet}
  domain_devices: {value: 3, source: sheet}
  in_network_reduction: {value: false, source: sheet}
links:
  source: sheet
  value:
    - {ends: [d0, d1], bandwidth: "100 GB/s", latency: "2 us"}
    - {ends: [d1, d2], bandwidth: "50 GB/s", latency: "2 us", kind: nvlink}
nics: {value: 1, source: sheet}
nic_bandwidth: {value: "100 Gbit/s", source: sheet}
nic_latency: {value: "5 us", source: sheet}
"""
    + HOST
)


def test_a_users_links_are_the_fabric_of_the_node(tmp_path: Path) -> None:
    """A chain: the ends reach each other through the middle."""
    (tmp_path / "node.yaml").write_text(NODE)
    node = load_node(tmp_path / "node.yaml")

    assert route(node_network(node), "d0", "d2") == ["d0>d1", "d1>d2"]
    assert node.sources["links"] == "My wiring, 2026"
    assert [link.bandwidth_bytes_per_s for link in node.links] == [100e9, 100e9, 50e9, 50e9]


def test_nodes_with_links_to_processors_join_over_their_adapters(tmp_path: Path) -> None:
    """A description of the host is complete: no switch of PCIe is behind it."""
    path = tmp_path / "node.yaml"
    link = '    - {ends: [d0, cpu0], bandwidth: "32 GB/s"}\n    - {ends: [d1, d2]'
    path.write_text(NODE.replace("    - {ends: [d1, d2]", link, 1))
    two = Cluster(
        node=load_node(path),
        nodes=2,
        fabric=load_fabric("ethernet-100g"),
        site=load_site("world-average"),
    )

    assert route(network_of(two), "d0", "d3")[:2] == ["d0>cpu0@0", "cpu0@0>nic0@0"]


def test_a_second_memory_tier_is_part_of_the_network(tmp_path: Path) -> None:
    """As the section `cxl` of a node says."""
    (tmp_path / "node.yaml").write_text(
        NODE + "cxl:\n"
        '  memory: {value: "4 TB", source: sheet}\n'
        '  bandwidth: {value: "64 GB/s", source: sheet}\n'
        '  latency: {value: "400 ns", source: sheet}\n'
        "  pooled: {value: true, source: sheet}\n"
    )
    two = Cluster(
        node=load_node(tmp_path / "node.yaml"),
        nodes=2,
        fabric=load_fabric("ethernet-100g"),
        site=load_site("world-average"),
    )

    assert route(network_of(two), "d5", "cxl")[-1] == "cpu0@1>cxl"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"50 GB/s"',
            '"0 GB/s"',
            r"links.value[1].bandwidth: found '0 GB/s', expected a finite quantity",
        ),
        (
            '"50 GB/s"',
            '"-5 GB/s"',
            "links.value[1].bandwidth: found '-5 GB/s', expected a finite quantity",
        ),
        ("[d1, d2]", "[d1, d7]", "links: 'd7' is no device of this node, which has d0 to d2"),
        ("[d1, d2]", "[d1, sw]", "links of the node: no link of the network touches 'd2'"),
        (
            "    - {ends: [d1, d2]",
            '    - {ends: [d0, dd1], bandwidth: "1 GB/s"}\n    - {ends: [d1, d2]',
            "links: 'dd1' is the end of one link alone, so that no device reaches another through "
            "it; did you mean 'd1'?",
        ),
        ("[d1, d2]", "[d1, d1]", "links.value[1]: link d1>d1 joins a vertex with itself"),
        ("[d1, d2]", "[d1]", "links.value[1].ends: found ['d1'], expected two names"),
        ("kind: nvlink", "king: nvlink", "links.value[1].king: unknown key; did you mean 'kind'?"),
        ("  source: sheet\n  value:", "  source: shet\n  value:", "links.source: found 'shet'"),
        ("    - {ends: [d0", "    - 5\n    - {ends: [d0", "expected a list of mappings"),
        (
            "nics:",
            "topology: a.xml\nnics:",
            "topology: found together with 'links', expected one of",
        ),
    ],
)
def test_faults_of_links_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """With the place in the file."""
    path = tmp_path / "node.yaml"
    path.write_text(NODE.replace(old, new, 1))
    (tmp_path / "a.xml").write_text("<system/>")

    with pytest.raises(JobError) as caught:
        load_node(path)

    assert message in str(caught.value)


@pytest.mark.parametrize("leaf", ["cpu", "host", "mlx5_0", "nvme0", "sw1", "gpu"])
def test_parts_of_a_node_that_join_no_devices_may_be_listed(tmp_path: Path, leaf: str) -> None:
    """Under any name that is not like that of a device."""
    path = tmp_path / "node.yaml"
    link = f'    - {{ends: [d0, {leaf}], bandwidth: "1 GB/s"}}\n    - {{ends: [d1, d2]'
    path.write_text(NODE.replace("    - {ends: [d1, d2]", link, 1))

    assert any(leaf == link.target for link in load_node(path).links)


def test_links_that_are_announced_and_missing_are_refused(tmp_path: Path) -> None:
    """The message says where to put them."""
    path = tmp_path / "node.yaml"
    start, end = NODE.index("links:\n"), NODE.index("nics:")
    path.write_text(NODE[:start] + NODE[end:])

    with pytest.raises(
        JobError, match=r"scale_up\.kind: found 'links', but no links are given; list them under"
    ):
        load_node(path)

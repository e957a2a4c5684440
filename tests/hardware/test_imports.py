"""Topologies of other tools: NCCL's XML, the table of nvidia-smi, and every way they can be bad."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hardware.user_node import HOST
from wattree.errors import JobError
from wattree.hardware import Network, load_node
from wattree.hardware.imports import (
    ImportedTopology,
    from_nccl_xml,
    from_topo_matrix,
    read_topology,
)
from wattree.hardware.imports.rates import pcie_bytes_per_s, socket_bytes_per_s
from wattree.hardware.topologies import (
    CUBE_MESH_LINKS,
    check_connected,
    device_name,
    node_network,
)

FILES = Path(__file__).parent / "topology_files"
GEN5 = 32e9 / 8 * 16 * 128 / 130


def matrix(name: str | Path, links: int = 18) -> ImportedTopology:
    """Return what a table describes, at rates of round numbers."""
    return from_topo_matrix(
        FILES / name,
        nvlink_bytes_per_s=25e9,
        pcie_bytes_per_s=16e9,
        socket_bytes_per_s=10e9,
        links_per_device=links,
    )


def route(network: Network, source: str, target: str) -> list[str]:
    """Return the names of the links from one vertex to another."""
    return [network.links[index].name for index in network.path(source, target)]


def widths(network: Network) -> dict[tuple[int, int], float]:
    """Return the rates of the links between devices, by pair. [B/s]"""
    return {
        (int(link.source[1:]), int(link.target[1:])): link.bandwidth_bytes_per_s
        for link in network.links
        if link.source[0] == link.target[0] == "d"
    }


CUBE = {
    pair: 25e9 * count
    for (one, other), count in CUBE_MESH_LINKS.items()
    for pair in ((one, other), (other, one))
}


# --------------------------------------------------------------------------------------- XML


def test_a_dump_with_nvswitch_is_a_switch_of_full_rate() -> None:
    """Four chips count as one; 18 links of 25 GB/s; the adapter hangs on the device's switch."""
    found = from_nccl_xml(FILES / "h100.xml")

    assert found.devices == 8
    assert route(found.network, "d0", "d7") == ["d0>nvswitch0", "nvswitch0>d7"]
    assert found.links[0].bandwidth_bytes_per_s == 18 * 25e9
    assert route(found.network, "d3", "nic3") == ["d3>pcie3", "pcie3>nic3"]
    assert found.adapter_bytes_per_s == {f"nic{port}": 50e9 for port in range(8)}
    assert found.titles["d0"] == "0000:18:00.0"
    assert found.titles["nic3"] == "mlx5_3"
    slots = [link.bandwidth_bytes_per_s for link in found.links if link.kind == "pcie"]
    assert slots == pytest.approx([GEN5] * 2 * (8 + 8 + 8))
    between = [link for link in found.links if link.kind == "sockets"]
    assert [(link.name, link.bandwidth_bytes_per_s) for link in between] == [
        ("cpu0>cpu1", 22e9),
        ("cpu1>cpu0", 22e9),
    ]


def test_a_dump_of_a_cube_mesh_is_the_cube_mesh() -> None:
    """Every pair at the width that the builder of DGX-1 has for it."""
    found = from_nccl_xml(FILES / "dgx1.xml")

    assert widths(found.network) == CUBE
    assert route(found.network, "d0", "nic0") == ["d0>pcie0", "pcie0>nic0"]
    assert found.adapter_bytes_per_s["nic4"] == 1.25e9
    assert "cpu0>nic4" in {link.name for link in found.links}
    check_connected(found.network, [device_name(d) for d in range(8)], where="dgx1.xml")


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """Return the path of a file of which one place is changed."""
    text = (FILES / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</cpu>", "", "line 127: mismatched tag; <cpu> of line 3 is not closed; expected a"),
        ('<gpu dev="0"', '<gpu dev="1"', "line 21: <gpu> has dev 1 as line 6 has; expected the"),
        ('<gpu dev="7"', '<gpu dev="9"', "<system> has GPUs of dev [0, 1, 2, 3, 4, 5, 6, 9], exp"),
        ('sm="90"', 'sm="x"', "line 6: <gpu> has 'x' as sm, expected a whole number"),
        ('sm="90"', 'sm="50"', "line 6: <gpu> has sm 50, which has no NVLink"),
        ('count="5"', 'count="-5"', "line 7: <nvlink> has '-5' as count, expected a whole number"),
        ("0x068000", "0x010000", "leads to '0000:03:00.0' of class '0x010000', expected a GPU or"),
        ('speed="400000"', 'speed="0"', "line 15: <net> has the speed '0', expected Mbit/s above"),
        ('link_width="16"', 'link_width="999"', "<pci> has link_width 999, expected 1 to 64 lanes"),
        ('<system version="1">', "<topology>", "mismatched tag"),
    ],
)
def test_faults_of_a_dump_are_named_with_their_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Element and line, what was found, what was expected."""
    path = changed(tmp_path, "h100.xml", old, new)

    with pytest.raises(JobError) as caught:
        from_nccl_xml(path)

    assert message in str(caught.value)


def test_a_truncated_dump_is_one_clear_error(tmp_path: Path) -> None:
    """It names the line where the file ends and the element that is open there."""
    path = tmp_path / "cut.xml"
    lines = (FILES / "h100.xml").read_text().splitlines()
    path.write_text("\n".join(lines[:20]))

    with pytest.raises(JobError) as caught:
        from_nccl_xml(path)

    assert str(caught.value) == (
        f"{path}: line 20: no element found; <pci> of line 20 is not closed; expected a complete "
        "XML file"
    )


BOMB = """\
<!DOCTYPE system [
  <!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"> <!ENTITY c "&b;&b;&b;&b;&b;">
]>
<system>&c;</system>
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "line 1: found a document type (<!DOCTYPE), which such files have not"),
        ('<!DOCTYPE s SYSTEM "file:///etc/hostname"><system/>', "found a document type"),
        ("<system>" * 100, "element <system>: nested deeper than 64"),
        ("<system>" + "<cpu/>" * 60_000 + "</system>", "one of more than 50000 elements"),
        ("<system>&x;</system>", "line 1: undefined entity; <system> of line 1 is not closed"),
        ("<system/>", "line 1: <system> holds no <gpu>"),
        ("<graphs/>", "line 1: <graphs> is the root, expected <system>"),
        ("<" * 2**20 + "x", "found 1048577 B, expected at most 1048576 B"),
        ("", "no element found"),
    ],
    ids=["bomb", "outside", "deep", "wide", "entity", "empty", "other", "large", "nothing"],
)
def test_xml_that_is_meant_badly_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Nothing expands, nothing is fetched, nothing is read beyond the limits."""
    path = tmp_path / "bad.xml"
    path.write_text(text)

    with pytest.raises(JobError) as caught:
        from_nccl_xml(path)

    assert message in str(caught.value)


@given(draw=st.data())
@settings(max_examples=60)
def test_any_change_of_a_dump_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    """Whatever stands there: never a traceback."""
    name = draw.draw(st.sampled_from(["h100.xml", "dgx1.xml", "dgx1.txt", "h100.txt"]))
    text = (FILES / name).read_text()
    start = draw.draw(st.integers(0, len(text) - 1))
    end = draw.draw(st.integers(start, min(len(text), start + 200)))
    path = tmp_path_factory.mktemp("fuzz") / name
    new = draw.draw(st.text(max_size=6) | st.sampled_from(["<gpu/>", 'dev="3"', "NV9", "0", "\n"]))
    path.write_text(text[:start] + new + text[end:], encoding="utf-8", errors="replace")

    # An error of any other kind would leave this block.
    with contextlib.suppress(JobError):
        found = read_topology(
            path, nvlink_bytes_per_s=25e9, pcie_bytes_per_s=16e9, socket_bytes_per_s=10e9
        )
        assert 1 <= found.devices <= 9


@pytest.mark.parametrize(
    ("transfers", "lanes", "rate"),
    [
        (2.5, 1, 0.25e9),
        (8.0, 16, 15.754e9),
        (16.0, 16, 31.508e9),
        (32.0, 16, 63.015e9),
        (64.0, 16, 118e9),
        (None, 0, 15.754e9),
    ],
)
def test_slots_have_the_rates_of_the_specification(
    transfers: float | None, lanes: int, rate: float
) -> None:
    """As the PCI-SIG lists them; unknown ones count as generation 3, 16 lanes, as in NCCL."""
    assert pcie_bytes_per_s(transfers, lanes) == pytest.approx(rate, rel=1e-4)


def test_sockets_have_the_rates_that_nccl_assumes() -> None:
    """Src/graph/topo.h of NCCL 2.28."""
    makes = [
        ("GenuineIntel", "x86_64", 6, 79),
        ("GenuineIntel", "x86_64", 6, 85),
        ("GenuineIntel", "x86_64", 6, 143),
        ("AuthenticAMD", "x86_64", 23, 49),
        ("AuthenticAMD", "x86_64", 25, 1),
        ("", "ppc64", 0, 0),
        ("", "arm64", 0, 0),
    ]

    assert [socket_bytes_per_s(*make) / 1e9 for make in makes] == [6, 10, 22, 16, 24, 32, 6]


# ----------------------------------------------------------------------------------- the table


def test_a_table_of_a_cube_mesh_is_the_cube_mesh() -> None:
    """And so are its adapters and sockets: PIX, NODE, SYS."""
    found = matrix("dgx1.txt", links=6)

    assert widths(found.network) == CUBE
    assert route(found.network, "d1", "nic0") == ["d1>pcie0", "pcie0>nic0"]
    assert len(route(found.network, "nic0", "nic1")) == 4
    assert len(route(found.network, "nic0", "nic3")) == 5
    assert found.titles["nic2"] == "mlx5_2"


def test_a_table_with_more_links_than_devices_have_is_a_switch() -> None:
    """NV18 to each of seven peers: the same 18 links."""
    found = matrix("h100.txt")

    assert route(found.network, "d0", "d7") == ["d0>nvswitch0", "nvswitch0>d7"]
    assert found.links[0].bandwidth_bytes_per_s == 18 * 25e9
    assert route(found.network, "d5", "nic5") == ["d5>pxb5", "pxb5>nic5"]
    assert len(route(found.network, "d5", "nic6")) == 4


def test_a_table_without_nvlink_is_the_tree_of_its_bridges() -> None:
    """One switch, one host bridge, two sockets; names of adapters as older drivers have them."""
    found = matrix("old_pcie.txt")

    assert route(found.network, "d0", "d1") == ["d0>pcie0", "pcie0>d1"]
    assert route(found.network, "d0", "nic0") == ["d0>pcie0", "pcie0>pxb0", "pxb0>nic0"]
    assert route(found.network, "d2", "d3") == ["d2>bridge1", "bridge1>d3"]
    assert [name.split(">")[0] for name in route(found.network, "d0", "d3")] == [
        *("d0", "pcie0", "pxb0", "cpu0", "cpu1", "bridge1")
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NV2", "NVx", "line 2: row GPU0: found 'NVx', expected 12 of X, NV#, PIX, PXB, PHB, NODE"),
        ("GPU0", "CPU0", "found no head that begins with GPU0, expected `nvidia-smi topo -m`"),
        ("\nNIC3", "\nfoo3", None),
    ],
)
def test_faults_of_a_table_are_named(
    tmp_path: Path, old: str, new: str, message: str | None
) -> None:
    """A row that is missing is no fault while its column says the same."""
    path = changed(tmp_path, "dgx1.txt", old, new)
    if message is None:
        assert matrix(path).devices == 8
        return

    with pytest.raises(JobError) as caught:
        matrix(path)

    assert message in str(caught.value)


def test_a_table_that_ends_early_is_refused(tmp_path: Path) -> None:
    """Two names that no cell joins."""
    path = tmp_path / "cut.txt"
    path.write_text("\n".join((FILES / "dgx1.txt").read_text().splitlines()[:9]))

    with pytest.raises(JobError, match="no cell joins NIC0 and NIC1; expected a row for every"):
        matrix(path)


# -------------------------------------------------------------------------------- in a node

NODE = (
    """\
name: my-node
title: My node
device: h100
fabric: ethernet-100g
sources: {sheet: "My wiring, 2026"}
devices: {value: 8, source: sheet}
scale_up:
  kind: switch
  bandwidth: {value: "450 GB/s", source: sheet}
  latency: {value: "2 us", source: sheet}
  domain_devices: {value: 8, source: sheet}
  in_network_reduction: {value: true, source: sheet}
topology: h100.xml
nics: {value: 8, source: sheet}
nic_bandwidth: {value: "400 Gbit/s", source: sheet}
nic_latency: {value: "5 us", source: sheet}
"""
    + HOST
)


@pytest.mark.parametrize(("file", "joint"), [("h100.xml", "pcie5"), ("h100.txt", "pxb5")])
def test_a_nodes_file_can_name_a_topology(tmp_path: Path, file: str, joint: str) -> None:
    """Beside it; adapters and switches are then those of the dump, and none are made up."""
    (tmp_path / file).write_text((FILES / file).read_text())
    (tmp_path / "node.yaml").write_text(NODE.replace("h100.xml", file))
    node = load_node(tmp_path / "node.yaml")
    network = node_network(node)

    assert node.sources["links"] == f"topology file {file}"
    assert route(network, "d0", "d7") == ["d0>nvswitch0", "nvswitch0>d7"]
    assert route(network, "d5", "nic5") == [f"d5>{joint}", f"{joint}>nic5"]
    assert network.links[0].bandwidth_bytes_per_s == 450e9
    assert sum(link.source == "d5" for link in network.links) == 2


def test_a_topology_of_another_node_is_refused(tmp_path: Path) -> None:
    """Eight devices in the dump, six in the file."""
    (tmp_path / "h100.xml").write_text((FILES / "h100.xml").read_text())
    (tmp_path / "node.yaml").write_text(NODE.replace("devices: {value: 8", "devices: {value: 6"))

    with pytest.raises(JobError, match="topology: 'd6' is no device of this node, which has d0 to"):
        load_node(tmp_path / "node.yaml")


def test_a_topology_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The path is that of the topology."""
    (tmp_path / "node.yaml").write_text(NODE)

    with pytest.raises(JobError, match=r"h100.xml: there is no such file"):
        load_node(tmp_path / "node.yaml")

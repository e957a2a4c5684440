"""Topologies of other tools: NCCL's XML, the table of nvidia-smi, and every way they can be bad."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hardware.topology_imports import CUBE, FILES, changed, route, widths
from tests.hardware.user_node import HOST
from wattree.errors import JobError
from wattree.hardware import load_node
from wattree.hardware.imports.nccl_xml import from_nccl_xml
from wattree.hardware.imports.rates import pcie_bytes_per_s, socket_bytes_per_s
from wattree.hardware.imports.read import read_topology
from wattree.hardware.topologies import device_name, node_network
from wattree.hardware.topologies.join import check_connected

GEN5 = 32e9 / 8 * 16 * 128 / 130


# --------------------------------------------------------------------------------------- XML


def test_a_dump_with_nvswitch_is_a_switch_of_full_rate() -> None:
    """Four chips count as one; 18 links of 25 GB/s; the adapter hangs on the device's switch."""
    found = from_nccl_xml(FILES / "h100.xml")

    assert found.devices == 8
    assert route(found.network, "d0", "d7") == ["d0>nvswitch0", "nvswitch0>d7"]
    assert found.links[0].bandwidth_bytes_per_s == 18 * 25e9
    assert route(found.network, "d3", "nic3") == ["d3>pcie3", "pcie3>nic3"]
    assert found.adapter_bytes_per_s == {f"nic{port}": 50e9 for port in range(8)}
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
        (
            'link_width="16"',
            'link_width="-8"',
            "<pci> has '-8' as link_width, expected a whole num",
        ),
        (
            '"32.0 GT/s PCIe"',
            '"0 GT/s"',
            "line 4: <pci> has link_speed '0 GT/s', expected one of 2.5,",
        ),
        (
            '"32.0 GT/s PCIe"',
            '"-8 GT/s"',
            "<pci> has link_speed '-8 GT/s', expected one of 2.5, 5, ",
        ),
        (
            'speed="400000"',
            'speed="-1"',
            "line 15: <net> has '-1' as speed, expected a whole number",
        ),
        (
            'speed="400000"',
            'speed="999999999"',
            "line 15: <net> has the speed '999999999', expected",
        ),
        ('count="5"', 'count="0"', "line 7: <nvlink> has count 0, expected 1 or more"),
        (
            'count="5"',
            'count="500"',
            "line 6: <gpu> has 513 links, expected at most 18 of one device",
        ),
        (
            'target="0000:04',
            'target="0000:03',
            "line 8: <nvlink> leads to '0000:03:00.0' as line 7",
        ),
        (
            'busid="0000:2a:00.0"',
            'busid="0000:18:00.0"',
            "<pci> has the busid '0000:18:00.0' of d0",
        ),
        (
            'name="mlx5_1" dev="1"',
            'name="mlx5_1" dev="0"',
            "has dev 0 as line 15 has, with another",
        ),
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
    """Next to it; adapters and switches are then those of the dump, and none are made up."""
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


def test_a_topology_beside_links_is_refused_once(tmp_path: Path) -> None:
    """One slip, one line: the key is known, and only one of the two may stand."""
    both = (
        "links: {value: [{ends: [d0, d1], bandwidth: 1 GB/s}], source: sheet}\ntopology: h100.xml"
    )
    (tmp_path / "node.yaml").write_text(
        NODE.replace("topology: h100.xml", both).replace("devices: {value: 8", "devices: {value: 2")
    )

    with pytest.raises(JobError) as caught:
        load_node(tmp_path / "node.yaml")

    assert caught.value.problems == (
        "topology: found together with 'links', expected one of the two",
    )


def test_links_to_an_adapter_that_is_not_there_are_refused(tmp_path: Path) -> None:
    """As for devices: the node says how many it has."""
    links = "links: {value: [{ends: [d0, nic9], bandwidth: 1 GB/s}], source: sheet}"
    (tmp_path / "node.yaml").write_text(
        NODE.replace("topology: h100.xml", links).replace(
            "devices: {value: 8", "devices: {value: 1"
        )
    )

    with pytest.raises(JobError) as caught:
        load_node(tmp_path / "node.yaml")

    assert caught.value.problems == (
        "links.value[0].ends: 'nic9' is no adapter of this node, which has nic0 to nic7",
    )


def test_two_links_of_the_same_ends_are_refused(tmp_path: Path) -> None:
    """Traffic takes one way; the bandwidth of the other would silently be lost."""
    twice = "{ends: [d0, cpu0], bandwidth: 1 GB/s}, {ends: [cpu0, d0], bandwidth: 2 GB/s}"
    (tmp_path / "node.yaml").write_text(
        NODE.replace("topology: h100.xml", f"links: {{value: [{twice}], source: sheet}}").replace(
            "devices: {value: 8", "devices: {value: 1"
        )
    )

    with pytest.raises(JobError) as caught:
        load_node(tmp_path / "node.yaml")

    assert caught.value.problems == (
        "links.value[1]: cpu0 and d0 are joined by links.value[0] too; write one link with the "
        "bandwidth of both",
    )


def test_a_topology_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The path is that of the topology."""
    (tmp_path / "node.yaml").write_text(NODE)

    with pytest.raises(JobError, match=r"h100.xml: there is no such file"):
        load_node(tmp_path / "node.yaml")

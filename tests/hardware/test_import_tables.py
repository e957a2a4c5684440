"""Tables of topology as nvidia-smi prints them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hardware.topology_imports import CUBE, FILES, changed, route, widths
from wattree.errors import JobError
from wattree.hardware.imports.nccl_xml import from_nccl_xml
from wattree.hardware.imports.read import read_topology
from wattree.hardware.imports.topo_matrix import from_topo_matrix
from wattree.hardware.imports.topology import ImportedTopology


def matrix(name: str | Path) -> ImportedTopology:
    """Return what a table describes, at rates of round numbers."""
    return from_topo_matrix(
        FILES / name,
        nvlink_bytes_per_s=25e9,
        pcie_bytes_per_s=16e9,
        socket_bytes_per_s=10e9,
    )


# ----------------------------------------------------------------------------------- the table


def test_a_head_with_a_word_without_end_is_refused_at_once(tmp_path: Path) -> None:
    """Whether a word has a digit in it is asked once, not at every letter."""
    path = tmp_path / "long.txt"
    path.write_text(f"\tGPU0\t{'a' * 400_000}\nGPU0\tX\tNV1\n")
    begun_s = time.thread_time()

    with pytest.raises(JobError):
        read_topology(path, nvlink_bytes_per_s=25e9, pcie_bytes_per_s=16e9, socket_bytes_per_s=10e9)

    assert time.thread_time() - begun_s < 10  # a tenth of a second; it took minutes


def test_a_table_of_a_cube_mesh_is_the_cube_mesh() -> None:
    """And so are its adapters and sockets: PIX, NODE, SYS."""
    found = matrix("dgx1.txt")

    assert widths(found.network) == CUBE
    assert route(found.network, "d1", "nic0") == ["d1>pcie0", "pcie0>nic0"]
    assert len(route(found.network, "nic0", "nic1")) == 4
    assert len(route(found.network, "nic0", "nic3")) == 5


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
        ("\nNIC3", "\nNIC9", "line 13: row NIC9: is not in the head, which has GPU0, GPU1, GPU2,"),
        ("\nGPU7", "\nGPU6", "line 9: row GPU6: stands in line 8 too, expected every row once"),
        ("GPU1\t", "GPU0\t", "line 1: the head names GPU0 twice, expected every name once"),
        ("\tGPU7\tNIC0", "\tGPU9\tNIC0", "line 1: the head names GPU0, GPU1, GPU2, GPU3, GPU4, "),
        ("NV1", "SYS", "line 3: row GPU1: found NV1 under GPU0, expected SYS as in row GPU0 under"),
        ("NV1", "NV99999999999", "line 2: row GPU0: found 'NV99999999999', expected 12 of X,"),
        (" X ", "PIX", "line 2: row GPU0: found PIX under GPU0, expected X, as in every row under"),
        ("NV1", "X", "line 2: row GPU0: found X under GPU1, expected one of NV#, PIX,"),
        (
            "PIX",
            "NV1",
            "line 2: row GPU0: found NV1 under NIC0, expected no NV#; NVLinks join GPUs",
        ),
        ("\t0-19", "\tSYS\t0-19", "line 2: row GPU0: found 13 cells, expected 12 of X,"),
        ("SYS\tSYS\t0-19", "SYS\t0-19", "line 2: row GPU0: found '0-19,40-59', expected 12 of X,"),
        ("  NIC3: mlx5_3", "  NIC9: mlx5_9", "the legend explains NIC9, which is not in the head"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Line, row and column, what was found, what was expected."""
    path = changed(tmp_path, "dgx1.txt", old, new)

    with pytest.raises(JobError) as caught:
        matrix(path)

    assert message in str(caught.value)


@pytest.mark.parametrize(("count", "shown"), [(0, "NV0"), (19, "NV19")])
def test_a_table_with_more_links_than_any_device_is_refused(
    tmp_path: Path, count: int, shown: str
) -> None:
    """Both cells of the pair say the same, and still no device has as many."""
    text = (FILES / "dgx1.txt").read_text().replace("NV2", f"NV{count}")
    path = tmp_path / "wide.txt"
    path.write_text(text)

    with pytest.raises(JobError) as caught:
        matrix(path)

    assert (
        f"line 2: row GPU0: found {shown} under GPU3, expected NV1 to NV18, the most links of any "
        "device"
    ) in str(caught.value)


def test_a_row_may_be_missing_where_its_column_says_the_same(tmp_path: Path) -> None:
    """Nothing is unknown then."""
    path = tmp_path / "short.txt"
    lines = (FILES / "dgx1.txt").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("NIC3")))

    assert widths(matrix(path).network) == CUBE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file, expected the XML of NCCL_TOPO_DUMP_FILE or `nvidia-smi topo"),
        (b" \n\n", "found an empty file, expected"),
        (b"\x00\x01\x02", "found binary content (a zero byte), expected text"),
        (b"\tGPU0\n\xff\xfe", "found byte 0xff at 6, expected UTF-8 text"),
        (b"x" * (2**20 + 1), "found 1048577 B, expected at most 1048576 B"),
        (b"{}", "found no head that begins with GPU0, expected"),
        (b"\t" + b"GPU0 " * 3000, "line 1: the head has 3000 names, expected at most 256"),
    ],
    ids=["empty", "blank", "binary", "latin", "large", "other", "wide"],
)
def test_files_that_hold_no_topology_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """Whatever was saved under that name."""
    path = tmp_path / "topology"
    path.write_bytes(content)

    with pytest.raises(JobError) as caught:
        read_topology(path, nvlink_bytes_per_s=25e9, pcie_bytes_per_s=16e9, socket_bytes_per_s=1e9)

    assert str(caught.value).startswith(f"{path}: {message}")


def test_links_that_only_one_device_lists_are_refused(tmp_path: Path) -> None:
    """Both ends of a cable are in the machine."""
    text = (FILES / "dgx1.xml").read_text()
    first = text.index("<nvlink")
    path = tmp_path / "half.xml"
    path.write_text(text[:first] + text[text.index("/>", first) + 2 :])

    with pytest.raises(JobError, match=r"GB/s to d0, which has none back; expected the same both"):
        from_nccl_xml(path)


def test_a_table_that_ends_early_is_refused(tmp_path: Path) -> None:
    """Two names that no cell joins."""
    path = tmp_path / "cut.txt"
    path.write_text("\n".join((FILES / "dgx1.txt").read_text().splitlines()[:9]))

    with pytest.raises(JobError, match="no cell joins NIC0 and NIC1; expected a row for every"):
        matrix(path)

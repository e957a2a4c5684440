"""Loading: a user's own files, and every way in which they can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.user_files import DEVICE, FABRIC, LOADERS, NODE, SITE, TEXTS
from wattree.errors import JobError, UnknownNameError
from wattree.hardware import Precision, load_device, load_fabric, load_node, load_site
from wattree.hardware.load import default_fabric_name


def refusal(folder: Path, kind: str, old: str, new: str) -> str:
    """Change a good file, load it, and return the message without the path."""
    assert old in TEXTS[kind]
    path = folder / "changed.yaml"
    path.write_text(TEXTS[kind].replace(old, new, 1))
    with pytest.raises(JobError) as caught:
        LOADERS[kind](path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_users_device_is_one_file_of_the_same_schema(folder: Path) -> None:
    """By path, as text or as `Path`."""
    device = load_device(str(folder / "my-card.yaml"))

    assert device == load_device(folder / "my-card.yaml")
    assert device.memory_bytes == 16 * 2**30
    assert device.peak_flop_per_s == {Precision.BF16: 1e14}
    assert device.sources["memory_bytes"] == "My datasheet, 2026"
    assert device.sources["idle_w"] == "estimate: a tenth of the rating"


def test_a_users_node_finds_its_device_beside_itself(folder: Path) -> None:
    """A folder can be moved as a whole; names without a slash are looked up in the catalog."""
    (folder / "my-node.yaml").write_text(NODE)
    (folder / "h100.yaml").write_text(NODE.replace("my-card.yaml", "H100"))

    assert load_node(folder / "my-node.yaml").device.name == "my-card"
    assert load_node(folder / "h100.yaml").device.name == "h100-sxm-80gb"
    assert default_fabric_name(folder / "my-node.yaml") == "ethernet-100g"
    assert load_node(folder / "my-node.yaml").price_usd_per_s is None


def test_a_users_fabric_and_site_load(folder: Path) -> None:
    """Null is an answer: unknown, hence reported as null."""
    (folder / "fabric.yaml").write_text(FABRIC)
    (folder / "site.yaml").write_text(SITE)
    site = load_site(folder / "site.yaml")

    assert load_fabric(folder / "fabric.yaml").oversubscription == 2.5
    assert site.carbon_gco2e_per_j is None
    assert site.energy_price_usd_per_j == pytest.approx(0.12 / 3.6e6)


def test_an_unknown_name_suggests_the_nearest() -> None:
    """Never another device's numbers."""
    with pytest.raises(UnknownNameError) as caught:
        load_device("h100-smx-80gb")

    told = str(caught.value)
    assert told.startswith("unknown device 'h100-smx-80gb'; did you mean 'h100-sxm-80gb' or ")
    assert told.endswith("; of any other give files of your own, as docs/clusters.md shows")


@pytest.mark.parametrize("name", ["", "..", ".", "x" * 5000, "a\0b", "é", "dgx-h100"])
def test_names_that_are_no_device_are_unknown(name: str) -> None:
    """A name is not a path, however it looks."""
    with pytest.raises(UnknownNameError):
        load_device(name)


def test_every_problem_is_listed_at_once(folder: Path) -> None:
    """The message that users meet most, whole."""
    path = folder / "bad.yaml"
    path.write_text(
        DEVICE.replace("16 GiB", "16 GiBs")
        .replace("compute_units: {value: 80, source: sheet}", "compute_units: 80")
        .replace("kind: gpu", "kind: gpus")
        .replace('"200 W", source: sheet', '"200 W", source: shet')
        .replace("  bf16:", "  bf17:")
        + "memory_bandwith: {}\n"
    )

    with pytest.raises(JobError) as caught:
        load_device(path)

    assert str(caught.value) == (
        f"{path}: 6 problems:\n"
        "  kind: found 'gpus', expected one of cpu, gpu, npu, tpu; did you mean 'gpu'?\n"
        "  memory.value: unknown unit 'GiBs' in '16 GiBs'; did you mean 'GiB'? expected one of B, "
        "kB, KB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB\n"
        "  matrix_peak.bf17: unknown key; did you mean 'bf16'? expected bf16, fp16, fp32, fp64, "
        "fp8, int8, mxfp8, nvfp4, tf32\n"
        "  compute_units: found 80, expected {value: …, source: …}\n"
        "  tdp.source: found 'shet', expected a key of 'sources' (sheet) or 'estimate: <reason>'\n"
        "  memory_bandwith: unknown key; did you mean 'memory_bandwidth'? expected aliases, "
        "architecture, compute_units, die, host_link, idle, kind, matrix_peak, memory, "
        "memory_bandwidth, name, sources, tdp, title, vector_peak, vendor"
    )


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        ("device", "name: my-card\n", "", "name: is missing, expected a text"),
        ("device", "name: my-card", "name: 5", "name: found 5, expected a text"),
        ("device", "title: My card", "title: ' '", "title: found ' ', expected a text"),
        (
            "device",
            'memory: {value: "16 GiB", source: sheet}\n',
            "",
            "memory: is missing, expected {value: …, source: …}",
        ),
        (
            "device",
            '"16 GiB"',
            "16",
            "memory.value: found 16, expected a quantity with its unit, such as '1 B'",
        ),
        (
            "device",
            '"16 GiB"',
            '"16 EB"',
            "memory.value: found '16 EB', expected 2.684e+08 to 1.759e+13 B",
        ),
        (
            "device",
            '"200 W"',
            '"-200 W"',
            "tdp.value: found '-200 W', expected a finite quantity above zero",
        ),
        (
            "device",
            '"200 W"',
            '"1e999 W"',
            "tdp.value: found '1e999 W', expected a finite quantity above zero",
        ),
        (
            "device",
            "value: 80,",
            "value: 80.5,",
            "compute_units.value: found 80.5, expected a whole",
        ),
        ("device", "value: 80,", "value: 0,", "compute_units.value: found 0, expected 1 to 100000"),
        (
            "device",
            "value: 80,",
            "value: true,",
            "compute_units.value: found True, expected a number",
        ),
        (
            "device",
            "value: 80,",
            "value: .nan,",
            "compute_units.value: found nan, expected a finite",
        ),
        (
            "device",
            '"20 W"',
            '"200 W"',
            "idle: found 200 W for my-card, expected less than its tdp, 200 W",
        ),
        (
            "device",
            '  bf16: {value: "100 TFLOP/s", source: sheet}',
            "  {}",
            "matrix_peak: my-card has no rate for any precision, expected one or more",
        ),
        (
            "device",
            "a tenth of the rating",
            "",
            "idle.source: found 'estimate: ', expected the reason after it",
        ),
        (
            "device",
            '{sheet: "My datasheet, 2026"}',
            "{sheet: 5}",
            "sources.sheet: found 5, expected a citation",
        ),
        (
            "device",
            "idle: {value",
            "idle: {note: x, value",
            "idle.note: unknown key; expected source, value",
        ),
        (
            "device",
            "vendor: me",
            "vendor: me\naliases: x",
            "aliases: found 'x', expected a list of texts",
        ),
        (
            "node",
            "  kind: pcie",
            "  kind: pci",
            "scale_up.kind: found 'pci', expected one of cube-mesh, links, mesh",
        ),
        (
            "node",
            "  latency:",
            "  latecy:",
            "scale_up.latecy: unknown key; did you mean 'latency'?",
        ),
        (
            "node",
            "value: false",
            "value: 0",
            "scale_up.in_network_reduction.value: found 0, expected true",
        ),
        ("node", "price: null\n", "", "price: is missing, expected {value: …, source: …}"),
        ("node", "price: null", "price: 5", "price: found 5, expected {value: …, source: …}"),
        ("node", "host:\n", "host: 5\nhots:\n", "host: found 5, expected a mapping"),
        ("node", "my-card.yaml", "no.yaml", "there is no such file; check the path"),
        (
            "fabric",
            "value: 2.5",
            "value: 0.5",
            "oversubscription.value: found 0.5, expected 1 to 1000",
        ),
        ("site", "pue: {value", "pue: {valeu", "pue.valeu: unknown key; did you mean 'value'? "),
        ("node", "domain_devices:", "domain_device:", "did you mean 'domain_devices'? expected"),
        (
            "node",
            "cpu_cores:",
            "cpu_core:",
            "cpu_core: unknown key; did you mean 'cpu_cores'?",
        ),
        (
            "fabric",
            "leaf_nodes:",
            "leaf_node:",
            "unknown key; did you mean 'leaf_nodes'?",
        ),
        ("site", "value: 1.3", "value: 0.9", "pue.value: found 0.9, expected 1 to 10"),
        ("site", "carbon: null\n", "", "carbon: is missing, expected {value: …, source: …}"),
    ],
)
def test_a_fault_is_named_with_its_place(
    folder: Path, kind: str, old: str, new: str, message: str
) -> None:
    """File, key, what was found, what was expected."""
    assert message in refusal(folder, kind, old, new)


def test_an_unknown_device_of_a_node_is_an_error(folder: Path) -> None:
    """And names the node's file nowhere, but the device that is wanted."""
    path = folder / "node.yaml"
    path.write_text(NODE.replace("my-card.yaml", "my-card"))

    with pytest.raises(UnknownNameError, match="unknown device 'my-card'"):
        load_node(path)

"""Loading: a user's own files, and every way in which they can be wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.hardware.user_node import HOST
from wattree.errors import JobError, UnknownNameError, WattreeError
from wattree.hardware import (
    Device,
    Fabric,
    HostPart,
    Node,
    Precision,
    Site,
    default_fabric_name,
    load_device,
    load_fabric,
    load_node,
    load_site,
)
from wattree.hardware.load import CATALOG

DEVICE = """\
name: my-card
title: My card
vendor: me
kind: gpu
architecture: mine
sources: {sheet: "My datasheet, 2026"}
memory: {value: "16 GiB", source: sheet}
memory_bandwidth: {value: "1 TB/s", source: sheet}
matrix_peak:
  bf16: {value: "100 TFLOP/s", source: sheet}
vector_peak: {value: "20 TFLOP/s", source: sheet}
compute_units: {value: 80, source: sheet}
host_link: {value: "32 GB/s", source: sheet}
tdp: {value: "200 W", source: sheet}
idle: {value: "20 W", source: "estimate: a tenth of the rating"}
"""
NODE = (
    """\
name: my-node
title: My node
device: my-card.yaml
fabric: ethernet-100g
sources: {sheet: "My datasheet, 2026"}
devices: {value: 4, source: sheet}
scale_up:
  kind: pcie
  bandwidth: {value: "32 GB/s", source: sheet}
  latency: {value: "5 us", source: sheet}
  domain_devices: {value: 4, source: sheet}
  in_network_reduction: {value: false, source: sheet}
nics: {value: 1, source: sheet}
nic_bandwidth: {value: "100 Gbit/s", source: sheet}
nic_latency: {value: "5 us", source: sheet}
"""
    + HOST
)
FABRIC = """\
name: my-fabric
title: My fabric
kind: ethernet
sources: {sheet: "My datasheet, 2026"}
oversubscription: {value: 2.5, source: sheet}
leaf_nodes: {value: 16, source: sheet}
switch_latency: {value: "1 us", source: sheet}
switch_power_per_nic: {value: "20 W", source: sheet}
"""
SITE = """\
name: my-site
sources: {bill: "My bill, 2026"}
pue: {value: 1.3, source: bill}
carbon: null
energy_price: {value: "0.12 USD/kWh", source: bill}
"""
LOADERS: dict[str, Callable[[str | Path], Device | Node | Fabric | Site]] = {
    "device": load_device,
    "node": load_node,
    "fabric": load_fabric,
    "site": load_site,
}
TEXTS = {"device": DEVICE, "node": NODE, "fabric": FABRIC, "site": SITE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds the user's card."""
    (tmp_path / "my-card.yaml").write_text(DEVICE)
    return tmp_path


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

    assert str(caught.value).startswith(
        "unknown device 'h100-smx-80gb'; did you mean 'h100-sxm-80gb' or "
    )


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
        "fp8, mxfp8, nvfp4, tf32\n"
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


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1 GB", "-1 W", "5 us", "sheet", "estimate: x", "pcie", "h100", "a/b.yaml"])
)
keys = st.text(max_size=5) | st.sampled_from(
    [
        "value",
        "source",
        "sources",
        "memory",
        "matrix_peak",
        "bf16",
        "scale_up",
        "host",
        "name",
        "pue",
    ]
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data(), kind=st.sampled_from(sorted(LOADERS)))
def test_any_change_of_a_good_file_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    """Whatever stands at any place, no traceback: a hundred wrong files, each nearly right."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "my-card.yaml").write_text(DEVICE)
    yaml = YAML(typ="safe", pure=True)
    content = yaml.load(TEXTS[kind])
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[data.draw(st.just(key) | keys)] = data.draw(trees)
    path = folder / "changed.yaml"
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(content, file)
    try:
        outcome = LOADERS[kind](path).name
    except WattreeError as error:
        outcome = str(error)

    assert outcome


@given(content=st.binary(max_size=200), kind=st.sampled_from(sorted(LOADERS)))
def test_any_bytes_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: str
) -> None:
    """A picture, an archive, a truncated download."""
    path = tmp_path_factory.mktemp("fuzz") / "any.yaml"
    path.write_bytes(content)

    with pytest.raises(WattreeError):
        LOADERS[kind](path)


@given(name=st.text(max_size=30))
def test_any_name_is_known_or_refused(name: str) -> None:
    """Names come from job files."""
    for load in LOADERS.values():
        try:
            outcome = load(name).name
        except WattreeError as error:
            outcome = str(error)
        assert outcome


def parts_of(tmp_path: Path, host: str) -> Node:
    """Return a user's node whose host has more keys."""
    path = tmp_path / "dgx.yaml"
    text = (CATALOG / "nodes" / "dgx-1.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("price:", f"{host}price:"), encoding="utf-8")
    return load_node(path)


def test_a_host_is_told_apart_as_far_as_its_file_does(tmp_path: Path) -> None:
    """One figure stands for rest and training; what is left is the rest."""
    given = (
        "  conversion: {value: 1.05, source: guide}\n  fans: {value: 0.1, source: guide}\n"
        '  parts:\n    processors: {value: "270 W", source: guide}\n'
        '    processors_idle: {value: "50 W", source: guide}\n'
        '    adapters: {value: "60 W", source: guide}\n'
    )
    node = parts_of(tmp_path, given)
    host = node.host

    assert host.parts["processors"] == HostPart(idle_w=50.0, busy_w=270.0)
    assert host.parts["adapters"] == HostPart(idle_w=60.0, busy_w=60.0)
    assert host.rest == HostPart(idle_w=34.0, busy_w=30.0)
    assert host.behind == pytest.approx(1.1 * 1.05)
    assert node.sources["host.parts.processors"].startswith("NVIDIA DGX-1")
    assert load_node("dgx-1").host.behind == 1.0


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (
            '  parts:\n    processors: {value: "400 W", source: guide}\n',
            "host.parts: found 400 W for processors together, expected at most host.busy, 360 W",
        ),
        (
            '  parts:\n    memory_idle: {value: "10 W", source: guide}\n',
            "host.parts.memory: is needed with memory_idle",
        ),
        ('  parts:\n    pumps: {value: "10 W", source: guide}\n', "host.parts.pumps: unknown key"),
        ("  conversion: {value: 0.96, source: guide}\n", "expected 1 to 1.5"),
        ("  fans: {value: -0.1, source: guide}\n", "host.fans.value: found -0.1, expected 0 to 1"),
    ],
)
def test_a_host_that_cannot_be_is_refused(tmp_path: Path, host: str, said: str) -> None:
    """Each with its key, what was found and what is expected."""
    with pytest.raises(JobError, match=re.escape(said)):
        parts_of(tmp_path, host)

"""The catalog: complete, cited, plausible, and its index true."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path

import pytest

from tests.each import each
from wattree.errors import UnknownNameError
from wattree.files import read_yaml
from wattree.hardware import (
    Precision,
    canonical_name,
    load_device,
    load_fabric,
    load_node,
    load_site,
    node_names,
    site_names,
)
from wattree.hardware.load import default_fabric_name
from wattree.hardware.names import (
    CATALOG,
    FOLDERS,
    device_names,
    fabric_names,
    names_of,
    plain,
)
from wattree.units import GIB

FILES = sorted(CATALOG.rglob("*.yaml"))

#: What issue and papers ask for by name.
WANTED_DEVICES = (
    *("v100-sxm2-16gb", "v100-sxm2-32gb", "p100-sxm2-16gb", "p40"),
    *("t4", "a10", "a30", "a40"),
    *("rtx-a6000", "titan-xp", "titan-rtx", "rtx-2080-ti"),
    *("rtx-6000-turing", "rtx-6000-ada", "rtx-3090", "rtx-4090"),
    *("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb"),
    "a100-sxm-80gb-500w",
    *("a800-sxm-80gb", "h100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"),
    *("h100-sxm-96gb-500w", "h800-sxm-80gb", "h200-sxm-141gb", "gh200-96gb"),
    *("b200-sxm-180gb", "b300-sxm-288gb", "gb200", "gb300"),
    *("l4", "l40s", "mi250x-gcd", "mi300x"),
    *("mi325x", "mi355x", "gaudi2", "gaudi3"),
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"),
    *("trainium2", "mt-2000-plus", "ft-2000-plus"),
)
WANTED_NODES = (
    *("dgx-1", "dgx-2", "dgx-a100", "dgx-a100-40gb"),
    *("dgx-h100", "hgx-h100", "hgx-h200", "dgx-b200"),
    *("dgx-b300", "gb200-nvl72", "gb300-nvl72", "p3.16xlarge"),
    *("p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"),
    *("p5en.48xlarge", "8x-a40", "8x-l40s", "8x-rtx-3090"),
    *("4x-a6000", "8x-rtx-2080-ti", "8x-titan-xp", "8x-t4"),
    *("8x-h100-pcie", "hgx-h100-96gb-500w", "frontier", "8x-mi300x"),
    *("8x-gaudi2", "8x-gaudi3", "tpu-v4-host", "tpu-v5p-host"),
    *("tpu-v6e-host", "mt-2000-plus-node", "ft-2000-plus-node"),
)


def cited_fields(value: object, where: str = "") -> dict[str, dict[str, object]]:
    """Return every `{value, source}` of a file, by its place."""
    found: dict[str, dict[str, object]] = {}
    if isinstance(value, dict) and "value" in value:
        return {where: value}
    if isinstance(value, dict):
        for key, item in value.items():
            found |= cited_fields(item, f"{where}.{key}".lstrip("."))
    return found


def bare_numbers(value: object, where: str = "") -> list[str]:
    """Return the places of numbers that stand outside a `{value, source}`."""
    if isinstance(value, dict) and "value" in value:
        return []
    if isinstance(value, dict):
        return [
            place for key, item in value.items() for place in bare_numbers(item, f"{where}.{key}")
        ]
    return [where] if isinstance(value, int | float) else []


def test_the_catalogue_holds_what_was_asked_for() -> None:
    """Forty devices at least, and each of those that papers measure on."""
    assert len(device_names()) >= 40
    assert set(WANTED_DEVICES) <= set(device_names())
    assert set(WANTED_NODES) <= set(node_names())


@each("name", device_names())
def test_a_device_is_plausible(name: str) -> None:
    """A slip of a power of ten, or of a factor of two for sparsity, shows in these ratios."""
    device = load_device(name)
    peaks = device.peak_flop_per_s
    best_16_bit = max(peaks.get(Precision.BF16, 0.0), peaks.get(Precision.FP16, 0.0))

    assert device.name == name
    assert GIB * 4 <= device.memory_bytes <= 1.1e12
    assert 1.4e11 <= device.memory_bandwidth_bytes_per_s <= 1e13
    assert device.host_link_bytes_per_s <= device.memory_bandwidth_bytes_per_s
    assert 0.05 <= device.idle_w / device.tdp_w <= 0.5
    assert max(peaks.values()) / device.tdp_w < 2e13  # no device reaches 20 TFLOP/s per watt
    assert best_16_bit / device.tdp_w < 2.6e12
    if Precision.FP8 in peaks and best_16_bit:
        assert 1 <= peaks[Precision.FP8] / best_16_bit <= 2.03
    if device.kind == "gpu":
        assert peaks[Precision.FP32] >= device.vector_flop_per_s
        assert 8e9 <= device.vector_flop_per_s / device.compute_units <= 8e11


@each("name", node_names())
def test_a_node_is_plausible_and_its_fabric_known(name: str) -> None:
    """A bit taken for a byte, or both directions for one, shows here."""
    node = load_node(name)

    assert node.name == name
    assert 1 <= node.devices <= 16
    assert node.scale_up.domain_devices >= node.devices
    assert node.scale_up.bandwidth_bytes_per_s <= node.device.memory_bandwidth_bytes_per_s
    assert node.nic_bandwidth_bytes_per_s <= 1e11
    assert node.nics * node.nic_bandwidth_bytes_per_s / node.devices <= 1.01e11
    assert 1e-7 <= node.scale_up.latency_s <= 1e-5
    assert 1e-6 <= node.nic_latency_s <= 1e-4
    most_w = max(1.1 * node.devices * node.device.tdp_w, 10.0 * node.host.cpu_cores)
    assert node.host.idle_w < node.host.busy_w < most_w  # or a small card's workstation
    assert not node.scale_up.in_network_reduction or node.scale_up.kind == "switch"
    assert load_fabric(default_fabric_name(name)).name in fabric_names()


@each("name", fabric_names())
def test_a_fabric_is_plausible(name: str) -> None:
    """Latency of some switches, power of some ports."""
    fabric = load_fabric(name)

    assert fabric.name == name
    assert fabric.switch_latency_s <= 1e-5
    assert fabric.switch_w_per_nic <= 250


@each("name", site_names())
def test_a_site_is_plausible(name: str) -> None:
    """Grams per kilowatt hour lie between hydro and brown coal."""
    site = load_site(name)

    assert site.name == name
    assert 1 <= site.pue <= 1.6
    assert site.carbon_gco2e_per_j is not None
    assert 5 <= site.carbon_gco2e_per_j * 3.6e6 <= 1000


def test_every_device_stands_in_a_node() -> None:
    """A device that no node holds could not be planned with."""
    assert {load_node(name).device.name for name in node_names()} == set(device_names())


def test_a_host_draws_what_its_processors_do() -> None:
    """Whatever its devices take: cores at the least that a processor of the catalog is rated for.

    Superchips have their processors in the rated power of the device.
    """
    rated = [load_device(name) for name in ("epyc-7742", "xeon-8480c")]
    least_w = min(device.tdp_w / device.compute_units for device in rated)
    nodes = [node for node in map(load_node, node_names()) if node.device.kind != "cpu"]

    assert [
        node.name
        for node in nodes
        if node.host.busy_w < node.host.cpu_cores * least_w and not node.device.has_coherent_link
    ] == []


def test_nodes_of_one_device_have_its_rate_of_pcie() -> None:
    """The rate is that of the device's generation, however many share a node."""
    rates: dict[str, set[float]] = {}
    for node in map(load_node, node_names()):
        if node.scale_up.kind == "pcie":
            rates.setdefault(node.device.name, set()).add(node.scale_up.bandwidth_bytes_per_s)

    assert {name: found for name, found in rates.items() if len(found) > 1} == {}


@each("path", FILES, ids=lambda path: path.stem)
def test_every_number_has_its_source_beside_it(path: Path) -> None:
    """Every citation names a document and a year; every estimate says why; none is left over."""
    content = dict(read_yaml(path))
    citations = content.pop("sources")
    fields = cited_fields(content)
    used = {str(field["source"]) for field in fields.values()}
    estimates = {source for source in used if source.startswith("estimate: ")}

    assert bare_numbers(content) == []
    assert fields
    assert used - estimates == set(citations)
    assert all(len(source) > len("estimate: ") + 15 for source in estimates)
    assert [text for text in citations.values() if "://" in text] == []
    undated = [text for text in citations.values() if not re.search(r"\b(19|20)\d\d\b", text)]
    assert [text for text in undated if not text.startswith(UNDATED)] == []


#: Citations that need no year: what is always the present state, or says its configuration only.
UNDATED = (
    "Reference configuration",
    "NVIDIA NVLink and NVSwitch product page",
    "PCI Express Base Specification, generation of the device",
    "Start-up time of NCCL",
    "MLPerf Training v",
    "CSCS Alps documentation",
    "CodeCarbon (mlco2/codecarbon, commit b05965e, 2026-08)",
    "NVIDIA DGX A100 user guide",
    "NVIDIA DGX H100 user guide",
    "AWS Neuron documentation v2.29",
)


def test_sources_arrive_with_the_values() -> None:
    """A report prints where a number comes from."""
    device, node = load_device("h100-sxm-80gb"), load_node("dgx-h100")

    assert device.sources["idle_w"].startswith("grantwilkins/training_profile")
    assert device.sources["peak_flop_per_s.bf16"].startswith(
        "NVIDIA H100 Tensor Core GPU datasheet"
    )
    assert node.sources["host.busy_w"].startswith("MLPerf Training v4.0")
    assert node.sources["host.idle_w"].startswith("estimate: 40 %")
    assert node.sources["scale_up.bandwidth_bytes_per_s"].startswith("NVIDIA DGX H100")


def test_well_known_figures() -> None:
    """Read off the datasheets again, by hand, in other units than the files have."""
    h100, a100, b200 = (
        load_device(name) for name in ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb")
    )
    dgx = load_node("dgx-h100")

    assert h100.memory_bytes == 81559 * 2**20
    assert h100.peak_flop_per_s[Precision.BF16] == pytest.approx(989.4e12)
    assert h100.compute_units == 132
    assert a100.peak_flop_per_s[Precision.TF32] == pytest.approx(156e12)
    assert b200.peak_flop_per_s[Precision.BF16] == pytest.approx(2.25e15)
    assert dgx.scale_up.bandwidth_bytes_per_s == pytest.approx(450e9)
    assert dgx.scale_up.in_network_reduction
    assert dgx.nics * dgx.nic_bandwidth_bytes_per_s == pytest.approx(400e9)
    assert load_node("dgx-a100").nic_bandwidth_bytes_per_s == pytest.approx(25e9)
    assert load_node("gb200-nvl72").scale_up.domain_devices == 72
    assert load_site("world-average").pue == pytest.approx(1.56)


def _alias_index() -> dict[str, dict[str, str]]:
    """Return, by kind, every other name of the catalog → its file's name."""
    index: dict[str, dict[str, str]] = {}
    for kind, folder in FOLDERS.items():
        names = set(names_of(kind))
        index[kind] = {}
        for name in sorted(names):
            path = CATALOG / folder / f"{name}.yaml"
            for alias in map(plain, read_yaml(path).get("aliases", [])):
                claimed = alias in names - {name} or index[kind].get(alias, name) != name
                assert not claimed, f"{path}: aliases: '{alias}' names another {kind} too"
                if alias != name:
                    index[kind][alias] = name
    return index


def test_the_alias_index_is_true(request: pytest.FixtureRequest) -> None:
    """One alias costs one small file, so it must hold what the files say."""
    path = CATALOG / "aliases.json"
    found = json.dumps(_alias_index(), indent=1, sort_keys=True) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(found, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == found, "remake it with --update-golden"


@pytest.mark.parametrize(
    ("kind", "name", "canonical"),
    [
        ("device", "H100-SXM", "h100-sxm-80gb"),
        ("device", "NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("device", "a100_sxm_80gb", "a100-sxm-80gb"),
        ("device", "V100", "v100-sxm2-16gb"),
        ("device", "RTX3090", "rtx-3090"),
        ("device", "MT-2000+", "mt-2000-plus"),
        ("device", "AMD Instinct MI300X", "mi300x"),
        ("device", "AMD Instinct MI250X OAM", "mi250x-gcd"),
        ("device", "NVIDIA GeForce RTX 4060", "rtx-4060"),
        ("device", "rtx3070ti", "rtx-3070-ti"),
        ("device", "a100-80g", "a100-sxm-80gb"),
        ("device", "rtx 4060 8GB", "rtx-4060"),
        ("device", "NVIDIA RTX 4000 Ada Generation", "rtx-4000-ada"),
        ("device", "AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("device", "Intel(R) Arc(TM) B580 Graphics", "arc-b580"),
        ("device", "TPU v5 lite", "tpu-v5e"),
        ("node", "Standard_ND96isr_H100_v5", "nd96isr-h100-v5"),
        ("node", "ml.p4d.24xlarge", "p4d.24xlarge"),
        ("node", "LUMI-G", "frontier"),
        ("node", "4x-mi250", "8x-mi250-gcd"),  # one device a die, as in ROCm
        ("node", "DGX A100", "dgx-a100"),
        ("node", "NVIDIA DGX H100", "dgx-h100"),
        ("node", "DGX-H100", "dgx-h100"),
        ("node", "p5.48xlarge", "p5.48xlarge"),
        ("fabric", "ndr", "infiniband-ndr-fat-tree"),
        ("site", "US", "us-average"),
    ],
)
def test_other_names_lead_to_the_catalogue(kind: str, name: str, canonical: str) -> None:
    """As row files, drivers and people write them."""
    assert canonical_name(kind, name) == canonical


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("device", "NVIDIA GeForce RTX 4060 Ti", "known: rtx-4060-ti-16gb, rtx-4060-ti-8gb$"),
        ("device", "RTX 3060 8GB", "unknown device 'RTX 3060 8GB'; did you mean 'rtx-3060' or"),
        ("device", "RTX 6000", "known: rtx-6000-ada, rtx-6000-turing$"),
        ("device", "4090", "known: rtx-4090, rtx-4090-d, rtx-4090-laptop$"),
        ("node", "v4-128", "v4-128 has 64 chips: node: tpu-v4-host, nodes: 16$"),
        ("node", "v5litepod-4", "nodes: 1, and place: {devices: 0-3}$"),
        ("node", "2xA100", "for 2 of a node's devices, the job has place: {devices: 0-1}$"),
    ],
)
def test_names_of_several_things_are_refused_with_all_of_them(
    kind: str, name: str, message: str
) -> None:
    """Memory that a device does not have makes it another one."""
    with pytest.raises(UnknownNameError, match=message):
        (load_device if kind == "device" else load_node)(name)


def test_no_two_names_are_the_same_without_dashes() -> None:
    """Names are compared so before they are refused."""
    aliases = json.loads((CATALOG / "aliases.json").read_text(encoding="utf-8"))
    for kind in ("device", "node"):
        targets: dict[str, set[str]] = {}
        for name in names_of(kind):
            targets.setdefault(name.replace("-", ""), set()).add(name)
        for alias, name in aliases[kind].items():
            targets.setdefault(alias.replace("-", ""), set()).add(name)

        assert {name: found for name, found in targets.items() if len(found) > 1} == {}


def test_one_device_loads_quickly() -> None:
    """Nothing but its own file is read: about 5 ms, with room for a busy machine."""
    load_device("h100-sxm-80gb")
    taken_s = []
    for _ in range(9):
        start_s = time.thread_time()
        load_device("h100-sxm-80gb")
        taken_s.append(time.thread_time() - start_s)

    assert statistics.median(taken_s) < 0.05


def test_every_gpu_names_its_die_and_who_says_so() -> None:
    """Constants are shared by die: one without would be taken for the mean of all."""
    devices = [load_device(name) for name in device_names()]

    assert [
        device.name
        for device in devices
        if device.kind == "gpu" and not (device.die and device.sources.get("die"))
    ] == []


def test_a_device_in_place_of_a_node_names_all_nodes_of_that_name() -> None:
    """Those of its other variants too."""
    with pytest.raises(UnknownNameError, match=r"known: gh200-144gb-single, gh200-quad, gh200-s"):
        load_node("gh200")

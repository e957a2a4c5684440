"""The catalog agrees with independent tables of the same figures, kept besides the checkout."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from wattree.errors import UnknownNameError
from wattree.hardware import Device, canonical_name, load_device, load_node, load_site, node_names
from wattree.hardware.device import Precision
from wattree.units import GIB, JOULES_PER_KWH, SECONDS_PER_HOUR


def _peak(precision: Precision) -> Callable[[Device], float | None]:
    def peak_tflops(device: Device) -> float | None:
        peak = device.peak_flop_per_s.get(precision)
        return None if peak is None else peak / 1e12

    return peak_tflops


#: Field of the table → the same figure of a device in the table's unit; None where it has none.
FIELDS: dict[str, Callable[[Device], float | None]] = {
    "num_sm": lambda device: device.compute_units,
    "mem_bw_gbps": lambda device: device.memory_bandwidth_bytes_per_s / 1e9,
    "mem_gib": lambda device: device.memory_bytes / GIB,
    "peak_tflops_fp32": lambda device: device.vector_flop_per_s / 1e12,
    "peak_tflops_fp32_matrix": _peak(Precision.FP32),
    "peak_tflops_tf32": _peak(Precision.TF32),
    "peak_tflops_bf16": _peak(Precision.BF16),
    "peak_tflops_fp16": _peak(Precision.FP16),
    "peak_tflops_fp8": _peak(Precision.FP8),
    "peak_tflops_fp4": _peak(Precision.NVFP4),
    "pcie_unidir_gbps": lambda device: device.host_link_bytes_per_s / 1e9,
    "tdp_w": lambda device: device.tdp_w,
    "idle_w_measured": lambda device: device.idle_w,
}
#: Rounding of printed figures.
TOLERANCE = 0.015

#: What the catalog holds under no name, and why.
ABSENT = {
    "AMD MI455X": "announced: no rated power, no unit count",
    "Huawei Ascend 950DT": "announced: no rated power, no unit count",
    "Rubin": "announced: no rated power",
    "AMD RX480": "consumer card, only its power is in the table",
    "Any": "no product",
    "GTX TITAN X": "consumer card, only its power is in the table",
    "Jetson AGX Xavier": "embedded, only its power is in the table",
}
#: Modules of two dies, each of which is a device to software and in the catalog.
MODULES = {"AMD MI250", "AMD MI250X"}
#: Names of the table that mean another entry than their alias does.
NAMED = {"AWS Trainium2 / Ultra": "trainium2"}

#: Where the catalog follows another source than every one in the table, and why.
DEVIATIONS = {
    ("AWS Trainium2 / Ultra", "peak_tflops_fp32"): "the table has the matrix rate",
    ("Intel Gaudi3", "peak_tflops_fp32"): "the table has the matrix rate",
    ("B200-SXM", "pcie_unidir_gbps"): "the table adds both directions: the hosts have PCIe 5.0",
    ("GB200", "pcie_unidir_gbps"): "the way to the host is NVLink-C2C",
    ("GB300", "pcie_unidir_gbps"): "the way to the host is NVLink-C2C",
    ("B200-SXM", "peak_tflops_fp32"): "the HGX datasheet has 75, 80 is that of the GB200",
    ("B300-SXM", "peak_tflops_fp32"): "the HGX datasheet has 75, 80 is that of the GB300",
    ("L4", "mem_gib"): "nvidia-smi reports 23034 MiB, with ECC on",
    ("L4", "num_sm"): "the table has the full die, the product 58 of its 60",
    ("L4", "peak_tflops_fp32"): "the table has the full die",
    ("P4", "num_sm"): "the table counts SMs of 64 lanes, this die has 20 of 128",
    ("P100-PCIe-16GB", "peak_tflops_fp32"): "the datasheet has the base boost clock",
    ("TPU v2", "tdp_w"): "the table has the rated power, the catalog the highest, as for TPU v3",
    ("TPU v3", "tdp_w"): "the table has the mean power, the catalog the highest",
    ("TPU v4", "tdp_w"): "the table has the mean power, the catalog the highest",
    ("Tesla K80", "tdp_w"): "the table has the board, the catalog one of its two GPUs",
    ("Tesla P100", "tdp_w"): "the table has the PCIe card; the plain name is the SXM2 module",
}


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_accelerator_of_the_table_is_in_the_catalogue_or_excused(shared: Path) -> None:
    """An accelerator that is left out is left out on purpose."""
    missing = set()
    for row in rows(shared / "opdata" / "gpus.csv"):
        try:
            canonical_name("device", NAMED.get(row["gpu"], row["gpu"]))
        except UnknownNameError:
            missing.add(row["gpu"])

    assert missing == set(ABSENT)


def test_figures_equal_one_of_the_table(shared: Path) -> None:
    """Two people read the same datasheets; what differs has a reason written down."""
    printed: dict[tuple[str, str], list[float]] = {}
    for row in rows(shared / "opdata" / "gpu_specs_long.csv"):
        if row["field"] in FIELDS and row["gpu"] not in {*ABSENT, *MODULES}:
            printed.setdefault((row["gpu"], row["field"]), []).append(float(row["value"]))
    differing = {}
    for (gpu, field), values in printed.items():
        found = FIELDS[field](load_device(NAMED.get(gpu, gpu)))
        if found is not None and all(abs(found / value - 1) > TOLERANCE for value in values):
            differing[gpu, field] = (found, values)

    assert set(differing) == set(DEVIATIONS), differing


def test_accelerators_of_the_measured_rows_resolve(shared: Path) -> None:
    """A row names its accelerator and often its memory; both spellings must lead to a device."""
    names = set()
    for table in sorted((shared / "measured").glob("*.csv")):
        for row in rows(table):
            names.add(row["accelerator"])
            if row["accel_mem_gb"] and row["accelerator"] not in {"A10", "P40", "L40S"}:
                names.add(f"{row['accelerator']}-{float(row['accel_mem_gb']):.0f}GB")
    found = {name: canonical_name("device", name) for name in names}

    assert found["A100-SXM-40GB"] == "a100-sxm-40gb"
    assert found["V100-SXM2-32GB"] == "v100-sxm2-32gb"
    assert found["H100-SXM-96GB-500W"] == "h100-sxm-96gb-500w"


def test_accelerators_of_the_operator_tables_resolve(shared: Path) -> None:
    """Calibration tables are read by the names they print."""
    unresolved = set()
    for table in ("collectives", "attention_train", "norm_train", "model_latency_fp32"):
        for row in rows(shared / "opdata" / f"{table}.csv"):
            try:
                canonical_name("device", row["gpu"])
            except UnknownNameError:
                unresolved.add(row["gpu"])

    assert unresolved == {"H100-PCIe/NVL", "TitanX-Maxwell"}  # two products; a consumer card


def test_prices_of_nodes_named_after_an_instance_are_the_list_prices(shared: Path) -> None:
    """A price is copied, so it can be copied wrongly; lists that are newer than the table count."""
    listed = {
        row["instance"]: float(row["on_demand_usd_per_h"])
        for row in rows(shared / "opdata" / "gpu_prices.csv")
    }
    nodes = [load_node(name) for name in node_names() if name in listed]
    found = {
        node.name: node.price_usd_per_s
        for node in nodes
        if "Vantage export" in node.sources["price_usd_per_s"]
    }

    assert {"p3.16xlarge", "p3dn.24xlarge", "g5.48xlarge"} <= set(found)
    assert found == {
        name: pytest.approx(listed[name] / SECONDS_PER_HOUR, rel=1e-9) for name in found
    }


def test_carbon_of_sites_is_that_of_the_table(shared: Path) -> None:
    """Of countries by name, of cloud regions by region."""
    table = rows(shared / "opdata" / "carbon_intensity.csv")
    by_country = {
        row["name"].lower().replace(" ", "-"): float(row["gco2_per_kwh"])
        for row in table
        if row["scope"] == "country"
    }
    by_region = {
        f"{row['provider']}-{row['region']}".lower().replace(" ", "-"): float(row["gco2_per_kwh"])
        for row in table
        if (row["source"], row["provider"]) in {("ccf_coefficients", "aws"), ("codecarbon", "gcp")}
    }
    for name, expected in (
        *((name, by_country[name]) for name in ("france", "germany", "sweden", "china", "india")),
        *((name, by_region[name]) for name in ("aws-us-east-1", "aws-eu-north-1")),
        ("gcp-us-central1", by_region["gcp-us-central1"]),
        ("us-average", by_country["united-states"]),
    ):
        carbon = load_site(name).carbon_gco2e_per_j
        assert carbon is not None
        assert carbon * JOULES_PER_KWH == pytest.approx(expected, rel=1e-9), name

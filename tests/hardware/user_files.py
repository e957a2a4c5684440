"""Files of hardware as users write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.hardware.user_node import HOST
from wattree.hardware import (
    Device,
    Fabric,
    Node,
    Site,
    load_device,
    load_fabric,
    load_node,
    load_site,
)

__all__ = ["DEVICE", "FABRIC", "LOADERS", "NODE", "SITE", "TEXTS"]

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

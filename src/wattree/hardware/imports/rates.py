"""Link rates that topology files omit: NVLink, xGMI, PCIe and socket links."""

from __future__ import annotations

from collections.abc import Mapping

#: Compute capability from which it holds → rate of one NVLink, one direction. NVIDIA whitepapers:
#: Pascal 2016 and Volta 2017, Ampere GA100 2020 (NVLink 3 at 50 Gbit/s on 4 lanes), GA102 2021
#: (four links, 56.25 GB/s together), Hopper 2022, Blackwell 2024.
NVLINK_BYTES_PER_S: Mapping[int, float] = {
    60: 20e9,
    70: 25e9,
    80: 25e9,
    86: 14.0625e9,
    90: 25e9,
    100: 50e9,
}
#: NVLinks of the devices that have most: Hopper and Blackwell (the same whitepapers).
MOST_NVLINKS = 18
#: `gcn` of RCCL's files → rate of one xGMI link, one direction: AMD Instinct data sheets of
#: MI250X (2021), MI300X (2023), MI350X (2025).
_XGMI_BYTES_PER_S = {"910": 50e9, "gfx90a": 50e9, "gfx942": 64e9, "942": 64e9, "gfx950": 76.8e9}

#: Transfers per second of one lane, generations 1 to 6 (PCI Express Base Specification). [1e9/s]
PCIE_TRANSFERS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
#: Transfers per second of one lane → share that carries payload (PCI Express Base Specification:
#: 8b/10b, then 128b/130b, then flits of 256 B of which 236 B are transaction layer packets).
_PCIE_CODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130}
_PCIE_FLIT = 236 / 256
#: What NCCL takes where the kernel names no speed or width: generation 3, 16 lanes (NCCL 2.28,
#: src/graph/topo.cc).
_PCIE_UNKNOWN = (8.0, 16)

#: What NCCL counts on between sockets (NCCL 2.28, src/graph/topo.h), by vendor, then by family
#: or model from which it holds.
_AMD_BYTES_PER_S = {0: 16e9, 25: 24e9, 26: 32e9}
_INTEL_BYTES_PER_S = {0: 6e9, 0x55: 10e9, 0x8F: 22e9, 0xCF: 40e9}
_OTHER_BYTES_PER_S = 6e9
_POWER_BYTES_PER_S = 32e9


def nvlink_bytes_per_s(compute_capability: int) -> float | None:
    """Return the rate of one NVLink, one direction, or None before there were any. [B/s]"""
    return _from_threshold(NVLINK_BYTES_PER_S, compute_capability)


def xgmi_bytes_per_s(architecture: str) -> float | None:
    """Return the rate of one xGMI link, one direction, or None if it is not known. [B/s]"""
    return _XGMI_BYTES_PER_S.get(architecture)


def pcie_bytes_per_s(transfers: float | None, lanes: int | None) -> float:
    """Return the rate of a PCIe slot, one direction. [B/s]

    Args:
        transfers: Billions per second and lane; None if unknown.
        lanes: None or 0 if unknown.
    """
    speed = transfers or _PCIE_UNKNOWN[0]
    width = lanes or _PCIE_UNKNOWN[1]
    return speed * 1e9 / 8 * width * _PCIE_CODING.get(speed, _PCIE_FLIT)


def socket_bytes_per_s(vendor: str, architecture: str, family: int, model: int) -> float:
    """Return the bandwidth between two sockets of this vendor, one direction. [B/s]"""
    if architecture.startswith("ppc"):
        return _POWER_BYTES_PER_S
    if vendor == "AuthenticAMD":
        return _from_threshold(_AMD_BYTES_PER_S, family) or _OTHER_BYTES_PER_S
    if vendor == "GenuineIntel":
        return _from_threshold(_INTEL_BYTES_PER_S, model) or _OTHER_BYTES_PER_S
    return _OTHER_BYTES_PER_S


def _from_threshold(rates: Mapping[int, float], found: int) -> float | None:
    below = [start for start in rates if start <= found]
    return rates[max(below)] if below else None

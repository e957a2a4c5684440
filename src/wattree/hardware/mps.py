"""Devices that several processes can share, and how many may use one at once.

References:
    NVIDIA, "Multi-Process Service" of CUDA 13.1 (R590), sections "Volta MPS" and "Client Limits".
    NVIDIA, "CUDA Toolkit 13.0 Release Notes", "Deprecated or Dropped Features": Maxwell, Pascal and
    Volta, whose last driver (R580) knows CUDA 13.0.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wattree.hardware.device import Device

#: Most MPS clients of a device, by architecture, of those that CUDA 13 no longer knows.
_FORMER_CLIENTS: Final = MappingProxyType({"kepler": 16, "maxwell": 16, "pascal": 16, "volta": 48})
#: Of later ones, before and from a version of CUDA.
_CLIENTS, _MORE_CLIENTS = 48, 60
_CUDA_OF_MORE: Final = (13, 1)


def mps_clients(architecture: str, cuda: tuple[int, int] = _CUDA_OF_MORE) -> int:
    """Return the maximum number of MPS clients of a device.

    Args:
        architecture: Such as `volta`; unknown ones count as later than Volta.
        cuda: Version that the driver knows; (0, 0) counts as an old one.
    """
    recent = _MORE_CLIENTS if cuda >= _CUDA_OF_MORE else _CLIENTS
    return _FORMER_CLIENTS.get(architecture, recent)


def has_mps(device: Device) -> bool:
    """Return whether kernels of several processes can run at once on an accelerator."""
    return device.kind == "gpu" and device.vendor == "nvidia"


def sharing_misfit(device: Device, processes: int, *, mps: bool) -> str:
    """Return why several processes cannot share a device; empty if they can."""
    if device.kind not in {"cpu", "gpu"}:
        return f"found {processes}, but a {device.name} takes one process; expected 1"
    if device.kind == "cpu" or not mps:
        return ""
    if not has_mps(device):
        return (
            f"found {processes} under MPS, which a {device.name} does not have; expected "
            "device_sharing: time-sliced"
        )
    limit = mps_clients(device.architecture)
    if processes <= limit:
        return ""
    return f"found {processes}, but a {device.name} takes {limit} MPS clients; expected no more"


def sharing_note(device: Device, processes: int, *, mps: bool) -> str:
    """Return which CUDA so many processes need; empty if any does."""
    if not (mps and has_mps(device)) or processes <= _CLIENTS:
        return ""
    version = ".".join(map(str, _CUDA_OF_MORE))
    return f"more than {_CLIENTS} MPS clients of a device need CUDA {version}"

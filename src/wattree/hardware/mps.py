"""Devices that several processes can share, and how many may use one at once.

References:
    NVIDIA, "Multi-Process Service", sections "Volta MPS" and "Client Limits": clients of a device.
"""

from __future__ import annotations

from typing import Final

from wattree.hardware.device import Device

#: Most MPS clients of a device: before Volta, from Volta, from Volta with CUDA 13.1.
_CLIENTS, _CLIENTS_VOLTA, _CLIENTS_CUDA_13_1 = 16, 48, 60
_MORE_CLIENTS: Final = (13, 1)
_BEFORE_VOLTA: Final = frozenset({"kepler", "maxwell", "pascal"})


def mps_clients(*, before_volta: bool, cuda: tuple[int, int]) -> int:
    """Return the maximum number of MPS clients of a device.

    Args:
        cuda: Version that the driver knows; (0, 0) counts as an old one.
    """
    if before_volta:
        return _CLIENTS
    return _CLIENTS_CUDA_13_1 if cuda >= _MORE_CLIENTS else _CLIENTS_VOLTA


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
    before_volta = device.architecture in _BEFORE_VOLTA
    limit = mps_clients(before_volta=before_volta, cuda=_MORE_CLIENTS)
    if processes <= limit:
        return ""
    return f"found {processes}, but a {device.name} takes {limit} MPS clients; expected no more"


def sharing_note(device: Device, processes: int, *, mps: bool) -> str:
    """Return which CUDA so many processes need; empty if any does."""
    if not (mps and has_mps(device)) or processes <= _CLIENTS_VOLTA:
        return ""
    version = ".".join(map(str, _MORE_CLIENTS))
    return f"more than {_CLIENTS_VOLTA} MPS clients of a device need CUDA {version}"

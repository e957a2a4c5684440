"""Share of peak that fused attention reaches with the kernels of some software."""

from __future__ import annotations

import math

from wattree.cost.calibration import Calibration
from wattree.cost.software import Software
from wattree.hardware import Device

#: Architectures of AMD for which AITER has attention in assembly. PyTorch takes AOTriton's there.
_WITH_AITER = ("cdna3", "cdna4")


def attention_share(device: Device, software: Software, calibration: Calibration) -> float:
    """Return what attention reaches of the peak, forward, at long sequences."""
    slower = (calibration.general(item) for item in slower_attention(device, software))
    return calibration.device(device, "attention") * math.prod(slower)


def slower_attention(device: Device, software: Software) -> tuple[str, ...]:
    """Return the general constants by which kernels of software are slower than today's best."""
    found, kernels = [], software.attention_kernels
    if kernels != "native" and device.architecture in _WITH_AITER:
        return ("aotriton_attention_rate",)
    if kernels in {"ampere", "triton"} and _has_newer_matrix_units(device):
        found.append("old_attention_rate")
    if kernels == "triton":
        found.append("triton_attention_rate")
    return tuple(found)


def _has_newer_matrix_units(device: Device) -> bool:
    """Return whether kernels written for Ampere leave instructions of the matrix units unused.

    On Blackwell's data center dies they lose at least what they lose on Hopper, which was measured.
    """
    return device.architecture == "hopper" or device.die in {"gb100", "gb110"}

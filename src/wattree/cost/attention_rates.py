"""Share of peak that fused attention reaches with the kernels of some software."""

from __future__ import annotations

from wattree.cost.calibration import Calibration
from wattree.cost.software import Software
from wattree.hardware import Device


def attention_share(device: Device, software: Software, calibration: Calibration) -> float:
    """Return what attention reaches of the peak, forward, at long sequences."""
    share = calibration.device(device, "attention")
    if software.attention_kernels != "native" and _has_newer_matrix_units(device):
        share *= calibration.general("old_attention_rate")
    if software.attention_kernels == "triton":
        share *= calibration.general("triton_attention_rate")
    return share


def _has_newer_matrix_units(device: Device) -> bool:
    """Return whether kernels written for Ampere leave instructions of the matrix units unused.

    On Blackwell's data center dies they lose at least what they lose on Hopper, which was measured.
    """
    return device.architecture == "hopper" or device.die in {"gb100", "gb110"}

"""Rate of fused attention with the kernels of some software."""

from __future__ import annotations

import math

from wattree.cost.calibration import Calibration
from wattree.cost.software import Software
from wattree.hardware import Device, Precision

#: Architectures of AMD for which AITER has attention in assembly. PyTorch takes AOTriton's there.
_WITH_AITER = ("cdna3", "cdna4")
#: Products in TF32 for one of 32 bits in PyTorch's memory-efficient kernel (`DefaultGemmType` with
#: `OpMultiplyAddFastF32`, ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h).
_TF32_PRODUCTS = 3.0


def attention_flop_per_s(
    device: Device, software: Software, plain: Precision, calibration: Calibration
) -> float:
    """Return the rate of fused attention, forward, at long sequences. [FLOP/s]

    Args:
        device: It runs on.
        software: Whose kernels it has.
        plain: Precision of what is not quantized.
        calibration: Constants.
    """
    slower = (calibration.general(item) for item in slower_attention(device, software, plain))
    peak = device.matrix_peak_flop_per_s(plain)
    if _is_wide(software, plain) and Precision.TF32 in device.peak_flop_per_s:
        peak = device.peak_flop_per_s[Precision.TF32] / _TF32_PRODUCTS
    return peak * calibration.device(device, "attention") * math.prod(slower)


def slower_attention(device: Device, software: Software, plain: Precision) -> tuple[str, ...]:
    """Return the general constants by which kernels of software are slower than today's best.

    PyTorch has none but those for Ampere where cuDNN's refuse: of 32 bits, and for drops of scores
    that are no multiple of 1/16 (`check_cudnn_dropout`), as models drop a tenth.
    """
    found, kernels = [], software.attention_kernels
    if kernels != "native" and device.architecture in _WITH_AITER:
        return ("aotriton_attention_rate",)
    refused = kernels == "torch" and (software.drops_scores or _is_wide(software, plain))
    if (refused or kernels in {"ampere", "triton"}) and _has_newer_matrix_units(device):
        found.append("old_attention_rate")
    if kernels == "triton":
        found.append("triton_attention_rate")
    return tuple(found)


def _is_wide(software: Software, plain: Precision) -> bool:
    return software.attention_kernels == "torch" and plain in {Precision.FP32, Precision.TF32}


def _has_newer_matrix_units(device: Device) -> bool:
    """Return whether kernels written for Ampere leave instructions of the matrix units unused.

    On Blackwell's data center dies they lose at least what they lose on Hopper, which was measured.
    """
    return device.architecture == "hopper" or device.die in {"gb100", "gb110"}

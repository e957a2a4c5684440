"""Names of number formats in calibrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wattree.hardware import Device, Precision

#: Precisions whose elements are stored in 32 bits.
WIDE: Final = frozenset({Precision.FP32, Precision.TF32})

_CLASSES = {
    Precision.BF16: "bf16",
    Precision.FP16: "bf16",
    Precision.FP32: "fp32",
    Precision.TF32: "fp32",
    Precision.FP64: "fp32",
    Precision.FP8: "fp8",
    Precision.MXFP8: "fp8",
    Precision.INT8: "fp8",
    Precision.NVFP4: "nvfp4",
}

#: Bytes of an element of linear layers' operands: MXFP8 has a scale of 8 bits for 32 of them, NVFP4
#: one for 16 (Open Compute Project, Microscaling Formats 1.0, 2023; NVIDIA Blackwell brief).
QUANTIZED_BYTES: Mapping[str, float] = {
    Precision.FP8: 1.0,
    Precision.INT8: 1.0,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}


#: Share of peak that large products in fp32 reach on the cores of GPUs, next to matrix units.
CORES_ITEM: Final = "matmul.cores"
#: Board power over fp32 peak of the boards that shares of dies are those of, and from which more
#: buys none: V100 and RTX 20 have 18 to 23 and reach 0.85 to 0.93. [J/FLOP]
_CORES_J_PER_FLOP, _AMPLE_J_PER_FLOP = 10e-12, 20e-12


def computes_on_cores(device: Device, precision: Precision) -> bool:
    """Return whether products run in fp32 on ordinary units: matrix units have no more of it."""
    found = device.matrix_format(precision)
    return found == Precision.FP32 and device.peak_flop_per_s[found] <= device.vector_flop_per_s


def cores_power(device: Device) -> float:
    """Return a board's power for each FLOP of its cores, over that of boards of a die's share.

    Cores since Ampere have more peak than boards have power, so their clock falls.
    """
    power = device.tdp_w / device.peak_flop_per_s[Precision.FP32]
    return min(power, _AMPLE_J_PER_FLOP) / _CORES_J_PER_FLOP


def product_item(device: Device, precision: Precision) -> str:
    """Return the constant of what large products reach of a device's peak.

    TF32 before Ampere, and 16 bits where there are no such units, are products in fp32, too.
    """
    on_cores = device.kind == "gpu" and computes_on_cores(device, precision)
    return CORES_ITEM if on_cores else f"matmul.{precision_class(precision)}"


def precision_class(precision: Precision) -> str:
    """Return the name of the matrix rate at `precision` in calibrations."""
    return _CLASSES[precision]

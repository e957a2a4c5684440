"""Number formats by the name that calibrations keep their constants under."""

from __future__ import annotations

from wattree.hardware import Precision

_CLASSES = {
    Precision.BF16: "bf16",
    Precision.FP16: "bf16",
    Precision.FP32: "fp32",
    Precision.TF32: "fp32",
    Precision.FP64: "fp32",
    Precision.FP8: "fp8",
    Precision.MXFP8: "fp8",
    Precision.NVFP4: "nvfp4",
}


def precision_class(precision: Precision) -> str:
    """Return the name under which calibrations keep the matrix rate at `precision`."""
    return _CLASSES[precision]

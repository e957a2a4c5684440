"""Changes to software defaults that depend on the training precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wattree.cost.precisions import QUANTIZED_BYTES, WIDE
from wattree.cost.software import Software
from wattree.hardware import Precision

#: The training precision that is no number format: products in fp16, parameters and what needs
#: range in fp32, losses scaled (PyTorch's automatic mixed precision).
AUTOCAST = "amp"
#: Precisions that jobs run matrix work at; fp64 is none.
PRECISIONS = (*(each.value for each in Precision if each is not Precision.FP64), AUTOCAST)

#: Nothing is kept twice: parameters are fp32 in the optimizer, as gradients and on the wire.
_FULL: dict[str, Any] = {
    "parameter_bytes": 4.0,
    "frozen_bytes": 0.0,
    "master_bytes": 0.0,
    "master_gradient_bytes": 0.0,
    "gradient_bytes": 4.0,
    "gather_bytes": 4.0,
    "reduce_bytes": 4.0,
}


def at_precision(software: Software, precision: Precision | str) -> Software:
    """Return the software defaults at `precision`, which may be `amp`.

    Without mixed precision, and with autocast, parameters have no copy in the optimizer.
    """
    if software.row_scales and precision != Precision.FP8:  # the others scale by blocks
        software = replace(software, row_scales=False)
    if software.inference_kernels and precision in QUANTIZED_BYTES:
        narrow = QUANTIZED_BYTES[Precision(precision)]
        return replace(software, parameter_bytes=narrow, gather_bytes=narrow)
    if precision == AUTOCAST:
        return replace(software, autocast=True, loss_scaling=True, **_FULL)
    if precision in WIDE:
        return replace(software, autocast=False, loss_scaling=False, cache_bytes=4.0, **_FULL)
    if precision == Precision.FP16 and software.autocast:
        return replace(software, loss_scaling=True)
    return software


def matrix_precision(precision: str) -> Precision:
    """Return the number format of matmuls at a training precision, which may be `amp`."""
    return Precision.FP16 if precision == AUTOCAST else Precision(precision)

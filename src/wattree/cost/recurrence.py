"""Rates of the kernels that run recurrences over chunks of a sequence (Mamba 2, delta rules).

They are written in Triton: many small products with exponentials between them. Forward reaches 91
TFLOP/s on H100, 104 on H200, 117 on B200 and 113 on GB200 (gated delta rule) and 80 on B200 (Mamba
2; AI Configurator tables, 2026, of TensorRT-LLM). It grows as the number of compute units does, not
as the peak of the matrix units (1 : 2.3 from H100 to B200) or the bandwidth (1 : 2.3).
"""

from __future__ import annotations

from typing import Final

from wattree.cost.calibration import Calibration
from wattree.hardware import Device

#: Function of the product that stands for those of a recurrence.
CHUNKED_PRODUCT: Final = "chunked_product"


def recurrence_rates(
    device: Device, calibration: Calibration, *, most_flop_per_s: float
) -> dict[str, float]:
    """Return the rates of recurrences in forward, and of the kernels of gradients. [FLOP/s]

    Args:
        device: Where they run; those that are no GPUs run them as products.
        calibration: The constants.
        most_flop_per_s: What large products reach.
    """
    forward = backward = most_flop_per_s
    if device.kind == "gpu":
        unit = calibration.general("recurrence_unit_flop_per_s")
        forward = min(forward, device.compute_units * unit)
        backward = forward * calibration.general("recurrence_gradient_rate")
    return {
        "recurrence_flop_per_s": forward,
        "recurrence_gradient_flop_per_s": backward,
    }

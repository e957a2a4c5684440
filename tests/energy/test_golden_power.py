"""What devices draw and how they slow, as numbers to review when a constant changes."""

from __future__ import annotations

import numpy as np

from tests.conftest import Golden
from wattree.cost import load_calibration
from wattree.cost.device_power import device_power
from wattree.hardware import Precision, load_device

DEVICES = ("v100-sxm2-16gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb")
#: Shares of peak FLOP/s and of bandwidth: streaming, in between, a large product.
STATES = ((0.0, 0.9), (0.1, 0.6), (0.3, 0.3), (0.7, 0.1))


def test_power_and_slowdown_are_as_reviewed(golden: Golden) -> None:
    """Board power at three states of work, and the time of each under 70 and 50 % of the limit."""
    calibration = load_calibration()
    lines = ["device            peak  bandwidth  power_w  time at 70 %  time at 50 %"]
    for name in DEVICES:
        device = load_device(name)
        for math, memory in STATES:
            power = device_power(device, Precision.BF16, calibration)
            second = np.ones(1)
            flop = math * power.peak_flop_per_s * second
            traffic = memory * power.memory_bytes_per_s * second
            board_w = float(power.board_w(flop, traffic, second)[0])
            times = []
            for share in (0.7, 0.5):
                limit_w = share * device.tdp_w
                cap = device_power(device, Precision.BF16, calibration, limit_w=limit_w).cap
                assert cap is not None
                times.append(float(cap.time_s(second, flop, traffic, memory * second)[0]))
            lines.append(
                f"{name:16}  {math:4.1f}  {memory:9.1f}  {board_w:7.1f}  {times[0]:12.3f}  "
                f"{times[1]:12.3f}"
            )
    golden.check("power.txt", "\n".join(lines) + "\n")

"""The network between nodes from a datasheet or user, where no run determines it."""

from __future__ import annotations

from dataclasses import replace

from wattree.energy.calibration import EnergyCalibration, StageConstant, Status
from wattree.errors import RunError

_NOTE = "given, not from runs"


def with_network(
    calibration: EnergyCalibration, *, bytes_per_s: float, latency_s: float = 0.0
) -> EnergyCalibration:
    """Return a calibration with α and β between nodes; such predictions have no intervals.

    Args:
        calibration: Of runs on single nodes.
        bytes_per_s: β, the rate at which a rank sends. [B/s]
        latency_s: α, of one message. [s]

    Raises:
        RunError: The runs determine them, which is more accurate.
    """
    name = "time.network.between"
    if calibration.constants[f"{name}.bytes_per_s"].value is not None:
        raise RunError(
            "--bandwidth",
            [f"found one, but the runs of the fit tell {name}.bytes_per_s: expected none"],
        )
    # A ring over several nodes passes through each of them: its slowest link sets the pace.
    values = calibration.values() if calibration.devices_per_node > 1 else {}
    within = "time.network.within"
    rate = min(bytes_per_s, values.get(f"{within}.bytes_per_s", bytes_per_s))
    alpha_s = max(latency_s, values.get(f"{within}.alpha_s", latency_s))
    slower = [
        what
        for what, is_slower in (
            ("bytes", rate < bytes_per_s),
            ("messages", alpha_s > latency_s),
        )
        if is_slower
    ]
    note = _NOTE
    if slower:
        note += f"; within nodes {' and '.join(slower)} are slower, which sets the pace"
    given = {
        f"{name}.bytes_per_s": StageConstant(value=rate, status=Status.WEAK, note=note),
        f"{name}.alpha_s": StageConstant(value=alpha_s, status=Status.WEAK, note=note),
    }
    warning = f"{name}: {bytes_per_s:.4g} B/s and {latency_s:.4g} s are given, not from runs"
    return replace(
        calibration,
        constants={**calibration.constants, **given},
        warnings=(*calibration.warnings, warning),
    )

"""The network between nodes where no run tells it: as its maker or a reader says it."""

from __future__ import annotations

from dataclasses import replace

from wattree.energy.calibration import Constant, EnergyCalibration, Status
from wattree.errors import RunError

__all__ = ["with_network"]

_NOTE = "given, not from runs"


def with_network(
    calibration: EnergyCalibration, *, bytes_per_s: float, latency_s: float = 0.0
) -> EnergyCalibration:
    """Return a calibration with α and β between nodes; predictions then have no intervals there.

    Args:
        calibration: Of runs on single nodes.
        bytes_per_s: β, what a rank sends. [B/s]
        latency_s: α, of one message. [s]

    Raises:
        RunError: The runs tell them, which is worth more.
    """
    name = "time.network.between"
    if calibration.constants[f"{name}.bytes_per_s"].value is not None:
        raise RunError(
            "--bandwidth",
            [f"found one, but the runs of the fit tell {name}.bytes_per_s: expected none"],
        )
    given = {
        f"{name}.bytes_per_s": Constant(value=bytes_per_s, status=Status.WEAK, note=_NOTE),
        f"{name}.alpha_s": Constant(value=latency_s, status=Status.WEAK, note=_NOTE),
    }
    warning = f"{name}: {bytes_per_s:.4g} B/s and {latency_s:.4g} s are given, not from runs"
    return replace(
        calibration,
        constants={**calibration.constants, **given},
        warnings=(*calibration.warnings, warning),
    )

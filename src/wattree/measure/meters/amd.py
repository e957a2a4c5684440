"""AMD accelerators through zeus, which knows which of their energy counters are reliable.

References:
    The zeus library, `zeus.device.gpu.amd`: counters are held against the power at start, and
    the second die of an MI250 is in the reading of the first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattree.errors import MeterError, install_command
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading

#: The kernel's driver for computing on AMD devices.
_DRIVER = Path("/dev/kfd")
_NOT_COUNTED = "an integral of power readings: the energy counter of this device is not to be used"


class AmdMeter:
    """Energy of AMD accelerators.

    Args:
        gpus: Devices as zeus has them, with `gpu_index`, `get_name`, `get_average_power_usage`,
            `get_total_energy_consumption` and `supports_get_total_energy_consumption`.
    """

    kind = "amdsmi"

    def __init__(
        self,
        gpus: Sequence[Any],
        *,
        failure: type[Exception],
    ) -> None:
        self._failure = failure
        self._gpus = [(gpu, bool(gpu.supports_get_total_energy_consumption())) for gpu in gpus]

    def domains(self) -> tuple[Domain, ...]:
        """Return one energy domain per device."""
        return tuple(
            Domain(
                name=f"gpu{gpu.gpu_index}",
                device=f"amd:{gpu.gpu_index}",
                quantity=Quantity.ENERGY if counts else Quantity.POWER,
                title=str(gpu.get_name()),
                note="" if counts else _NOT_COUNTED,
            )
            for gpu, counts in self._gpus
        )

    def read(self) -> Sequence[Reading]:
        """Return the counter of every device; failing devices are left out."""
        readings, failures = [], []
        for gpu, counts in self._gpus:
            ask = gpu.get_total_energy_consumption if counts else gpu.get_average_power_usage
            try:
                value = float(ask()) / 1e3  # zeus has mJ and mW
            except self._failure as error:
                failures.append(f"gpu{gpu.gpu_index}: {error}")
                continue
            readings.append(Reading(f"gpu{gpu.gpu_index}", time.monotonic(), value))
        if failures and not readings:
            raise MeterError("; ".join(failures))
        return readings


@METERS.register("amdsmi")
def _probe(options: MeterOptions) -> Meters:
    if not _DRIVER.exists():
        return Meters()
    try:
        from zeus.device.exception import ZeusBaseError
        from zeus.device.gpu.amd import AMDGPUs, amdsmi_is_available
    except ImportError:
        how = f"install it: {install_command('measure')}"
        return Meters(missing=(f"gpu: an AMD driver is loaded, but not the package zeus; {how}",))
    if not amdsmi_is_available():
        how = "install ROCm's library amd-smi, and set ROCM_PATH if it is installed elsewhere"
        return Meters(
            missing=(f"gpu: an AMD driver is loaded, but amd-smi does not answer; {how}",)
        )
    try:
        gpus = AMDGPUs().gpus
    except ZeusBaseError as error:
        return Meters(missing=(f"gpu: the AMD driver does not answer ({error})",))
    named = [
        gpu for gpu in gpus if options.devices is None or str(gpu.gpu_index) in options.devices
    ]
    return Meters((AmdMeter(named, failure=ZeusBaseError),))

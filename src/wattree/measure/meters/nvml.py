"""NVIDIA devices through NVML: the energy counter, never an average of power readings.

The counter is in millijoules since the driver was loaded and exists from Volta on; its updates
are some 100 ms apart. On older devices only a power can be read, which is integrated and said so.
Instances of a divided device (MIG) have no meter of their own: the device has.

References:
    NVIDIA, "NVML API Reference", `nvmlDeviceGetTotalEnergyConsumption`,
    `nvmlDeviceGetPowerUsage`, `nvmlDeviceGetUtilizationRates`.
    Yang, Adamek, Armour, "Part-time Power Measurements: nvidia-smi's Lack of Attention",
    arXiv 2312.02741: power readings of some devices see a quarter of the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattree.errors import MeterError, install_command
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading

#: The driver makes this folder where it is loaded, with or without its library.
_DRIVER = Path("/proc/driver/nvidia")
_NOT_COUNTED = "an integral of power readings: this device has no energy counter (before Volta)"


class NvmlMeter:
    """Energy and utilization of NVIDIA devices.

    Args:
        nvml: The module `pynvml` (package nvidia-ml-py), or what behaves like it.
        devices: Indices or UUIDs of the devices to read; None for all.

    Attributes:
        missing: Devices without counter and power, which nothing can read.

    Raises:
        MeterError: The driver does not answer, or has no such device.
    """

    kind = "nvml"

    def __init__(
        self,
        nvml: Any,
        *,
        devices: Sequence[str] | None = None,
    ) -> None:
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            every = [_Device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            raise MeterError(f"the NVIDIA driver does not answer ({error})") from error
        asked = every if devices is None else [_named(every, name) for name in devices]
        self._devices = [device for device in asked if not device.fault]
        self.missing = tuple(f"gpu{each.index}: {each.fault}" for each in asked if each.fault)

    def domains(self) -> tuple[Domain, ...]:
        """Return an energy and a utilization domain for each device."""
        return tuple(domain for device in self._devices for domain in device.domains())

    def read(self) -> Sequence[Reading]:
        """Return the counter and utilization of every device; failing devices are left out."""
        readings = []
        failures = []
        for device in self._devices:
            try:
                value = device.value()
                readings.append(Reading(f"gpu{device.index}", time.monotonic(), value))
                busy = device.busy()
            except self._nvml.NVMLError as error:
                failures.append(f"gpu{device.index}: {error}")
                continue
            readings.append(Reading(f"accelerator{device.index}", time.monotonic(), busy))
        if failures and not readings:
            raise MeterError("; ".join(failures))
        return readings


class _Device:
    """One physical device."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self.index = nvml, index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
        self._title = _text(nvml.nvmlDeviceGetName(self._handle))
        self.fault = ""
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            self._counts = True
        except nvml.NVMLError:
            self._counts = False
            try:
                nvml.nvmlDeviceGetPowerUsage(self._handle)
            except nvml.NVMLError as error:
                self.fault = f"{self._title} reports neither energy nor power ({error})"

    def domains(self) -> tuple[Domain, Domain]:
        energy = Domain(
            name=f"gpu{self.index}",
            device=self.uuid,
            quantity=Quantity.ENERGY if self._counts else Quantity.POWER,
            title=self._title,
            rated_w=self._limit_w(),
            note="" if self._counts else _NOT_COUNTED,
        )
        busy = Domain(name=f"accelerator{self.index}", device=self.uuid, quantity=Quantity.SHARE)
        return energy, busy

    def _limit_w(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle)) / 1e3
        except self._nvml.NVMLError:
            return None

    def value(self) -> float:
        """Return the counter [J], or the power [W] if there is none; NVML counts in thousandths."""
        if self._counts:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3

    def busy(self) -> float:
        """Return the fraction of time in which a kernel ran. NVML counts in percent."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 1e2


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found


def _named(every: Sequence[_Device], name: str) -> _Device:
    # The number first: the UUID of another device may begin with the same digit.
    for device in every:
        if name == str(device.index):
            return device
    for device in every:
        if device.uuid.removeprefix("GPU-").startswith(name.removeprefix("GPU-")):
            return device
    known = ", ".join(f"{device.index} ({device.uuid})" for device in every)
    raise MeterError(f"no NVIDIA device is called '{name}'; there are: {known or 'none'}")


@METERS.register("nvml")
def _probe(options: MeterOptions) -> Meters:
    if not _DRIVER.exists():
        return Meters()
    try:
        import pynvml
    except ImportError:
        how = f"install its library with: {install_command('measure')}"
        return Meters(missing=(f"gpu: an NVIDIA driver is loaded, but not its library; {how}",))
    try:
        meter = NvmlMeter(pynvml, devices=options.devices)
        return Meters((meter,) if meter.domains() else (), meter.missing)
    except MeterError as error:
        if options.devices is not None and "is called" in str(error):
            raise
        return Meters(missing=(f"gpu: {error}",))

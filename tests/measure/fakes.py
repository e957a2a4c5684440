"""What stands in for devices and clocks in the tests of meters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import Domain, Quantity, Reading


class Clock:
    """A clock that goes where a test sets it."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the time. [s]"""
        return self.now_s


class Scripted:
    """A meter that says what a test tells it, in turn; an error is raised."""

    kind = "scripted"

    def __init__(
        self,
        clock: Clock,
        values: Mapping[str, Sequence[float | None]],
        *,
        domains: Sequence[Domain] | None = None,
        fails: range = range(0),
    ) -> None:
        self._clock, self._values, self._turn, self._fails = clock, values, 0, fails
        self._domains = tuple(domains or [counter(name) for name in values])

    def domains(self) -> tuple[Domain, ...]:
        """Return the domains given."""
        return self._domains

    def read(self) -> Sequence[Reading]:
        """Return the next value of each domain; None is left out."""
        turn, self._turn = self._turn, self._turn + 1
        if turn in self._fails:
            raise MeterError("the driver went away")
        found = {name: values[min(turn, len(values) - 1)] for name, values in self._values.items()}
        return [Reading(n, self._clock(), v) for n, v in found.items() if v is not None]


def counter(name: str, *, device: str = "", wraps_j: float | None = None) -> Domain:
    """Return the domain of a counter."""
    return Domain(
        name=name, device=device or name, quantity=Quantity.ENERGY, wraps_j=wraps_j, most_w=1000.0
    )


def power(name: str) -> Domain:
    """Return the domain of a power."""
    return Domain(name=name, device=name, quantity=Quantity.POWER)


class NvmlError(Exception):
    """What the fake of NVML raises."""


class FakeNvml:
    """The part of `pynvml` that the meter uses, for devices with given counters."""

    NVMLError = NvmlError

    def __init__(self, counters_mj: Sequence[int | None], *, lost: bool = False) -> None:
        self.counters_mj, self.lost = list(counters_mj), lost
        self.power_mw = 70_000
        self.uuids = [f"GPU-{number}abc" for number in range(len(self.counters_mj))]
        self.powerless: set[int] = set()

    def nvmlInit(self) -> None:  # noqa: N802 - as the library has it
        """Do nothing."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return the number of devices."""
        return len(self.counters_mj)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return what stands for a device."""
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        """Return a name that is the same in every process; older libraries return bytes."""
        return self.uuids[handle].encode()

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        """Return what people call it."""
        return f"Card {handle}"

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:  # noqa: N802
        """Return the rated power. [mW]"""
        return 300_000 + handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        """Return the counter [mJ]; older devices have none."""
        found = self.counters_mj[handle]
        if found is None or self.lost:
            raise NvmlError("Not Supported" if found is None else "GPU is lost")
        return found

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        """Return the power; some cards for screens tell none. [mW]"""
        if handle in self.powerless:
            raise NvmlError("Not Supported")
        return self.power_mw

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> object:  # noqa: N802
        """Return how busy it is. [%]"""
        del handle
        return type("Rates", (), {"gpu": 40})()


def powercap_zone(folder: Path, name: str, *, energy_uj: int = 0, range_uj: int = 1000) -> Path:
    """Make a folder as the kernel makes it for a counter."""
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return folder

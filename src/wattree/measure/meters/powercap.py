"""Processors and memory through the Linux kernel's power-capping files (RAPL, Intel and AMD).

A counter in microjoules for each package, and for its memory where the processor has one; it
starts again from 0 at `max_energy_range_uj`. Packages contain their cores (`core`, `uncore`),
so those are not read in addition; nor is `psys`, which contains the packages.

References:
    Linux kernel documentation, "Power Capping Framework". Since Linux 5.10 only root may read the
    counters (CVE-2020-8694).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading

_ROOT = Path("/sys/class/powercap")
#: Intel, "Software Developer's Manual", volume 3B, "Package RAPL Domain": about a millisecond.
_UPDATES_EVERY_S = 1e-3


@dataclass(frozen=True, slots=True)
class _Zone:
    """One counter: a folder of the kernel."""

    name: str
    folder: Path
    wraps_j: float


class PowercapMeter:
    """Energy of packages and memory.

    Attributes:
        missing: Counters that are there and may not be read, and those that are not there.
    """

    kind = "rapl"

    def __init__(self, root: Path = _ROOT) -> None:
        self._zones: list[_Zone] = []
        missing: list[str] = []
        packages = [zone for zone in _zones(root) if _label(zone).startswith("package")]
        for number, package in enumerate(packages):
            self._take(f"cpu{number}", package, missing)
            memory = [zone for zone in _zones(package) if _label(zone) == "dram"]
            if memory:
                self._take(f"dram{number}", memory[0], missing)
            else:
                missing.append(f"dram{number}: this processor has no counter of its memory")
        if not packages:
            missing.append(
                f"cpu0: the kernel shows no counter in {root}; on the machine itself load "
                "intel_rapl_msr (virtual machines and containers often hide it)"
            )
            missing.append("dram0: as cpu0")
        self.missing = tuple(missing)

    def _take(self, name: str, folder: Path, missing: list[str]) -> None:
        try:
            _counter_j(folder)
            wraps_j = float((folder / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6
        except PermissionError:
            missing.append(
                f"{name}: {folder / 'energy_uj'} may be read by root alone (since Linux 5.10); "
                f"run as root, or once: sudo chmod a+r {folder / 'energy_uj'}"
            )
        except (OSError, ValueError) as error:
            missing.append(f"{name}: {folder} cannot be read ({error})")
        else:
            self._zones.append(_Zone(name, folder, wraps_j))

    def domains(self) -> tuple[Domain, ...]:
        """Return one energy domain per readable package and package memory."""
        return tuple(
            Domain(
                name=zone.name,
                device=str(zone.folder),
                quantity=Quantity.ENERGY,
                wraps_j=zone.wraps_j,
                rated_w=_rated_w(zone.folder),
                updates_every_s=_UPDATES_EVERY_S,
            )
            for zone in self._zones
        )

    def read(self) -> Sequence[Reading]:
        """Return all counters; failing ones are left out."""
        readings, failures = [], []
        for zone in self._zones:
            try:
                readings.append(Reading(zone.name, time.monotonic(), _counter_j(zone.folder)))
            except (OSError, ValueError) as error:
                failures.append(f"{zone.name}: {error}")
        if failures and not readings:
            raise MeterError("; ".join(failures))
        return readings


def _zones(folder: Path) -> list[Path]:
    """Return the zones in a folder, in the order of their numbers."""
    try:
        # The flat names, `intel-rapl:0`; `intel-rapl-mmio:0` is the same counter by another way.
        found = [zone for zone in folder.glob("intel-rapl:*") if _label(zone)]
    except OSError:
        return []
    depth = folder.name.count(":") + 1
    inside = [zone for zone in found if zone.name.count(":") == depth]
    return sorted(inside, key=lambda zone: int(zone.name.rpartition(":")[2]))


def _label(zone: Path) -> str:
    try:
        return (zone / "name").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _counter_j(folder: Path) -> float:
    return float((folder / "energy_uj").read_text(encoding="ascii")) / 1e6


def _rated_w(folder: Path) -> float | None:
    try:
        found = float((folder / "constraint_0_max_power_uw").read_text(encoding="ascii")) / 1e6
    except (OSError, ValueError):
        return None
    return found if found > 0 else None


@METERS.register("rapl")
def _probe(options: MeterOptions) -> Meters:
    del options
    if not Path("/proc").exists():  # no Linux
        return Meters()
    meter = PowercapMeter()
    return Meters((meter,) if meter.domains() else (), meter.missing)

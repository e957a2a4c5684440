"""Apple's processors through zeus: processor, graphics, neural engine and memory counters."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import Any

from wattree.errors import MeterError, install_command
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading

#: Domain → what zeus calls it; all in millijoules.
_PARTS = {"cpu0": "cpu_total_mj", "gpu0": "gpu_mj", "ane0": "ane_mj", "dram0": "dram_mj"}


class AppleMeter:
    """Energy of the parts of one chip.

    Args:
        chip: As zeus has it, with `get_total_energy_consumption`.
    """

    kind = "apple"

    def __init__(self, chip: Any) -> None:
        self._chip = chip
        found = chip.get_total_energy_consumption()
        self._parts = {name: key for name, key in _PARTS.items() if getattr(found, key) is not None}

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that this chip does not count."""
        return tuple(
            f"{name}: this chip has no counter of it" for name in _PARTS if name not in self._parts
        )

    def domains(self) -> tuple[Domain, ...]:
        """Return one energy domain for each counted part of the chip."""
        return tuple(
            Domain(name=name, device=f"apple:{key}", quantity=Quantity.ENERGY)
            for name, key in self._parts.items()
        )

    def read(self) -> Sequence[Reading]:
        """Return the counters of all parts."""
        try:
            found = self._chip.get_total_energy_consumption()
        except RuntimeError as error:  # what the library raises where the chip does not answer
            raise MeterError(f"the chip's counters do not answer ({error})") from error
        at_s = time.monotonic()
        return [
            Reading(name, at_s, float(getattr(found, key)) / 1e3)
            for name, key in self._parts.items()
        ]


@METERS.register("apple")
def _probe(options: MeterOptions) -> Meters:
    del options
    if platform.system() != "Darwin":
        return Meters()
    try:
        from zeus.device.soc.apple import AppleSilicon, apple_silicon_is_available
    except ImportError:
        return Meters(missing=(f"cpu0: needs the package zeus: {install_command('measure')}",))
    if not apple_silicon_is_available():
        how = "pip install zeus-apple-silicon, on a machine with an Apple processor"
        return Meters(missing=(f"cpu0: its counters need a package: {how}",))
    meter = AppleMeter(AppleSilicon())
    return Meters((meter,), meter.missing)

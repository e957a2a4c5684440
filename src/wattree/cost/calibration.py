"""Constants of the cost models: named, with units and the evidence they rest on.

Names are dotted paths. `device.<name>.…` belongs to one device type, `architecture.<name>.…` to
all devices of one, `family.<name>.…` to one software family, `pooled.…` stands in for devices and
families without their own, `general.…` holds for all. A name without an entry falls back to its
pooled one, and the evidence says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wattree.errors import CostError
from wattree.hardware import Device

#: Constants that only devices have on which `wattree profile` timed things; `cost.rates` says what
#: is done without them.
PROFILED_ITEMS = (
    "alpha_reduce_s",
    "cached_bandwidth",
    "cached_bytes",
    "dispatch_s",
    "exchange_s",
    "exchange_s_per_byte",
    "fresh_s_per_byte",
    "product_aliased",
    "product_bandwidth",
    "product_ramp",
    "product_row_ramp",
    "slice_rate",
    "update_bandwidth.adamw",
    "update_bandwidth.momentum",
    "update_bandwidth.sgd",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant.

    Attributes:
        value: In SI units, as the name says.
        evidence: `measured` (read off a measurement), `fitted` (to the measured rows) or
            `pooled` (mean of other devices' fits).
        source: Measurement or fit it comes from.
        spread: Standard deviation of its logarithm, 0 where it was not fitted.
    """

    value: float
    evidence: str
    source: str
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All constants by name.

    Attributes:
        constants: Name → constant.
        source: Where they were read from.
        left_out: Quantity → source → mean absolute error on that source's measured rows when the
            fit never saw them.
    """

    constants: Mapping[str, Constant]
    source: str
    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def device(self, device: Device, item: str) -> float:
        """Return constant `item` of a device type, of its architecture or pooled if it has none."""
        return self.constants[self._name(*device_names(device, item))].value

    def own(self, device: Device, item: str, default: float) -> float:
        """Return a constant that only devices (or architectures) profiled for it have."""
        for name in device_names(device, item)[:2]:
            if name in self.constants:
                return self.constants[name].value
        return default

    def family(self, family: str, item: str) -> float:
        """Return constant `item` of a software family, pooled if it has none of its own."""
        return self.constants[self._name(f"family.{family}.{item}", f"pooled.{item}")].value

    def general(self, item: str) -> float:
        """Return a constant that holds for all."""
        return self.constants[self._name(f"general.{item}")].value

    def evidence(self, *names: str) -> str:
        """Return the evidence of the first of `names` that exists."""
        for name in names:
            if name in self.constants:
                shared = name.startswith(("pooled.", "architecture."))
                return "pooled" if shared else self.constants[name].evidence
        return "datasheet"

    def replaced(self, values: Mapping[str, float]) -> Calibration:
        """Return a copy with other values for some constants."""
        changed = {
            name: replace(self.constants[name], value=value) for name, value in values.items()
        }
        return replace(self, constants={**self.constants, **changed})

    def _name(self, *names: str) -> str:
        for name in names:
            if name in self.constants:
                return name
        raise CostError(f"{self.source}: no constant {' or '.join(names)}")


def device_names(device: Device, item: str) -> tuple[str, str, str]:
    """Return the names under which a device's constant is looked up, in order."""
    return (
        f"device.{device.name}.{item}",
        f"architecture.{device.architecture}.{item}",
        f"pooled.{item}",
    )

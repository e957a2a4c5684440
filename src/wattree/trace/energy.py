"""Energy of a step by stage, class of work and component. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Components, in the order of reports. A host whose node file names its parts has these parts;
#: another has idle power and the power that training adds at any load. Then the power of loading,
#: and the shares of the node's power: fans, and the loss of power supplies.
COMPONENTS = (
    "device_static",
    "device_dynamic",
    "host_processors",
    "host_memory",
    "host_adapters",
    "host_rest",
    "host_idle",
    "host_training",
    "host_loading",
    "storage",
    "fans",
    "conversion",
    "switch",
    "facility",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyEntry:
    """One entry of the ledger: energy of one component for one class of work of one stage.

    Attributes:
        stage: One of MC²'s three.
        operator_class: Class of work.
        component: One of `COMPONENTS`.
        energy_j: Energy, static and dynamic. [J]
    """

    stage: str
    operator_class: str
    component: str
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnergy:
    """Energy of equal devices, with their parts of node, switches and facility.

    Attributes:
        name: Rank class as in the trace, or another name of the devices.
        device: Their type.
        devices: Number of devices.
        energy_j: Energy of all of them. [J]
    """

    name: str
    device: str
    devices: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingUse:
    """Energy cost of waiting devices.

    Attributes:
        time_s: Waiting time per step, average over ranks. [s]
        energy_j: Energy of waiting ranks, idle and spinning, with node and facility. [J]
        cost_usd: Rent of the time and price of the energy; None if no price is known.
        carbon_gco2e: Carbon of the energy; None if no grid intensity is known.
    """

    time_s: float
    energy_j: float
    cost_usd: float | None = None
    carbon_gco2e: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOverTime:
    """Power in equal parts of a step, before PUE.

    Attributes:
        width_s: Length of one part. [s]
        by_component: Component of `COMPONENTS` → power in each part. [W]
    """

    width_s: float
    by_component: Mapping[str, tuple[float, ...]]

    @property
    def total_w(self) -> tuple[float, ...]:
        """Power of all components. [W]"""
        return tuple(map(sum, zip(*self.by_component.values(), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """Energy of one step of the whole cluster, including node overheads and PUE. [J]

    Attributes:
        total: Total energy.
        by_stage: MC²'s stages → energy; adds up to the total, as do all others except `waiting`.
        static: Energy that does not depend on work: idle devices, hosts, switches.
        dynamic: The rest.
        by_class: Class of work → energy.
        by_component: Component of `COMPONENTS` → energy.
        by_device: The devices of each rank class, or of each pool if there are many classes.
        ledger: Every (stage, class, component) with energy.
        waiting: Cause of waiting → its cost; already in the total.
        unsplit_hosts: Nodes whose host is one component, because their file names no parts of it.
    """

    total: float
    by_stage: Mapping[str, float]
    static: float
    dynamic: float
    by_class: Mapping[str, float] = field(default_factory=dict)
    by_component: Mapping[str, float] = field(default_factory=dict)
    by_device: tuple[DeviceEnergy, ...] = ()
    ledger: tuple[EnergyEntry, ...] = ()
    waiting: Mapping[str, WaitingUse] = field(default_factory=dict)
    unsplit_hosts: tuple[str, ...] = ()

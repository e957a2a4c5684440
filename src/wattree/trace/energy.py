"""Energy of a step by stage, class of work and component. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: What draws energy, in the order of reports. A host whose node tells it apart has its parts;
#: another what it draws at rest, and what training adds however much is loaded. Then what loading
#: adds, and what follows all of the node's power: fans, and the loss of power supplies.
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
    """One entry of the ledger: what one component drew for one class of work of one stage.

    Attributes:
        stage: One of MC²'s three.
        operator_class: Class of work.
        component: One of `COMPONENTS`.
        energy_j: What it drew, static and dynamic. [J]
    """

    stage: str
    operator_class: str
    component: str
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnergy:
    """Energy of equal devices, with their parts of node, switches and facility.

    Attributes:
        name: Rank class as in the trace, or what else the devices are.
        device: Their type.
        devices: How many.
        energy_j: Of all of them. [J]
    """

    name: str
    device: str
    devices: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingUse:
    """Energy cost of waiting devices.

    Attributes:
        time_s: In a step, of a rank on average. [s]
        energy_j: Of waiting ranks, at rest and spinning, with node and facility. [J]
        cost_usd: Rent of the time and price of the energy; None where no price is known.
        carbon_gco2e: Of the energy; None where no grid intensity is known.
    """

    time_s: float
    energy_j: float
    cost_usd: float | None = None
    carbon_gco2e: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOverTime:
    """Power in equal parts of a step, before PUE.

    Attributes:
        width_s: Of one part. [s]
        by_component: One of `COMPONENTS` → power in each part. [W]
    """

    width_s: float
    by_component: Mapping[str, tuple[float, ...]]

    @property
    def total_w(self) -> tuple[float, ...]:
        """Power of all components. [W]"""
        return tuple(map(sum, zip(*self.by_component.values(), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """Energy of one step of the whole cluster, node overheads and PUE included. [J]

    Attributes:
        total: All of it.
        by_stage: MC²'s stages → energy; adds up to the total, as all that follows but `waiting`.
        static: What flows whatever runs: devices at rest, hosts, switches.
        dynamic: The rest.
        by_class: Class of work → energy.
        by_component: One of `COMPONENTS` → energy.
        by_device: The devices of each rank class; of each pool where there are many classes.
        ledger: Every (stage, class, component) that drew any.
        waiting: Why ranks wait → what it costs; already in the total.
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

"""Build the energy ledger of a step from rank activity and static power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.graph import OperatorClass, StageLabel
from wattree.hardware import Cluster, Host, Pool, port_share
from wattree.sim.drawn import BINS, Occupancy
from wattree.sim.sweep import CLASSES, Wait
from wattree.trace import COMPONENTS, DeviceEnergy, EnergyEntry, EnergyUse, WaitingUse

STAGES = tuple(stage.name.lower() for stage in StageLabel)
_CLASS_NAMES = tuple(found.name.lower() for found in OperatorClass)
_WAITS = {
    Wait.BUBBLE: "bubble",
    Wait.STRAGGLER: "straggler",
    Wait.COMMUNICATION: "communication",
    Wait.INPUT: "input_starvation",
}
_AT = {name: index for index, name in enumerate(COMPONENTS)}
_CELLS = len(StageLabel) * CLASSES
_IDLE_CELL = int(StageLabel.COMPUTING) * CLASSES + int(OperatorClass.WAITING)
#: Most rank classes whose devices are listed one by one; with more, devices are listed by pool.
_MOST_CLASSES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Power inputs of the job's devices and nodes.

    Attributes:
        ranks, pools: Of each rank class, `(C,)`.
        devices: That the job pays for, by pool.
        step_s: The step. [s]
        occupancy: What one rank of each class does.
        loading_j: Loading of all ranks of each class by component, `(C, cells, 2)`: host, storage.
            None where no one loads. [J]
        loading_w: The same over time, `(BINS, 2)`. [W]
    """

    ranks: Integers
    pools: Integers
    names: Sequence[str]
    devices: Floats
    step_s: float
    occupancy: Occupancy
    loading_j: Floats | None
    loading_w: Floats | None


def standing_of(cluster: Cluster, pool: Pool, *, networked: bool) -> Mapping[str, float]:
    """Return the static power of a node of a pool in training, by component. [W]

    Args:
        networked: Whether the job has more nodes than cables alone join, and so needs switches.
    """
    node = pool.node
    device_w, host = node.devices * node.device.idle_w, _host_w(node.host)
    fans_w = node.host.fans * (device_w + node.host.busy_w)
    return {
        "device_static": device_w,
        **host,
        "fans": fans_w,
        "conversion": (node.host.conversion - 1.0) * (device_w + node.host.busy_w + fans_w),
        "switch": switch_w(cluster, pool) if networked else 0.0,
    }


def switch_w(cluster: Cluster, pool: Pool) -> float:
    """Return the power of the switch ports of a node of a pool. [W]"""
    ports = pool.node.nics * port_share(pool.node, cluster.fabric)
    return ports * cluster.fabric.switch_w_per_nic


def _host_w(host: Host) -> dict[str, float]:
    """Return the power of a host in training, by parts where its node states them. [W]"""
    if not host.parts:
        return {"host_idle": host.idle_w, "host_training": host.busy_w - host.idle_w}
    parts = {f"host_{name}": part.busy_w for name, part in host.parts.items()}
    return parts | {"host_rest": max(host.rest.busy_w, 0.0)}


def account(cluster: Cluster, drawn: Drawn, standing: Sequence[Mapping[str, float]]) -> Account:
    """Return the ledger.

    Args:
        standing: What a node of each pool draws whatever runs, by component. [W]
    """
    watts = np.zeros((len(cluster.pools), len(COMPONENTS)))
    for number, (pool, parts) in enumerate(zip(cluster.pools, standing, strict=True)):
        for name, value in parts.items():
            watts[number, _AT[name]] = value / pool.node.devices
    return Account(cluster, drawn, watts)


class Account:
    """Energy of a step, component by component; every sum of it is taken from one array.

    Attributes:
        energy_j: `(cells, components)`, facility included. [J]
    """

    def __init__(self, cluster: Cluster, drawn: Drawn, watts: Floats) -> None:
        self._cluster, self._drawn, self._watts = cluster, drawn, watts
        self._pue = cluster.site.pue
        pools = len(cluster.pools)
        # Static energy goes where the ranks of the pool spend their time.
        shares = self._shares(pools)
        standing_j = (drawn.devices * drawn.step_s)[:, None] * watts
        self.energy_j = shares.T @ standing_j
        dynamic = drawn.ranks @ drawn.occupancy.dynamic_j
        self.energy_j[:, _AT["device_dynamic"]] += dynamic
        if drawn.loading_j is not None:
            loading = drawn.loading_j.sum(axis=0)
            self.energy_j[:, _AT["host_loading"]] += loading[:, 0]
            self.energy_j[:, _AT["storage"]] += loading[:, 1]
        hosts = [pool.node.host for pool in cluster.pools]
        self._behind = np.array([host.behind for host in hosts])
        fans = np.array([host.fans for host in hosts])
        #: What follows the power of a node, over what its devices and host draw, by pool.
        self._following = {"fans": fans, "conversion": self._behind - 1.0 - fans}
        if (self._behind > 1.0).any():
            own_j = self._above_rest_j(pools)
            for name, over in self._following.items():
                self.energy_j[:, _AT[name]] += over @ own_j
        self.energy_j[:, _AT["facility"]] = (self._pue - 1.0) * self.energy_j.sum(axis=1)

    def _above_rest_j(self, pools: int) -> Floats:
        """Return what devices and hosts draw above rest by pool and cell, `(pools, cells)`. [J]"""
        drawn = self._drawn
        own = drawn.ranks[:, None] * drawn.occupancy.dynamic_j
        if drawn.loading_j is not None:
            own = own + drawn.loading_j.sum(axis=2)
        found = np.zeros((pools, _CELLS))
        np.add.at(found, drawn.pools, own)
        return found

    def _shares(self, pools: int) -> Floats:
        """Return the share of the time of each pool's ranks by cell, `(pools, cells)`."""
        drawn = self._drawn
        time = np.zeros((pools, _CELLS))
        np.add.at(time, drawn.pools, drawn.ranks[:, None] * drawn.occupancy.exposed_s)
        time[time.sum(axis=1) <= 0] = time.sum(axis=0)  # nodes without ranks wait for the others'
        whole = time.sum(axis=1, keepdims=True)
        time[whole[:, 0] <= 0, _IDLE_CELL] = 1.0
        return np.asarray(time / np.where(whole > 0, whole, 1.0))

    @property
    def use(self) -> EnergyUse:
        """The figures of the result."""
        cells = self.energy_j.reshape(len(StageLabel), CLASSES, len(COMPONENTS))
        static = self._drawn.devices @ self._watts.sum(axis=1) * self._drawn.step_s * self._pue
        total = float(cells.sum())
        return EnergyUse(
            total=total,
            by_stage=_named(STAGES, cells.sum(axis=(1, 2)), keep=True),
            static=float(static),
            dynamic=total - float(static),
            by_class=_named(_CLASS_NAMES, cells.sum(axis=(0, 2))),
            by_component=_named(COMPONENTS, cells.sum(axis=(0, 1))),
            by_device=self._by_device(),
            ledger=tuple(
                EnergyEntry(
                    stage=STAGES[stage],
                    operator_class=_CLASS_NAMES[number],
                    component=COMPONENTS[component],
                    energy_j=float(cells[stage, number, component]),
                )
                for stage, number, component in zip(*np.nonzero(cells), strict=True)
            ),
            waiting=self._waiting(),
            unsplit_hosts=tuple(
                dict.fromkeys(
                    pool.node.name
                    for pool, devices in zip(self._cluster.pools, self._drawn.devices, strict=True)
                    if devices and not pool.node.host.parts
                )
            ),
        )

    @property
    def by_pool(self) -> Floats:
        """Energy of the devices and nodes of each pool. [J]"""
        drawn = self._drawn
        own = np.bincount(drawn.pools, weights=self._own_j(), minlength=len(self._cluster.pools))
        standing = drawn.devices * self._watts.sum(axis=1) * drawn.step_s
        return np.asarray((own + standing) * self._pue)

    def _own_j(self) -> Floats:
        """Return what the ranks of each class draw beyond what stands, before PUE. [J]"""
        drawn = self._drawn
        own = drawn.ranks * drawn.occupancy.dynamic_j.sum(axis=1)
        if drawn.loading_j is not None:
            own = own + drawn.loading_j.sum((1, 2))
        return np.asarray(own * self._behind[drawn.pools])

    def _by_device(self) -> tuple[DeviceEnergy, ...]:
        drawn, pools = self._drawn, self._cluster.pools
        at_rest = self._watts.sum(axis=1) * drawn.step_s
        of_class = (self._own_j() + drawn.ranks * at_rest[drawn.pools]) * self._pue
        ranks = np.bincount(drawn.pools, weights=drawn.ranks, minlength=len(pools))
        found = []
        if len(drawn.names) <= _MOST_CLASSES:
            rows = zip(drawn.names, drawn.pools, drawn.ranks, of_class, strict=True)
        else:
            whole = np.bincount(drawn.pools, weights=of_class, minlength=len(pools))
            names = [f"all {int(count):,} ranks" for count in ranks]
            rows = zip(names, np.arange(len(pools)), ranks, whole, strict=True)
        for name, pool, count, energy_j in rows:
            if count:
                found.append(_devices(name, pools[pool], float(count), float(energy_j)))
        for pool, idle in enumerate(drawn.devices - ranks):
            if idle > 0.5e-6:  # parts of a node that several jobs share are whole devices
                spent_j = float(idle * at_rest[pool] * self._pue)
                found.append(_devices("without a rank", pools[pool], float(idle), spent_j))
        return tuple(found)

    def _waiting(self) -> dict[str, WaitingUse]:
        drawn, seen = self._drawn, self._drawn.occupancy
        at_rest_w = self._watts.sum(axis=1)[drawn.pools]
        spent = seen.waiting_j * self._behind[drawn.pools][:, None]
        energy = (seen.waiting_s * at_rest_w[:, None] + spent) * self._pue
        ranks = max(float(drawn.ranks.sum()), 1.0)
        time_s, energy_j = drawn.ranks @ seen.waiting_s / ranks, drawn.ranks @ energy
        return {
            name: WaitingUse(time_s=float(time_s[wait]), energy_j=float(energy_j[wait]))
            for wait, name in _WAITS.items()
        }

    def power_w(self) -> dict[str, Floats]:
        """Return power over the step by component, facility left out, `(BINS,)` each. [W]"""
        drawn, width_s = self._drawn, self._drawn.step_s / BINS
        found = {
            name: np.full(BINS, float(drawn.devices @ self._watts[:, at]))
            for name, at in _AT.items()
            if self._watts[:, at].any()
        }
        found["device_dynamic"] = drawn.ranks @ drawn.occupancy.power_j / width_s
        if drawn.loading_w is not None:
            found["host_loading"] = drawn.loading_w[:, 0]
            found["storage"] = drawn.loading_w[:, 1]
        for name, over in self._following.items():
            if over.any():
                found[name] = found.get(name, np.zeros(BINS)) + self._following_w(over)
        return {name: found[name] for name in COMPONENTS if name in found}

    def _following_w(self, over: Floats) -> Floats:
        """Return the power that scales with power above rest over the step, `(BINS,)`. [W]

        Args:
            over: What follows a watt of each pool. [W/W]
        """
        drawn = self._drawn
        of_class = over[drawn.pools]
        found = (drawn.ranks * of_class) @ drawn.occupancy.power_j * (BINS / drawn.step_s)
        if drawn.loading_j is not None and drawn.loading_w is not None:
            # Loading over time is known for all pools together: per pool, it is their average.
            loaded_j = drawn.loading_j.sum(axis=(1, 2))
            whole_j = float(loaded_j.sum())
            share = float(loaded_j @ of_class) / whole_j if whole_j > 0 else 0.0
            found = found + drawn.loading_w.sum(axis=1) * share
        return np.asarray(found)

    def device_w(self) -> Floats:
        """Return the power of one device of each rank class over the step, `(C, BINS)`. [W]"""
        rest = self._watts[:, _AT["device_static"]][self._drawn.pools]
        seen = self._drawn.occupancy.power_j
        return np.asarray(rest[:, None] + seen * (BINS / self._drawn.step_s))


def _devices(name: str, pool: Pool, count: float, energy_j: float) -> DeviceEnergy:
    return DeviceEnergy(name=name, device=pool.node.device.name, devices=count, energy_j=energy_j)


def _named(names: Sequence[str], values: Floats, *, keep: bool = False) -> dict[str, float]:
    """Return values by name; those that are nothing only if they are to be kept."""
    pairs = zip(names, values.tolist(), strict=True)
    return {name: value for name, value in pairs if keep or value != 0.0}

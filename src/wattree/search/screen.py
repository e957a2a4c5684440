"""Closed-form figures of a whole space, and which strategies meet the constraints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from wattree.accounts.bill import embodied_gco2e_per_s, energy_usd_per_j
from wattree.accounts.goodput import interruptions
from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import Estimates, Shared
from wattree.hardware import Cluster
from wattree.predict import Setting
from wattree.predict.generation_estimate import workload_estimates
from wattree.search.objective import LIMITS
from wattree.search.space import Space, StrategyGroup
from wattree.strategy import AXES, StrategyOptions

#: Strategies estimated at once: bounds memory, and keeps arrays in the processor's caches.
_CHUNK = 20_000

#: Share by which estimates may exceed limits of a run before they are rejected: of 84 strategies of
#: four models the closed form had one 2.3 % above its simulation, the others by less.
LIMIT_ALLOWANCE = 0.05

OUT_OF_MEMORY = "out of memory"
OVER_POWER = "over the power cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits that a strategy must meet.

    Attributes:
        memory_bytes: Memory of one device; None for the capacity of each device. [B]
        power_cap_w: Highest power of the job's nodes, before PUE; None for no cap. [W]
        most: Objective → most of it that a step may have, with its share of what interrupts a
            run. [s, J, USD, gCO2e]
        allowance: Share by which estimates may exceed `most`: for those that are simulated next.
        any_memory: Nothing is rejected for its memory.
        margin: Share of each device's memory that stays free.
        steps: Of the run, so that reasons state what all of it takes; None to state a step's.
    """

    memory_bytes: float | None = None
    power_cap_w: float | None = None
    most: Mapping[str, float] = field(default_factory=dict)
    allowance: float = 0.0
    any_memory: bool = False
    margin: float = 0.0
    steps: float | None = None

    def usable(self, capacity_bytes: float) -> float:
        """Return the usable part of a device's memory. [B]"""
        return (1.0 - self.margin) * capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedSpace:
    """Estimates of every strategy of a space, in its order; shape `(n,)` each.

    Attributes:
        step_time_s, memory_bytes, energy_j: Estimates. [s, B, J]
        average_power_w, peak_power_w: Of the job's nodes, before PUE. [W]
        rent_usd_per_s: Of the nodes that each strategy uses; 1 where no price is known. [USD/s]
        usd_per_j: Price of energy that is paid in addition to rent. [USD/J]
        capacity_bytes: Memory of the device that is the fullest. [B]
        tier_fits: Whether the expanded-memory tier has enough capacity.
        overflows: Whether a device is filled on purpose, because expanded memory holds the rest.
    """

    space: Space
    step_time_s: Floats
    memory_bytes: Floats
    energy_j: Floats
    average_power_w: Floats
    peak_power_w: Floats
    rent_usd_per_s: Floats
    capacity_bytes: Floats
    tier_fits: Flags
    overflows: Flags
    usd_per_j: float = 0.0

    def __len__(self) -> int:
        return len(self.step_time_s)

    def options(self, index: int) -> StrategyOptions:
        """Return one strategy."""
        group, row = self.place(index)
        return group.options(row)

    def place(self, index: int) -> tuple[StrategyGroup, int]:
        """Return the group of a strategy, and its place there."""
        for group in self.space.groups:
            if index < len(group):
                return group, index
            index -= len(group)
        raise IndexError(index)

    def on(self, cluster: Cluster) -> ScreenedSpace:
        """Return the same strategies on a cluster of other prices and of devices of other memory.

        Nothing else may differ, and all nodes must be alike.
        """
        return replace(
            self,
            rent_usd_per_s=_rent(cluster, self.space),
            capacity_bytes=np.full(len(self), cluster.node.device.memory_bytes),
            usd_per_j=energy_usd_per_j(cluster) or 0.0,
        )

    def in_run(self, setting: Setting) -> ScreenedSpace:
        """Return the same steps with their share of what interrupts a run (`accounts.goodput`)."""
        time_s, energy_j = self.step_time_s.copy(), self.energy_j.copy()
        ranks = ranks_of(self.space)
        for count in np.unique(ranks).tolist():
            own = ranks == count
            found = interruptions(setting, setting.job.cluster.pool_nodes(count))
            if found is not None:
                time_s[own], energy_j[own] = found.totals(time_s[own], energy_j[own])
        return replace(self, step_time_s=time_s, energy_j=energy_j)

    def objective(self, name: str, setting: Setting) -> Floats:
        """Return the objective to minimize: s, J, USD or gCO2e per step."""
        cluster = setting.job.cluster
        if name == "time":
            return self.step_time_s
        if name == "cost":
            return self.cost_usd
        if name == "carbon":
            emitted_g = self.energy_j * (cluster.site.carbon_gco2e_per_j or 1.0)
            made_gco2e_per_s = embodied_gco2e_per_s(setting.job)
            if made_gco2e_per_s is not None:
                emitted_g += self.step_time_s * _of_nodes(cluster, self.space, made_gco2e_per_s)
            return emitted_g
        return self.energy_j

    @property
    def cost_usd(self) -> Floats:
        """Return the cost of a step, `(n,)`; its time in seconds if no price is known. [USD]"""
        return self.step_time_s * self.rent_usd_per_s + self.usd_per_j * self.energy_j

    def fits(self, constraints: Constraints) -> Flags:
        """Return which strategies fit in the devices' memory, or in a smaller given one."""
        if constraints.any_memory:
            return np.ones(len(self), dtype=bool)
        most = constraints.memory_bytes
        capacity = self.capacity_bytes if most is None else np.minimum(self.capacity_bytes, most)
        room = np.where(self.overflows, capacity, (1.0 - constraints.margin) * capacity)
        return np.asarray((self.memory_bytes <= room) & self.tier_fits)

    def use_of_limits(self, constraints: Constraints, setting: Setting) -> Floats:
        """Return the largest share of a limit of the run that estimates use; 0 without limits."""
        run = self.in_run(setting) if constraints.most else self
        shares = [run.objective(name, setting) / most for name, most in constraints.most.items()]
        return np.asarray(np.max([np.zeros(len(self)), *shares], axis=0))

    def rejections(self, constraints: Constraints, setting: Setting) -> dict[str, Flags]:
        """Return reason → strategies that it rejects; each strategy has one reason at most."""
        reasons = {OUT_OF_MEMORY: ~self.fits(constraints)}
        if constraints.power_cap_w is not None:
            # No peak is below the average; which peaks are above the cap simulation decides.
            reasons[OVER_POWER] = self.average_power_w > constraints.power_cap_w
        run = self.in_run(setting) if constraints.most else self
        for name, (reason, *_) in LIMITS.items():
            if name in constraints.most:
                most = (1.0 + constraints.allowance) * constraints.most[name]
                reasons[reason] = run.objective(name, setting) > most
        before = np.zeros(len(self), dtype=bool)
        alone = {}
        for reason, broken in reasons.items():
            alone[reason] = broken & ~before
            before |= broken
        return alone


def screen(
    setting: Setting,
    space: Space,
    *,
    progress: Callable[[int], None] | None = None,
    shared: Shared | None = None,
    like: Space | None = None,
) -> ScreenedSpace:
    """Return estimates of every strategy of `space`.

    Args:
        progress: Called with the number of strategies done.
        shared: Kept from call to call for one model, it saves compiling its blocks again.
        like: Blocks have costs for the degrees of this space too, which has them already.
    """
    found = {each.name: np.zeros(len(space)) for each in fields(Estimates)}
    shared, done = shared or Shared(), 0
    for common, degrees, rows in _parts(space, like or space):
        estimates = workload_estimates(setting, common, degrees, shared=shared)
        for name, values in found.items():
            values[rows] = getattr(estimates, name)
        done += len(rows)
        if progress is not None:
            progress(done)
    step_time_s, energy_j = found["step_time_s"], found["energy_j"]
    tier_fits = found["tier_fits"].astype(np.bool_)
    # What overflows is off the device, if there is room for it elsewhere.
    kept = 1.0 - found["spilled"] * tier_fits
    capacity_bytes = _capacities(setting.job.cluster)[found["pool"].astype(np.int64)]
    memory_bytes = kept * found["process_bytes"] * _processes(space)
    memory_bytes = np.where(kept < 1.0, np.minimum(memory_bytes, capacity_bytes), memory_bytes)
    return ScreenedSpace(
        space=space,
        step_time_s=step_time_s,
        memory_bytes=memory_bytes,
        energy_j=energy_j,
        average_power_w=energy_j / setting.job.cluster.site.pue / np.maximum(step_time_s, 1e-12),
        peak_power_w=found["peak_power_w"],
        rent_usd_per_s=_rent(setting.job.cluster, space),
        capacity_bytes=capacity_bytes,
        tier_fits=tier_fits,
        overflows=kept < 1.0,
        usd_per_j=energy_usd_per_j(setting.job.cluster) or 0.0,
    )


def _parts(space: Space, like: Space) -> Iterator[tuple[StrategyOptions, Degrees, Integers]]:
    """Yield options, degrees and places in `space` of strategies to estimate at once.

    Schedules change neither blocks nor their costs, so groups that differ in these alone are one.
    Those that differ in what they store, in either space, are parts of one whole.
    """
    wholes = _wholes(space, like)
    alike: dict[StrategyOptions, list[int]] = {}
    for number, group in enumerate(space.groups):
        alike.setdefault(group.common.changed(schedule="1f1b"), []).append(number)
    ends = np.cumsum([len(group) for group in space.groups])
    #: Parts have degrees in common, and what is cached of these is known by the object.
    known: dict[tuple[object, ...], Degrees] = {}
    for common, numbers in alike.items():
        groups = [space.groups[number] for number in numbers]
        rows = np.concatenate([np.arange(ends[n] - len(space.groups[n]), ends[n]) for n in numbers])
        whole, begins = wholes[_kind(groups[0])]
        inside = np.concatenate([begins[id(g.degrees)] + np.arange(len(g)) for g in groups])
        for first in range(0, len(rows), _CHUNK):
            part = slice(first, first + _CHUNK)
            key = (id(whole), *(id(group.degrees) for group in groups), first)
            if key not in known:
                known[key] = whole.part(inside[part])
            yield common, known[key], rows[part]


def _wholes(space: Space, like: Space) -> dict[Hashable, tuple[Degrees, dict[int, int]]]:
    """Return the degrees of each kind of group in `space`, and where those of a group begin."""
    found: dict[Hashable, dict[int, Degrees]] = {_kind(group): {} for group in space.groups}
    for group in (*like.groups, *space.groups):
        if (kind := _kind(group)) in found:
            found[kind][id(group.degrees)] = group.degrees
    joined: dict[tuple[int, ...], tuple[Degrees, dict[int, int]]] = {}
    for parts in found.values():
        if (key := tuple(parts)) not in joined:
            ends = np.cumsum([len(degrees.micro_batch) for degrees in parts.values()])
            begins = dict(zip(parts, [0, *ends.tolist()], strict=False))
            joined[key] = Degrees.joined(list(parts.values())), begins
    return {kind: joined[tuple(parts)] for kind, parts in found.items()}


def _kind(group: StrategyGroup) -> Hashable:
    """Return the options that decide how blocks are split."""
    return group.common.parallelism, group.common.phantoms


def _processes(space: Space) -> Floats:
    """Return how many processes of each strategy share a device."""
    count = [float(group.common.colocation.processes) for group in space.groups]
    sizes = np.array([len(group) for group in space.groups], dtype=np.int64)
    return np.repeat(np.array(count), sizes)


def _capacities(cluster: Cluster) -> Floats:
    """Return the memory of one device of each pool. [B]"""
    return np.array([pool.node.device.memory_bytes for pool in cluster.pools])


def _rent(cluster: Cluster, space: Space) -> Floats:
    """Return the rent of the nodes that each strategy pays for. [USD/s]"""
    unknown = 1.0 if energy_usd_per_j(cluster) is None else 0.0
    prices = [
        unknown if pool.node.price_usd_per_s is None else pool.node.price_usd_per_s
        for pool in cluster.pools
    ]
    return _of_nodes(cluster, space, prices)


def ranks_of(space: Space) -> Integers:
    """Return the number of ranks of each strategy of a space, `(n,)`."""
    ranks = [np.prod([group.degrees.axes[a] for a in AXES], axis=0) for group in space.groups]
    return np.concatenate([*ranks, []]).astype(np.int64)


def _of_nodes(cluster: Cluster, space: Space, per_node: Sequence[float]) -> Floats:
    """Return the sum of a figure over the nodes that each strategy pays for.

    Args:
        per_node: Of a node of each pool.
    """
    counts, which = np.unique(ranks_of(space), return_inverse=True)
    paid = [cluster.paid_nodes(cluster.pool_nodes(int(count))) for count in counts]
    sums = [sum(n * each for n, each in zip(nodes, per_node, strict=True)) for nodes in paid]
    return np.array(sums, dtype=np.float64)[which]

"""Money and carbon of steps and of whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.arrays import Floats
from wattree.energy.hourly import HOUR_S, starts_within, windows
from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.job import Job
from wattree.trace import EnergyUse, Result, RunBill, RunStep, ScheduleShift, ShiftedStart
from wattree.trace.bill import RUN_FIGURES
from wattree.units import format_time


def energy_usd_per_j(cluster: Cluster, nodes: Sequence[float] | None = None) -> float | None:
    """Return the price of energy that a job pays in addition to rent; None without one. [USD/J]

    Rent has energy in it. So energy is paid where the job says so, and where no node has a rent.

    Args:
        nodes: That it uses, by pool; all if None.
    """
    price, site = cluster.site.energy_price_usd_per_j, cluster.site
    used = [1.0] * len(cluster.pools) if nodes is None else nodes
    rented = any(
        count and pool.node.price_usd_per_s is not None
        for pool, count in zip(cluster.pools, used, strict=True)
    )
    return price if site.bills_energy or not rented else None


def cost_usd(
    cluster: Cluster, nodes: Sequence[float], time_s: float, energy_j: float
) -> float | None:
    """Return the rent of nodes of each pool and the price of energy; None if unknown. [USD]

    Args:
        nodes: That it uses, by pool.
        time_s: How long. [s]
        energy_j: PUE included. [J]
    """
    price = energy_usd_per_j(cluster, nodes)
    total = 0.0 if price is None else price * energy_j
    for pool, used in zip(cluster.pools, nodes, strict=True):
        rent = pool.node.price_usd_per_s
        if used and rent is None and price is None:
            return None
        total += (rent or 0.0) * used * time_s
    return total


def embodied_gco2e_per_s(job: Job) -> tuple[float, ...] | None:
    """Return what making a node of each pool emitted over its lifetime, if the job says. [g/s]"""
    made = job.terms.embodied
    if made is None:
        return None
    return tuple(
        (made.node_gco2e + pool.node.devices * made.device_gco2e) / made.lifetime_s
        for pool in job.cluster.pools
    )


def embodied_gco2e(job: Job, nodes: Sequence[float], time_s: float) -> float | None:
    """Return the part of what making the hardware emitted; None where the job does not say. [g]"""
    rates = embodied_gco2e_per_s(job)
    if rates is None:
        return None
    return time_s * sum(n * rate for n, rate in zip(nodes, rates, strict=True))


def carbon_gco2e(job: Job, nodes: Sequence[float], time_s: float, energy_j: float) -> float | None:
    """Return what energy emits, with the embodied part; None where no intensity is known. [g]

    Args:
        nodes, time_s, energy_j: As for `cost_usd`.
    """
    grid = job.cluster.site.carbon_gco2e(energy_j)
    return None if grid is None else grid + (embodied_gco2e(job, nodes, time_s) or 0.0)


def occupied_nodes(job: Job, ranks: int) -> tuple[float, ...]:
    """Return the nodes of each pool that a job pays for; arguments as of `used_nodes`."""
    return job.cluster.paid_nodes(used_nodes(job, ranks))


def used_nodes(job: Job, ranks: int) -> tuple[float, ...]:
    """Return the nodes of each pool that a job uses; of one that jobs share, its devices' part.

    Args:
        job: The job.
        ranks: Its ranks.
    """
    if job.devices is None:
        return job.cluster.pool_nodes(ranks)
    per_node = job.cluster.node.devices
    others = [device for other in job.neighbours for device in other.job.devices or ()]
    own, every = (
        np.bincount(np.array(devices, np.int64) // per_node, minlength=job.cluster.nodes)
        for devices in (job.devices, [*job.devices, *others])
    )
    touched = own > 0
    return (float((own[touched] / every[touched]).sum()),)


def with_bill(use: EnergyUse, job: Job, nodes: Sequence[float]) -> EnergyUse:
    """Return the energy of a step with what waiting costs and emits.

    A rank that waits is charged its part of the rent and of embodied carbon for that long, and its
    energy.
    """
    waiting = {
        name: replace(
            found,
            cost_usd=cost_usd(job.cluster, nodes, found.time_s, found.energy_j),
            carbon_gco2e=carbon_gco2e(job, nodes, found.time_s, found.energy_j),
        )
        for name, found in use.waiting.items()
    }
    return replace(use, waiting=waiting)


def run_bill(result: Result, steps: int) -> RunBill:
    """Return what a run of so many steps takes (`Job.lasting`)."""
    batch, step = float(round(result.samples_per_s * result.step_time_s)), result.in_run

    def times(value: float | None) -> float | None:
        return None if value is None else steps * value

    per_step = None
    if result.tokens_per_s is not None:
        per_step = float(round(result.tokens_per_s * result.step_time_s))
    return RunBill(
        tokens=times(per_step),
        samples=steps * batch,
        steps=steps,
        time_s=steps * step.time_s,
        energy_j=steps * step.energy_j,
        cost_usd=times(step.cost_usd),
        carbon_gco2e=times(step.carbon_gco2e),
        embodied_gco2e=times(step.embodied_gco2e),
        energy_delay_product_js=steps * step.energy_j * steps * step.time_s,
        interval={
            name: (steps * low, steps * high)
            for name, (low, high) in run_intervals(
                result.interval, result.uninterrupted, step
            ).items()
        },
        goodput=step.goodput,
        failures=steps * step.failures,
        step=result.run_step,
    )


def with_run(result: Result, job: Job) -> Result:
    """Return a result with the figures of its job's whole run, if that is more than a step."""
    steps = job.training.steps
    return result if steps == 1 else replace(result, run=run_bill(result, steps))


def run_intervals(
    intervals: Mapping[str, tuple[float, float]], alone: RunStep, run: RunStep
) -> dict[str, tuple[float, float]]:
    """Return the 80 % intervals of time, energy, cost and carbon of a step in a run.

    Errors of the step and of what interrupts runs are independent, and move all figures alike.

    Args:
        intervals: Quantity → its interval, of the step alone.
        alone: The step alone.
        run: The step in the run.
    """
    found = {}
    for name in RUN_FIGURES.values():
        span = intervals.get("step_time_s" if name == "time_s" else name)
        middle, whole = getattr(alone, name), getattr(run, name)
        if span is not None and middle and whole is not None:
            low, high = (
                whole * math.exp(sign * math.hypot(math.log(end / middle), math.log(bound)))
                for sign, end, bound in zip((-1, 1), span, run.bounds, strict=True)
            )
            found[name] = low, high
    return found


def schedule_shift(job: Job, result: Result, run_s: float) -> ScheduleShift:
    """Return what it would change to start a run of that length at another hour of the series.

    Args:
        result: One step, whose average power the run draws throughout.
        run_s: Its length, above 0. [s]

    Raises:
        JobError: The job has no series, or one that is shorter than the run.
    """
    series = job.terms.series
    if series is None:
        raise JobError(
            job.source, ["energy.series: is missing, expected a CSV file of hours to shift within"]
        )
    if starts_within(series, run_s) < 1:
        raise JobError(
            job.source,
            [
                f"energy.series: {series.name} has {len(series.hours)} hours, which a run of "
                f"{format_time(run_s)} ({run_s / HOUR_S:.4g} h) does not fit into"
            ],
        )
    step = result.in_run
    power_w = step.energy_j / step.time_s
    made = (result.embodied_gco2e or 0.0) / result.step_time_s * run_s
    hourly = (series.carbon_gco2e_per_j, series.price_usd_per_j)
    carbon, cost = (None if each is None else windows(each, run_s, power_w) for each in hourly)

    def start(hour: int) -> ShiftedStart:
        return ShiftedStart(
            start_hour=hour,
            hour=series.hours[hour],
            carbon_gco2e=None if carbon is None else float(carbon[hour]) + made,
            energy_cost_usd=None if cost is None else float(cost[hour]),
        )

    def ends(values: Floats | None) -> tuple[ShiftedStart | None, ShiftedStart | None]:
        if values is None:
            return None, None
        return start(_first(values, values.min())), start(_first(values, values.max()))

    (least_carbon, most_carbon), (least_cost, most_cost) = ends(carbon), ends(cost)
    return ScheduleShift(
        series=series.name,
        hours=len(series.hours),
        run_s=run_s,
        energy_j=power_w * run_s,
        now=start(0),
        least_carbon=least_carbon,
        most_carbon=most_carbon,
        least_cost=least_cost,
        most_cost=most_cost,
        embodied_gco2e=None if result.embodied_gco2e is None else made,
    )


def _first(values: Floats, value: float) -> int:
    """Return where a value first stands; sums of equal hours differ by rounding."""
    close = 1e-9 * float(np.abs(values).max())
    return int(np.argmax(np.abs(values - value) <= close))

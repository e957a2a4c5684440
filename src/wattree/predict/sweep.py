"""Sweep power limits of one job: time, energy and power of each, and the energy optima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattree.hardware import Cluster
from wattree.job import Job
from wattree.job.entered import entering, several, watts
from wattree.job.idle import idle_limits
from wattree.predict.simulation import simulate
from wattree.shown import Shown

#: Usual limits: rated power, then every twentieth of it down to three tenths, as far as the
#: devices draw less at rest by this factor.
_TWENTIETHS = range(20, 5, -1)
_LEAST_OVER_REST = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedStep:
    """One step under one limit.

    Attributes:
        power_limit_w: On every device. [W]
        step_time_s: Its length. [s]
        energy_j: Of the whole job, PUE included. [J]
        average_power_w: Of devices and nodes, before PUE. [W]
        energy_delay_js: Energy times step time. [J s]
        slowdown: Step time over that under the highest limit.
        energy_saved: Share of the energy under the highest limit; negative where it takes more.
    """

    power_limit_w: float
    step_time_s: float
    energy_j: float
    average_power_w: float
    energy_delay_js: float
    slowdown: float
    energy_saved: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PowerSweep(Shown):
    """Steps under falling limits.

    Attributes:
        job: File of the job.
        steps: Steps, by falling limit.
        least_energy_w: Limit with the least energy per step; the highest of equals. [W]
        least_energy_delay_w: Limit with the least energy times time. [W]
        fits: Whether the job fits in memory; limits do not change that.
        warnings: Of limits and job.
    """

    job: str
    steps: tuple[LimitedStep, ...]
    least_energy_w: float
    least_energy_delay_w: float
    fits: bool
    warnings: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the steps."""
        return [asdict(step) for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "job": self.job,
            "power_limits": self.records(),
            "knee": {
                "least_energy_w": self.least_energy_w,
                "least_energy_delay_w": self.least_energy_delay_w,
            },
            "fits": self.fits,
            "warnings": list(self.warnings),
        }


def usual_limits_w(cluster: Cluster) -> tuple[float, ...]:
    """Return the default limits of a sweep, falling from the highest rated power. [W]"""
    devices = [pool.node.device for pool in cluster.pools]
    rated_w = max(device.tdp_w for device in devices)
    least_w = _LEAST_OVER_REST * max(device.idle_w for device in devices)
    shares = (part / 20 for part in _TWENTIETHS)
    return tuple(share * rated_w for share in shares if share == 1.0 or share * rated_w >= least_w)


@entering(limits_w=several(watts, "a list of limits"))
def power_sweep(
    job: Job,
    limits_w: Sequence[float] = (),
    *,
    calibration: str | Path | None = None,
    fold: bool = True,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
) -> PowerSweep:
    """Predict a step under several power limits on every device.

    Args:
        job: What to train; its own limit is replaced.
        limits_w: The limits; `usual_limits_w` of its cluster if none is given. Those above the
            rated power count as that. [W]
        calibration, fold, sharing, mutual_slowdown: As for `simulate`.

    Raises:
        HardwareError: A limit is not above the idle power of a device.
        WattreeError: As for `simulate`.
    """
    rated_w = max(pool.node.device.tdp_w for pool in job.cluster.pools)
    asked = limits_w or usual_limits_w(job.cluster)
    chosen = sorted({min(limit_w, rated_w) for limit_w in asked}, reverse=True)
    capped = [job.capped(limit_w) for limit_w in chosen]  # all are checked before any is executed
    executed = [
        simulate(
            each,
            calibration=calibration,
            fold=fold,
            sharing=sharing,
            mutual_slowdown=mutual_slowdown,
        )
        for each in capped
    ]
    first = executed[0].result
    steps = tuple(
        LimitedStep(
            power_limit_w=limit_w,
            step_time_s=found.step_time_s,
            energy_j=found.energy_j.total,
            average_power_w=found.average_power_w,
            energy_delay_js=found.energy_j.total * found.step_time_s,
            slowdown=found.step_time_s / first.step_time_s,
            energy_saved=1.0 - found.energy_j.total / first.energy_j.total,
        )
        for limit_w, found in zip(chosen, (each.result for each in executed), strict=True)
    )
    return PowerSweep(
        job=job.source,
        steps=steps,
        least_energy_w=min(steps, key=lambda step: step.energy_j).power_limit_w,
        least_energy_delay_w=min(steps, key=lambda step: step.energy_delay_js).power_limit_w,
        fits=first.memory.fits,
        warnings=(*idle_limits(job.cluster, asked, name="limits_w"), *executed[0].warnings),
    )

"""Time, energy, money and carbon of a step in a whole run, with its share of all that is no step.

A run saves checkpoints, and a failure of any device ends it: it starts again and repeats what the
last checkpoint lacks. Evaluation, planned maintenance, changes of the job and faults of its users
are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from wattree.accounts.bill import carbon_gco2e, cost_usd, embodied_gco2e
from wattree.accounts.energy_use import standing_w
from wattree.accounts.interval import DEVIATIONS
from wattree.arrays import Floats
from wattree.cost.calibration import RUN_SLOWER, Calibration
from wattree.lowering.optimizer_state import optimizer_state_bytes
from wattree.lowering.setting import Setting
from wattree.trace import RunStep
from wattree.units import format_quantity, format_time

#: Times between failures in one interval of checkpoints; a run that saves still less often never
#: ends, and its time is only a bound.
_MOST_FAILURES: Final = 30.0
#: Seconds of 1,000 devices in a day.
_PER_DAY: Final = 1_000 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """What interrupts the steps of a job on some nodes.

    Attributes:
        checkpoint_bytes: Trained parameters with the state of their optimizer. [B]
        failures_per_s: Of all devices. [1/s]
        save_s: Time to write, or read, a checkpoint. [s]
        blocked_s: Part of it that steps wait for. [s]
        restart_s: From a failure until steps run again. [s]
        idle_w: Power of the nodes while no step runs, with PUE. [W]
        every_steps: Steps between checkpoints; None: as many as cost least.
        steps: Of the run, which ends with a checkpoint; None: their number is not known.
    """

    checkpoint_bytes: float
    failures_per_s: float
    save_s: float
    blocked_s: float
    restart_s: float
    idle_w: float
    every_steps: float | None = None
    steps: int | None = None

    def interval_s(self, step_time_s: Floats) -> Floats:
        """Return the time of the steps between checkpoints. [s]

        `sqrt(2 delta M)` if none is stated [1], but not less than one takes to write. No more work
        can be lost than the run has.

        Args:
            step_time_s: Of each strategy. [s]

        References:
            [1] J. W. Young, "A first order approximation to the optimum checkpoint interval",
                Communications of the ACM 17(9), 1974, doi:10.1145/361147.361115.
        """
        most_s = step_time_s * (math.inf if self.steps is None else self.steps)
        if self.every_steps is not None:
            return np.minimum(self.every_steps * step_time_s, most_s)
        if not self.failures_per_s:
            return np.full_like(step_time_s, math.inf)
        best_s = math.sqrt(2.0 * self.blocked_s / self.failures_per_s)
        return np.minimum(np.maximum(step_time_s, max(best_s, self.save_s)), most_s)

    def totals(self, step_time_s: Floats, energy_j: Floats) -> tuple[Floats, Floats]:
        """Return time and energy of a step with its share of the run's interruptions. [s, J]

        `T / T_s = M / tau exp(R / M) (exp((tau + delta) / M) - 1)` [1]: `tau` of steps
        between checkpoints, `delta` for each of these, `R` for a restart, `M` between failures.
        Repeated steps take the power of steps, all else that of idle nodes.

        Args:
            step_time_s, energy_j: Of a step, for each strategy; energy is with PUE. [s, J]

        References:
            [1] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
                dumps", Future Generation Computer Systems 22(3), 2006,
                doi:10.1016/j.future.2004.11.016.
        """
        tau_s, rate = self.interval_s(step_time_s), self.failures_per_s
        saving = self.blocked_s / tau_s
        whole = 1.0 + saving
        if rate:
            lost = np.minimum(rate * (tau_s + self.blocked_s), _MOST_FAILURES)
            restarted = math.exp(min(rate * self.restart_s, _MOST_FAILURES))
            whole = whole * restarted * np.expm1(lost) / lost
        restarting = np.minimum(rate * whole * self.restart_s, whole - 1.0 - saving)
        idle_s = step_time_s * (saving + restarting)
        return step_time_s * whole, energy_j * (whole - saving - restarting) + self.idle_w * idle_s


def interruptions(
    setting: Setting, nodes: Sequence[float], constants: Mapping[str, float] | None = None
) -> Interruptions | None:
    """Return what interrupts a job; None of one that does not train.

    Args:
        setting: The job.
        nodes: That it uses, by pool.
        constants: As of `_stated_or_assumed`, which tells them if None.
    """
    if not setting.trains:
        return None
    job, software, cluster = setting.job, setting.software, setting.job.cluster
    trained = setting.model.trainable_parameters
    width = software.parameter_bytes + software.master_bytes
    saved_bytes = trained * (width + optimizer_state_bytes(job.optimizer, software))
    rate, restart_s, write_bytes_per_s = (constants or _stated_or_assumed(setting)[0]).values()
    pools = [(pool.node, used) for pool, used in zip(cluster.pools, nodes, strict=True)]
    save_s = saved_bytes / (sum(nodes) * write_bytes_per_s)
    copied = sum(used * node.devices * node.device.host_link_bytes_per_s for node, used in pools)
    return Interruptions(
        checkpoint_bytes=saved_bytes,
        failures_per_s=rate * sum(used * node.devices for node, used in pools),
        save_s=save_s,
        blocked_s=min(saved_bytes / copied, save_s) if software.async_checkpoints else save_s,
        restart_s=restart_s + save_s,
        idle_w=sum(standing_w(cluster, cluster.paid_nodes(nodes))) * cluster.site.pue,
        every_steps=None if job.training.checkpoint is None else job.training.checkpoint.every,
        steps=job.training.steps if job.training.steps > 1 else None,
    )


def _stated_or_assumed(setting: Setting) -> tuple[dict[str, float], dict[str, str]]:
    """Return failures of a device, a restart and a node's rate of checkpoints, and what is assumed.

    As the job states them, otherwise as the calibration has them: constant → value [1/s, s, B/s],
    and those that have an effect and are assumed → words.
    """
    stated, constant = setting.job.training, setting.calibration.general
    given = {
        "device_failures_per_s": stated.failures_per_device_s,
        "restart_s": stated.restart_s,
        "checkpoint_bytes_per_s": stated.checkpoint_bytes_per_s,
    }
    found = {name: constant(name) if value is None else value for name, value in given.items()}
    rate, restart_s, bytes_per_s = found.values()
    words = {
        "device_failures_per_s": f"{rate * _PER_DAY:.2g} failures per 1,000 devices and day",
        "restart_s": f"restarts of {format_time(restart_s)}",
        "checkpoint_bytes_per_s": f"checkpoints at {format_quantity(bytes_per_s, 'B/s')} per node",
    }
    if not rate:
        del words["restart_s"]
        if stated.checkpoint is None:
            del words["checkpoint_bytes_per_s"]
    return found, {name: text for name, text in words.items() if given[name] is None}


def run_step(
    setting: Setting, nodes: Sequence[float], step_time_s: float, energy_j: float
) -> RunStep | None:
    """Return a step with its share of the interruptions of a run; None of a job without any.

    Args:
        setting: The job, with the model that is trained.
        nodes: That it uses, by pool.
        step_time_s, energy_j: Of the step, with PUE. [s, J]
    """
    constants, assumed = _stated_or_assumed(setting)
    found = interruptions(setting, nodes, constants)
    if found is None:
        return None
    job, alone_s = setting.job, np.array(step_time_s)
    paid = job.cluster.paid_nodes(nodes)
    run_s, run_j = map(float, found.totals(alone_s, np.array(energy_j)))
    every_s = float(found.interval_s(alone_s))

    def moved_s(name: str, factor: float) -> float:
        """Return the time with a constant moved, for checkpoints as far apart as expected."""
        other = interruptions(setting, nodes, {**constants, name: constants[name] * factor})
        assert other is not None
        other = replace(other, every_steps=every_s / step_time_s, steps=None)
        return float(other.totals(alone_s, alone_s)[0])

    return RunStep(
        time_s=run_s,
        energy_j=run_j,
        cost_usd=cost_usd(job.cluster, paid, run_s, run_j),
        carbon_gco2e=carbon_gco2e(job, paid, run_s, run_j),
        embodied_gco2e=embodied_gco2e(job, paid, run_s),
        goodput=step_time_s / run_s,
        failures=found.failures_per_s * run_s,
        checkpoint_bytes=found.checkpoint_bytes,
        checkpoint_every_s=every_s if math.isfinite(every_s) else None,
        checkpoint_s=found.blocked_s,
        bounds=_bounds(setting.calibration, run_s, assumed, moved_s),
        assumed=tuple(assumed.values()),
    )


def _bounds(
    calibration: Calibration,
    run_s: float,
    assumed: Iterable[str],
    moved_s: Callable[[str, float], float],
) -> tuple[float, float]:
    """Return the ends of the 80 % interval of a run's time over it, by what is assumed of it.

    Each assumed constant moves alone. Above, what published trainings lose that nothing here has is
    added.
    """
    logarithms = []
    for name in assumed:
        spread = calibration.constants[f"general.{name}"].spread
        ends = [math.exp(side * DEVIATIONS * spread) for side in (-1.0, 1.0)]
        logarithms.append(sorted(math.log(moved_s(name, end) / run_s) for end in ends))
    slower = calibration.residuals.spreads.get(RUN_SLOWER, 0.0)
    low, high = (math.hypot(*(each[side] for each in logarithms)) for side in (0, 1))
    return math.exp(-low), math.exp(math.hypot(high, DEVIATIONS * slower))

"""Compute 80 % intervals of figures from the uncertainty of their constants.

The variance of the logarithm of the step time is a sum: for each constant, the share of the step
that it sets times its spread, which grows with the distance of the look-up; the residual of the
class of evidence; and what the job left open. Above the prediction, what steps of others lose that
no prediction has is added. Energy, power and money follow time in part.

How wide the classes are is fitted to rows left out (`validation/coverage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattree.accounts import constant_classes as names
from wattree.accounts.bill import energy_usd_per_j
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import (
    LEVELS,
    EvidenceClass,
    JobFacts,
    KnownRows,
    left_open_spreads,
    measured_of,
)
from wattree.accounts.memory_spread import memory_spread
from wattree.accounts.shares import time_shares
from wattree.cost import FoundConstant
from wattree.cost.device_power import math_constant
from wattree.cost.observations import (
    RESIDUAL,
    WHOLES,
    Observation,
    remaining_uncertainty,
    run_errors,
    unattributed_spread,
)
from wattree.cost.precisions import precision_class
from wattree.hardware import Device
from wattree.job import Job, WorkloadKind
from wattree.lowering.setting import Setting
from wattree.trace import EnergyUse, IntervalPart, TimeParts

if TYPE_CHECKING:
    from wattree.accounts.executed import ExecutedStep
    from wattree.accounts.memory_use import PeakMemory

#: Probability that a figure lies in its interval, and the standard deviations on either side.
PROBABILITY = 0.8
DEVIATIONS = 1.2815515655446004

#: Spread of a constant that states none, by its evidence.
_UNSTATED = {"measured": 0.05, "fitted": 0.05, "pooled": 0.2, "chosen": 0.2}
#: The same of rates that no calibration has: figures of the job or of a datasheet.
_DATASHEET = 0.2
#: Residual of inference in an engine (80 % of its rows are inside), and elsewhere (chosen).
INFERENCE_SPREAD = 0.115
_EAGER_INFERENCE_SPREAD = 0.3
#: Parts of `interval_parts` that no constant has, as has `RESIDUAL`: what the job leaves open, and
#: by what steps of others are slower than predicted.
LEFT_OPEN = "left_open"
SLOWER = "slower"


def spread_of(
    found: FoundConstant | None, device: str, measured: KnownRows, spreads: Mapping[str, float]
) -> float:
    """Return the standard deviation of a constant's logarithm, wider the farther it comes from.

    Args:
        device: Type of device that it is used for.
    """
    if found is None:
        return _DATASHEET
    own = found.constant.spread or _UNSTATED.get(found.constant.evidence, _DATASHEET)
    return math.hypot(own, measured.level_spread(measured.level(found, device), spreads))


def constant_parts(
    shares: Mapping[str, float],
    constants: Mapping[str, tuple[FoundConstant | None, ...]],
    device: str,
    measured: KnownRows,
    spreads: Mapping[str, float],
) -> dict[str, IntervalPart]:
    """Return what an interval rests on, by class of constants (see `interval_parts`)."""
    found = {
        name: [spread_of(each, device, measured, spreads) for each in constants[name]]
        for name in shares
    }
    return {
        name: IntervalPart(share=share, spread=math.hypot(*found[name]))
        for name, share in shares.items()
    }


def interval_parts(
    setting: Setting,
    facts: JobFacts,
    shares: Mapping[str, float],
    constants: Mapping[str, tuple[FoundConstant | None, ...]],
) -> tuple[dict[str, IntervalPart], EvidenceClass]:
    """Return what the interval of a step time rests on, by class of constants, and what is known.

    Args:
        shares: Of the step time, by class of constants.
        constants: That stand for each class.
    """
    residuals = setting.calibration.residuals
    measured, spreads = measured_of(residuals, facts.kind), residuals.spreads
    known = facts.known(measured, shares, constants)
    found = constant_parts(shares, constants, facts.device, measured, spreads)
    trains = setting.job.workload is WorkloadKind.TRAIN
    if trains:
        residual = known.residual(spreads)
    else:
        in_engine = setting.software.inference_kernels
        residual = INFERENCE_SPREAD if in_engine else _EAGER_INFERENCE_SPREAD
    found[RESIDUAL] = IntervalPart(share=1.0, spread=residual)
    if trains:
        found[SLOWER] = IntervalPart(share=1.0, spread=known.slower(spreads))
    own = own_observations(setting, facts) if trains else ()
    if own:
        known = replace(known, observed=True)
        with_levels = training_parts(setting, found, constants, facts.device, measured)
        left = observed_parts(with_levels, known, own, spreads)
        found = min(left, found, key=lambda parts: sum(time_deviations(parts)))
        # Runs narrow the interval, unless predictions with them still differ from them by more.
        every = setting.calibration.observations
        off = max(unexplained_spread(every, own), unattributed_spread(every))
        found[RESIDUAL] = IntervalPart(share=1.0, spread=max(found[RESIDUAL].deviation, off))
    if alternatives := left_open_spreads(setting.job.assumed):
        found[LEFT_OPEN] = IntervalPart(share=1.0, spread=math.hypot(*alternatives))
    return found, known


def own_observations(setting: Setting, facts: JobFacts) -> tuple[Observation, ...]:
    """Return what the calibration has of the user's own runs of such jobs."""
    alike = (facts.device, facts.stated_software, facts.kind, precision_class(setting.precision))
    return tuple(each for each in setting.calibration.observations if each.concerns(*alike))


def training_parts(
    setting: Setting,
    parts: Mapping[str, IntervalPart],
    constants: Mapping[str, tuple[FoundConstant | None, ...]],
    device: str,
    measured: KnownRows,
) -> dict[str, IntervalPart]:
    """Return the parts of a time's interval, with the rate of matmuls fitted in training if any.

    What rows determine is the rate of products in training; that of products alone, as they were
    measured, is less sure. Where a device has rows, the first counts.
    """
    found = {name: part for name, part in parts.items() if name not in (RESIDUAL, SLOWER)}
    products = constants[names.PRODUCTS][0]
    if names.PRODUCTS not in found or products is None:
        return found
    item = products.name.rpartition(".matmul.")[2]
    pools = setting.job.cluster.pools
    mine = next(pool.node.device for pool in pools if pool.node.device.name == device)
    training = setting.calibration.found_for_device(mine, f"training.{item}")
    if training is None or training.constant.evidence != "fitted":
        return found
    if device not in measured.devices or training.level == LEVELS[-1]:
        return found
    own = [training, *constants[names.PRODUCTS][1:]]
    spread = math.hypot(*(spread_of(each, device, measured, {}) for each in own))
    return {**found, names.PRODUCTS: replace(found[names.PRODUCTS], spread=spread)}


def observed_parts(
    parts: Mapping[str, IntervalPart],
    known: EvidenceClass,
    observations: Sequence[Observation],
    spreads: Mapping[str, float],
) -> dict[str, IntervalPart]:
    """Return the remaining parts of an interval, given observed runs of such jobs."""
    alike = IntervalPart(share=1.0, spread=known.alike(spreads))
    left, noise = remaining_uncertainty(observations, {**parts, RESIDUAL: alike})
    rest = left[RESIDUAL].deviation
    spread = math.hypot(rest, noise, known.noise(spreads))
    left = {name: part for name, part in left.items() if name not in WHOLES}
    return {**left, RESIDUAL: IntervalPart(share=1.0, spread=spread)}


def unexplained_spread(observations: Sequence[Observation], alike: Sequence[Observation]) -> float:
    """Return the least residual whose intervals hold what `alike` of the observed runs measured.

    Of several, the root of the mean square; 0 where it is less than the noise that they have.
    """
    off = run_errors(observations)
    errors = [off[job] for job in {each.job for each in alike}]
    spread = math.hypot(*errors) / math.sqrt(len(errors)) / DEVIATIONS
    return spread if spread > max(each.noise for each in alike) else 0.0


def deviation(parts: Mapping[str, IntervalPart]) -> float:
    """Return the standard deviation of the step time's logarithm, below the prediction."""
    return math.hypot(*(part.deviation for name, part in parts.items() if name != SLOWER))


def time_deviations(parts: Mapping[str, IntervalPart]) -> tuple[float, float]:
    """Return the standard deviations of the step time's logarithm, below and above."""
    return deviation(parts), math.hypot(*(part.deviation for part in parts.values()))


def interval(value: float, below: float, above: float) -> tuple[float, float]:
    """Return the 80 % interval of a figure, from the deviations on either side."""
    return value * math.exp(-DEVIATIONS * below), value * math.exp(DEVIATIONS * above)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of a step's figures.

    Attributes:
        of: Quantity → what it lies between with 80 % probability.
        parts: What the interval of the step time rests on, by class of constants.
        known: What is known of such jobs.
    """

    of: Mapping[str, tuple[float, float]]
    parts: Mapping[str, IntervalPart]
    known: EvidenceClass


def intervals_of(
    step: ExecutedStep,
    energy: EnergyUse,
    peak: PeakMemory,
    figures: Mapping[str, float | None],
    *,
    parts: TimeParts,
    slowest: int,
) -> Intervals:
    """Return the intervals of a step's figures.

    Args:
        figures: Quantity → value; None where it is unknown.
        parts: Where the step goes on the slowest rank class.
    """
    found, known = _time_parts_known(step, parts, slowest)
    price = energy_usd_per_j(step.cluster, step.nodes)
    cost, carbon = figures.get("cost_usd"), figures.get("carbon_gco2e")
    spreads = figure_spreads(
        time_deviations(found),
        power_spread(step.setting, step.cluster.pools[0].node.device),
        memory_spread(step.setting, peak.tensors / peak.process if peak.process > 0 else 1.0),
        static=energy.static / energy.total if energy.total > 0 else 1.0,
        grid=grid_share(step.job, carbon, energy.total),
        paid=price * energy.total / cost if price and cost else 0.0,
    )
    return Intervals(
        of={
            name: interval(value, *spreads[name])
            for name, value in figures.items()
            if value is not None and name in spreads
        },
        parts=found,
        known=known,
    )


def time_interval(step: ExecutedStep, parts: TimeParts, slowest: int) -> tuple[float, float]:
    """Return the interval of the time of a step alone; arguments as of `intervals_of`. [s]"""
    found, _ = _time_parts_known(step, parts, slowest)
    return interval(step.step_s, *time_deviations(found))


def _time_parts_known(
    step: ExecutedStep, parts: TimeParts, slowest: int
) -> tuple[dict[str, IntervalPart], EvidenceClass]:
    setting = step.setting
    device = step.cluster.pools[int(step.compilation.class_pools[slowest])].node.device
    shares = time_shares(step, parts, slowest)
    facts = facts_of(setting, device, step.ranks)
    return interval_parts(setting, facts, shares, constants_of(setting, device))


def figure_spreads(
    time: tuple[float, float],
    power: float,
    memory: float,
    *,
    static: float = 1.0,
    grid: float,
    paid: float = 0.0,
) -> Mapping[str, tuple[float, float]]:
    """Return quantity → standard deviations of its logarithm, below and above.

    What is drawn at rest follows time and is as unsure; what work draws above it is the same work
    in any time. So energy varies with the static share of the variation of time, power against it
    with the rest, and both with the constants of power. Rent and embodied carbon follow time.

    Args:
        time, power, memory: Those of the step time, of power by its constants, and of memory.
        static: Share of energy that is drawn at rest.
        grid: Share of carbon that energy emits.
        paid: Share of cost that energy has.
    """

    def following(part: float, other: float) -> tuple[float, float]:
        """Return the spreads of what follows time in part, and something else."""
        faster, slower = (math.hypot(part * each, other) for each in time)
        return faster, slower

    def in_part(share: float) -> tuple[float, float]:
        """Return the spreads of what energy makes a share of, and time the rest."""
        return following(1.0 - share + share * static, share * power)

    return {
        "step_time_s": time,
        "samples_per_s": time[::-1],
        "tokens_per_s": time[::-1],
        "memory.peak_bytes": (memory, memory),
        "average_power_w": following(1.0 - static, power)[::-1],
        "energy_j": in_part(1.0),
        "carbon_gco2e": in_part(grid),
        "cost_usd": in_part(paid),
    }


def grid_share(job: Job, carbon_gco2e: float | None, energy_j: float) -> float:
    """Return the share of carbon that energy emits; the rest is embodied."""
    grid = job.cluster.site.carbon_gco2e(energy_j)
    return grid / carbon_gco2e if grid and carbon_gco2e else 1.0


def power_spread(setting: Setting, device: Device) -> float:
    """Return the spread of power by its constants, at the level at which they are found."""
    items = ("power_training", math_constant(device, setting.peak_precision))
    found = [setting.calibration.found_for_device(device, item) for item in items]
    own = any(
        each is not None and each.level == "device" and each.constant.evidence == "fitted"
        for each in found
    )
    level = "device" if own else "pooled"
    return setting.calibration.residuals.spreads.get(f"average_power_w.{level}", _DATASHEET)

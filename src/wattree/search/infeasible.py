"""What to say when nothing fits: what comes nearest, how much is missing, what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wattree.errors import InfeasibleError
from wattree.predict import Setting, setting_of
from wattree.search.limits import Limits
from wattree.search.screen import Constraints, ScreenedSpace, screen
from wattree.search.space import enumerate_space
from wattree.strategy import options_in_words
from wattree.units import format_bytes, format_time

#: Units of a cap as people give them, largest first. [W]
_CAP_UNITS = (("MW", 1e6), ("kW", 1e3), ("W", 1.0))
#: How far to look for a larger cluster that would do.
_MOST_DOUBLINGS = 6


def infeasible(
    setting: Setting, screened: ScreenedSpace, constraints: Constraints, rejected: Mapping[str, int]
) -> InfeasibleError:
    """Return the error for a search that found nothing.

    Args:
        setting: The job.
        screened: Estimates of every strategy.
        constraints: What was asked.
        rejected: Reason → strategies rejected.
    """
    counted = ", ".join(
        f"{reason} ({count:,})" for reason, count in sorted(rejected.items(), key=lambda r: -r[1])
    )
    job = setting.job
    where = f"{setting.model.name} on {job.cluster.label}"
    lines = [
        f"{job.source}: nothing fits: no strategy for {where} meets every constraint",
        f"  rejected: {counted}",
    ]
    if not len(screened):
        batch = job.data.global_batch
        lines.append(
            f"  the global batch of {batch} samples splits over no mesh of these devices that the "
            "model admits; change data.global_batch or the number of nodes"
        )
        return InfeasibleError("\n".join(lines), rejected, warnings=setting.warnings)
    lines += _nearest(setting, screened, constraints)
    return InfeasibleError("\n".join(lines), rejected, warnings=setting.warnings)


def _more_nodes(setting: Setting, constraints: Constraints) -> str:
    """Return how many nodes would be enough, found by doubling them."""
    cluster = setting.job.cluster
    lean = Limits(micro_batches=(1,), recomputations=("full",), schedules=("1f1b",))
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        pools = tuple(replace(p, nodes=p.nodes * 2**doublings) for p in cluster.pools)
        more = replace(cluster, pools=pools, slowdown={}, slow_links={})
        wider = setting_of(
            replace(setting.job, cluster=more), setting.calibration, model=setting.model
        )
        screened = screen(wider, enumerate_space(wider, limits=lean))
        if screened.fits(constraints).any():
            return f"{more.nodes} nodes (by the closed form)"
    return f"more than {cluster.nodes * 2**_MOST_DOUBLINGS} nodes, or a larger data.global_batch"


def _nearest(setting: Setting, screened: ScreenedSpace, constraints: Constraints) -> list[str]:
    """Return what the strategy needs that misses the first binding constraint by least."""
    fits = screened.fits(constraints)
    if not fits.any():
        index = int(np.argmin(screened.memory_bytes / screened.capacity_bytes))
        need, capacity = float(screened.memory_bytes[index]), float(screened.capacity_bytes[index])
        return [
            f"  nearest: {options_in_words(screened.options(index))}, which needs "
            f"{format_bytes(need)} on each device of {format_bytes(capacity)}"
            + (f", {constraints.margin:.0%} kept free" if constraints.margin else ""),
            f"  what would help: {_more_nodes(setting, constraints)}, devices with more memory, "
            "a shorter data.sequence_length, or an optimizer with less state (adamw8bit, lion)",
        ]
    power_w = screened.average_power_w
    cap_w = constraints.power_cap_w
    if cap_w is not None and not (fits & (power_w <= cap_w)).any():
        index = int(np.argmin(np.where(fits, power_w, np.inf)))
        unit, scale = next((u for u in _CAP_UNITS if cap_w >= u[1]), _CAP_UNITS[-1])
        return [
            f"  nearest: {options_in_words(screened.options(index))}, which draws "
            f"{power_w[index] / scale:,.5g} {unit} on average, above the cap of "
            f"{cap_w / scale:,.5g} {unit}",
            "  what would help: a higher --power-cap, or a power limit on each device "
            "(cluster.power_limit)",
        ]
    within = fits if cap_w is None else fits & (power_w <= cap_w)
    index = int(np.argmin(np.where(within, screened.step_time_s, np.inf)))
    steps = max(setting.job.training.steps, 1)
    total_s = float(screened.step_time_s[index]) * steps
    nearest = f"  nearest: {options_in_words(screened.options(index))}, whose {steps:,} steps take "
    limit_s = constraints.step_time_s
    if limit_s is not None:
        return [
            f"{nearest}{format_time(total_s)}, past the deadline of {format_time(limit_s * steps)}",
            "  what would help: a later --deadline, fewer training.steps, or more devices",
        ]
    return [
        f"{nearest}{format_time(total_s)}: it meets them by the closed form, but neither it nor "
        "the next best do when simulated",
        "  what would help: " + ("a higher --power-cap" if cap_w is not None else "more devices"),
    ]

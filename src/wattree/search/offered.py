"""Strategies that a search leaves out because the job's software cannot run them."""

from __future__ import annotations

from dataclasses import replace

from wattree.cost import AUTO_SOFTWARE
from wattree.job import WorkloadKind
from wattree.lowering.offered import model_offer
from wattree.predict import Setting
from wattree.search.limits import Limits
from wattree.search.option_sets import plain_options
from wattree.search.space import axis_limits
from wattree.strategy import AXES, StrategyOptions

#: Keys in which the options of a search differ, and the axis without which they say nothing.
_KEYS = {
    "sharding": "",
    "context": "cp",
    "schedule": "pp",
    "recompute": "",
    "sequence_parallel": "tp",
}


def within_offer(limits: Limits, setting: Setting, *, any_software: bool) -> Limits:
    """Return the limits with those of the job's software, unless any will do."""
    if any_software or limits.offer is not None:
        return limits
    job, compiled = setting.job, setting.software.compiled
    offer = model_offer(job.taken_software, setting.model, job, compiled=compiled)
    return replace(limits, offer=offer)


def not_offered(setting: Setting, limits: Limits) -> tuple[str, ...]:
    """Return what was not tried, in words; empty where the software has all of it, or is not named.

    Args:
        limits: Part of the space, with what the software offers.
    """
    offer = limits.offer
    if offer is None:
        return ()
    devices = setting.job.cluster.devices
    degrees = axis_limits(setting.model, setting.job.data.sequence_length, limits)
    unasked = {axis for axis, each in degrees.items() if max(each, default=1) == 1}
    axes = [axis for axis in AXES if axis not in offer.axes and axis != "fsdp" and devices > 1]
    found = [f"{axis} above 1" for axis in axes if axis not in unasked]
    narrow = unasked.union(axes)
    tried = list(plain_options(setting, limits))
    for key, axis in _KEYS.items():
        values = dict.fromkeys(options.value(key) for options in tried)
        missing = [value for value in values if not offer.has(key, value)]
        if missing and axis not in narrow:
            found.append(offer.in_words(key, *missing))
    for axis, also in offer.together.items():
        if axis not in narrow:
            ways = [
                " and ".join(f"{key} {_words(values)}" for key, values in each.items())
                for each in also
            ]
            found.append(f"{axis} above 1, except with {'; or with '.join(ways)}")
    return tuple(found)


def of_other_software(setting: Setting, options: StrategyOptions) -> tuple[str, ...]:
    """Return a warning of a strategy that the software whose constants count cannot run.

    Empty where the job names its software: then nothing else was tried.
    """
    job = setting.job
    if job.taken_software != AUTO_SOFTWARE or job.workload is not WorkloadKind.TRAIN:
        return ()
    name, model = setting.software.name, setting.model
    offer = model_offer(name, model, job, compiled=setting.software.compiled)
    if offer is None:
        return ()
    batch = job.data.global_batch
    lacks = offer.lacks(options, left=(), global_batch=batch, layers=model.layers)
    if not lacks:
        return ()
    return (
        f"software: the job names none, so strategies of any were tried: {name}, whose constants "
        f"count, has no {', no '.join(lacks)}; name yours, and only what it can run is proposed",
    )


def _words(values: tuple[object, ...]) -> str:
    return "/".join(str(value).lower() for value in values)

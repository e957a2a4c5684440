"""Strategies that a search left out because the job's software cannot run them."""

from __future__ import annotations

from wattree.predict import Setting
from wattree.search.limits import Limits
from wattree.search.option_sets import plain_options
from wattree.strategy import AXES

#: Keys in which the options of a search differ.
_KEYS = ("sharding", "context", "schedule", "recompute", "sequence_parallel")


def not_offered(setting: Setting, limits: Limits) -> tuple[str, ...]:
    """Return what was not tried, in words; empty where the software has all of it, or is not named.

    Args:
        limits: Part of the space, with what the software offers.
    """
    offer = limits.offer
    if offer is None:
        return ()
    devices = setting.job.cluster.devices
    axes = [axis for axis in AXES if axis not in offer.axes and axis != "fsdp" and devices > 1]
    found = [f"{axis} above 1" for axis in axes]
    tried = list(plain_options(setting, limits))
    for key in _KEYS:
        values = dict.fromkeys(options.value(key) for options in tried)
        missing = [value for value in values if not offer.has(key, value)]
        if missing and not (key == "context" and "cp" in axes):
            found.append(offer.in_words(key, *missing))
    for axis, also in offer.together.items():
        if axis not in axes:
            ways = [
                " and ".join(f"{key} {_words(values)}" for key, values in each.items())
                for each in also
            ]
            found.append(f"{axis} above 1, except with {'; or with '.join(ways)}")
    return tuple(found)


def _words(values: tuple[object, ...]) -> str:
    return "/".join(str(value).lower() for value in values)

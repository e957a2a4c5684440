"""When to search for several processes on each device: if one leaves much of it idle."""

from __future__ import annotations

from dataclasses import replace

from wattree.closed_form.busy_share import busy_share
from wattree.hardware.mps import has_mps
from wattree.predict import Setting
from wattree.search.limits import Limits
from wattree.strategy import StrategyOptions

#: A device that is busier than this has at most a quarter to gain, and less is left of that by
#: smaller batches: not worth a look unless processes are asked for.
_BUSY = 0.8
#: Numbers of processes that are tried: those of the published measurements.
_TRIED = (2, 3, 4, 6)


def sharing_limits(
    setting: Setting, best: StrategyOptions, limits: Limits, *, simulated_s: float
) -> Limits | None:
    """Return the part of the space with several processes on each device; None: not worth a look.

    Args:
        best: The best strategy with one process on each device.
        simulated_s: Step time of the best. [s]
    """
    job = setting.job
    device = job.cluster.pools[0].node.device
    if limits.processes != (1,) or setting.model.own_family or job.cluster.is_mixed:
        return None
    is_shared = device.kind == "cpu" or has_mps(device)
    if not is_shared or best.ranks != best.replicas or best.parallelism.single_process:
        return None
    if busy_share(setting, best, simulated_s) > _BUSY:
        return None
    return replace(limits, processes=_TRIED)

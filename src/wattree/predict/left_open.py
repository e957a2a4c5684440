"""What a job leaves open and memory decides: the cheapest recomputation that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.closed_form import strategies as closed_form
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.errors import StrategyError
from wattree.job.usual import USUAL_STRATEGIES
from wattree.lowering.setting import Setting
from wattree.strategy import StrategyOptions

_KEY = "recompute"


def decided(setting: Setting) -> Setting:
    """Return a setting whose job says what it left to memory, and that this was assumed.

    Users recompute what they must and no more: the first of their software's ways whose peak is
    within the device's memory by the closed form. Where none is, the cheapest stays, and the
    result says by how much it does not fit.

    Raises:
        StrategyError: The strategy does not fit model or cluster.
    """
    job = setting.job
    options, usual = job.strategy, USUAL_STRATEGIES.get(setting.software.name)
    if _KEY not in job.left_open or usual is None or not isinstance(options, StrategyOptions):
        return setting
    if not is_expressible(options, job.cluster):
        return setting
    degrees, shared = Degrees.of([options], job.data.global_batch), closed_form.Shared()
    for way in usual.recompute:
        tried = options.changed(recompute=way)
        try:
            found = closed_form.estimate(setting, tried, degrees, shared=shared)
        except StrategyError:
            continue
        device = job.cluster.pools[int(found.pool[0])].node.device
        need = found.process_bytes * options.colocation.processes
        if bool(np.all(need <= device.memory_bytes)):
            return _assuming(setting, tried, way)
    return setting


def _assuming(setting: Setting, options: StrategyOptions, way: str) -> Setting:
    words = f"recompute {way}: the cheapest way of {setting.software.name} that fits"
    job = setting.job
    return replace(
        setting, job=replace(job, strategy=options, assumed=(*job.assumed, words), left_open=())
    )

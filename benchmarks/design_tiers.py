"""Expanded memory in closed form and played: how far the two differ, strategy by strategy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.frame import Figure, Measure, Options, Section
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.hardware import MemoryTier
from wattree.job import job_from_mapping
from wattree.predict import predicted, setting_of
from wattree.search.limits import Limits
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space

#: Closed form and play differ by no more on average: what screening allows for (`search`).
_MOST = 0.02
_PLAYED = 12
_PLACEMENTS = ("overflow", "optimizer+overflow", "optimizer+parameters", "activations+overflow")


def section(options: Options) -> Section:
    """Return how far step times and memory differ over random strategies of several clusters."""
    times: list[float] = []
    room: list[bool] = []
    rng = np.random.default_rng(2026)
    for node, access, rate in (
        ("dgx-a100", "serial", 100e9),
        ("dgx-a100", "concurrent", 500e9),
        ("dgx-h100", "serial", 1000e9),
    ):
        job = job_from_mapping(
            {
                "model": "llama-3.1-70b",
                "data": {"sequence_length": 4096, "global_batch": 32},
                "cluster": {"node": node, "nodes": 2},
                "strategy": "auto",
            }
        )
        tier = MemoryTier(
            memory_bytes=5e11,
            bandwidth_bytes_per_s=rate,
            latency_s=4e-7,
            pooled=False,
            access=access,
            per_device=True,
        )
        pool = replace(job.cluster.pool, node=replace(job.cluster.node, cxl=tier))
        job = replace(job, cluster=replace(job.cluster, pools=(pool,)))
        setting = setting_of(job, options.calibration)
        limits = Limits(placements=_PLACEMENTS, schedules=("1f1b",))
        screened = screen(setting, enumerate_space(setting, limits=limits))
        fitting = np.flatnonzero(screened.fits(Constraints()))
        for index in rng.choice(fitting, _PLAYED, replace=False).tolist():
            chosen = screened.options(index)
            found = estimate(setting, chosen, Degrees.of([chosen], 32))
            executed = predicted(setting, chosen, detail=False).result
            times.append(float(found.step_time_s[0]) / executed.step_time_s - 1)
            room.append(executed.memory.fits == bool(found.tier_fits[0]))
    errors = np.array(times)
    return Section(
        title="Expanded memory: closed form against play, 70 billion parameters on 16 devices",
        measures=(Measure.of("step time", errors, _MOST),),
        figures=(
            Figure(
                f"Step time of {len(errors)} random strategies, mean error",
                f"≤ {_MOST:.0%}",
                f"{np.abs(errors).mean():.2%}, at most {np.abs(errors).max():.2%}",
                bool(np.abs(errors).mean() <= _MOST),
            ),
            Figure("Both say that it fits", "all", f"{sum(room)} of {len(room)}", all(room)),
        ),
    )

"""Runs of a made-up cluster, changed."""

from __future__ import annotations

from dataclasses import replace

from tests.energy.synthetic import World
from wattree.trace.run import (
    Run,
    StageUse,
)

__all__ = ["in_process"]


def in_process(world: World, samples: float) -> Run:
    """Return a run on one node whose loader takes one core, while nothing computes."""
    run = world.training("vgg-16", samples, 1)
    waits_s = (run.work.core_s or 0.0) * run.iterations
    stages = {
        **run.stages,
        "materials": StageUse(busy_s=waits_s, exposed_s=waits_s),
        "computing": replace(run.stages["computing"], energy_j=None),
    }
    stages["communicating"] = replace(run.stages["communicating"], energy_j=None)
    wall_s = sum(use.exposed_s for use in stages.values())
    work = replace(run.work, read_bytes=None)
    return replace(run, stages=stages, wall_s=wall_s, work=work, prefetch=False)

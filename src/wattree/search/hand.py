"""Common hand-made strategies: data parallelism, the Megatron recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from wattree.job.offers import Offer
from wattree.predict import Setting, Shared
from wattree.search.limits import Limits
from wattree.search.passes import divisors
from wattree.search.screen import Constraints, screen
from wattree.search.space import Space, enumerate_space
from wattree.strategy import StrategyOptions


def hand_choices(
    setting: Setting,
    ranks: int,
    *,
    offer: Offer | None = None,
    shared: Shared | None = None,
    like: Space | None = None,
) -> Mapping[str, StrategyOptions]:
    """Return the two most common choices: name → strategy.

    Both take the fastest micro-batch and recomputation that fits by the closed form (or the
    leanest, if none does), as people find by trying.

    Args:
        offer: What the software can run; None for everything.
        shared: Of other screenings of the job: what was compiled for them.
        like: Space of such a screening.
    """
    best_within = partial(_best_within, setting, ranks, shared=shared, like=like)
    found = {}
    if setting.decode is not None:  # no engine gathers parameters for each token
        alone = replace(_replica_limits(), offer=offer)
        if replicas := best_within(alone, must_fit=True):
            found["a replica on each device"] = replicas
    else:
        everywhere = replace(_replica_limits("zero3"), offer=offer)
        if fsdp := best_within(everywhere):
            found["FSDP over all ranks"] = fsdp
    # Megatron's recipe: as much tensor parallelism as the node has devices, the shallowest
    # pipeline that fits, replicas with what is left.
    for stages in divisors(ranks):
        limits = replace(_megatron_limits(setting, stages), offer=offer)
        recipe = best_within(limits, must_fit=True)
        if recipe is not None:
            found["tensor parallelism over the node"] = recipe
            break
    return found


def _replica_limits(sharding: str = "none") -> Limits:
    alone = dict.fromkeys(("fsdp", "tp", "cp", "pp", "ep"), (1,))
    return Limits(axes=alone, shardings=(sharding,), cuts=False)


def _megatron_limits(setting: Setting, stages: int) -> Limits:
    cluster = setting.job.cluster
    node = math.gcd(*(pool.node.devices for pool in cluster.pools))
    return Limits(
        axes={"fsdp": (1,), "cp": (1,), "ep": (1,), "tp": (node,), "pp": (stages,)},
        shardings=("zero1", "none"),
        schedules=("1f1b",),
        cuts=False,
    )


def _best_within(
    setting: Setting,
    ranks: int,
    limits: Limits,
    *,
    shared: Shared | None,
    like: Space | None,
    must_fit: bool = False,
) -> StrategyOptions | None:
    space = enumerate_space(setting, ranks=(ranks,), limits=limits)
    if not len(space):
        return None
    screened = screen(setting, space, shared=shared, like=like)
    fits = screened.fits(Constraints())
    if not fits.any():
        return None if must_fit else screened.options(int(np.argmin(screened.memory_bytes)))
    return screened.options(int(np.argmin(np.where(fits, screened.step_time_s, np.inf))))

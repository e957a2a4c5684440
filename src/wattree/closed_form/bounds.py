"""Bounds of the excess of an estimated step over the simulated one, by family of strategies.

`tests/property/test_closed_form.py` holds these bounds on drawn strategies, with every schedule and
up to 8 virtual stages. Below the simulation estimates may be by more, which costs a search a
simulation and never the best strategy.
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import mul

from wattree.lowering.movement import resolved_overlap
from wattree.lowering.setting import Setting
from wattree.strategy import StrategyOptions

#: Family → the bound: what two thousand draws need, with room for rarer ones.
TIME_BOUNDS = {
    # Forward and backward side by side fill each other's gaps: of 699 draws one needs 0.14.
    "dualpipe": 0.20,
    # Not so where each waits for its own gathers: one written by hand needs 0.29.
    "dualpipe, gathers that wait": 0.40,
    # Slots are timed one by one, their traffic is not: of 1,094 draws one needs 0.08.
    "zero-bubble": 0.12,
    # A gather that waits for the block before may run alongside that block's last collective.
    "gathers that wait": 0.20,
    # In chunks of pipeline stages gathers are many and short, and stages have some of them while
    # they wait for others: of 500 draws one needs 0.25, one written by hand 0.33.
    "gathers in chunks": 0.40,
    # How reductions between groups share links with gathers within them depends on which meet. Of
    # 724 draws one needed 0.28, and of 884 whose gathers wait one 0.36, when both were added up.
    "hybrid": 0.30,
    "hybrid, gathers that wait": 0.40,
    # Three draws in 3,600 need more than 0.09, one 0.14: small models whose reductions are not
    # overlapped.
    "others": 0.15,
    # A stage's part of a token's step is the difference of two steps that drain: of 277 draws one
    # needs 0.28.
    "pipelines that generate": 0.30,
}
#: Least bound where a border of racks or nodes cuts groups: the closed form has all groups as slow
#: as the smallest part of any. Of 1,551 draws on 19 and 24 NVL72 nodes one needs 0.25.
CUT = 0.30
#: The same where such borders cut some stages of pipelines, which have costs of their own but for
#: what they meet on shared adapters. Of 320 draws one needs 0.32.
CUT_STAGES = 0.45


def time_bound(options: StrategyOptions, setting: Setting) -> float:
    """Return the upper bound of `estimate / simulation - 1` of a step time."""
    bound = _family_bound(options, setting)
    if not _is_cut(options, setting):
        return bound
    stage = math.prod(options.degrees.values()) // options.pp
    if options.pp > 1 and _cuts(setting, stage, within=True):
        return max(bound, CUT_STAGES)
    # One stage may be cut, which every micro-batch meets once; the closed form has all stages so.
    samples = options.colocation.process_batch(setting.job.data.global_batch)
    micro_batches = max(samples / (options.replicas * options.pipeline.micro_batch), 1.0)
    return (1.0 + max(bound, CUT)) * (1.0 + (options.pp - 1) / micro_batches) - 1.0


def largest_bound(setting: Setting) -> float:
    """Return a bound of any strategy; infinite where borders cut groups of some size."""
    devices = sum(pool.devices for pool in setting.job.cluster.pools)
    cut = any(_cuts(setting, block) for block in range(2, devices) if devices % block == 0)
    return math.inf if cut else max(TIME_BOUNDS.values())


def _is_cut(options: StrategyOptions, setting: Setting) -> bool:
    """Return whether borders of scale-up domains cut groups other than at their own borders."""
    return any(_cuts(setting, each) for each in accumulate(reversed(options.degrees.values()), mul))


def _cuts(setting: Setting, block: int, *, within: bool = False) -> bool:
    """Return whether such a border is within one of consecutive blocks of so many ranks.

    Args:
        within: Of blocks smaller than a domain, not all of which are cut.
    """
    domains = {pool.domain_devices for pool in setting.job.cluster.pools}
    return any(block % size and size % block for size in domains if size > block or not within)


def _family_bound(options: StrategyOptions, setting: Setting) -> float:
    if setting.decode is not None and options.pp > 1:
        return TIME_BOUNDS["pipelines that generate"]
    shards = options.memory.sharding in {"zero3", "hybrid"}
    overlap = resolved_overlap(options, setting.software)
    waits = not (overlap.hides_forward_gathers and overlap.hides_backward_gathers)
    if options.pipeline.schedule.startswith("dualpipe"):
        return TIME_BOUNDS["dualpipe, gathers that wait" if shards and waits else "dualpipe"]
    if options.pipeline.schedule.startswith("zb-"):
        return TIME_BOUNDS["zero-bubble"]
    if shards:
        if options.memory.sharding == "hybrid":
            return TIME_BOUNDS["hybrid, gathers that wait" if waits else "hybrid"]
        alone = "gathers that wait" if waits else "others"
        return TIME_BOUNDS["gathers in chunks" if options.pipeline.virtual_stages > 1 else alone]
    return TIME_BOUNDS["others"]

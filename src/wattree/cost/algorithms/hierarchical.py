"""Hierarchical collectives: within the domain, between domains, within the domain."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.messages import MessageSchedule
from wattree.cost.algorithms.registry import REDUCTIONS, Call, algorithm
from wattree.cost.algorithms.two_level import between_domains, shard_owner, within_domains


@algorithm("hierarchical", *REDUCTIONS)
def hierarchical(call: Call) -> MessageSchedule:
    """Return ring phases at two levels.

    All-reduce: reduce-scatter among the m members of a domain, all-reduce of `S / m` among the N
    domains, all-gather among the members,
    `2 (m - 1) (alpha + S / m beta) + 2 (N - 1) (alpha' + S / (m N) beta')`; COMET and ASTRA-sim
    call it bandwidth-aware [1].

    References:
        [1] S. Rashidi et al., "ASTRA-SIM: Enabling SW/HW Co-Design Exploration for Distributed DL
            Training Platforms", ISPASS 2020, doi:10.1109/ISPASS48437.2020.00018.
    """
    grid = call.group.grid(needed_by="algorithm 'hierarchical'")
    places = np.arange(grid.shape[1])
    if call.kind == "all_gather":
        owner = shard_owner(grid, shard=places, offset=0)
        rounds = between_domains(grid, shard=places, offset=0, reduces=False)
        rounds += within_domains(grid, offset=0, reduces=False)
    else:
        after = (places + 1) % len(places)  # the shard that reduce-scatter leaves at each place
        rounds = within_domains(grid, offset=0, reduces=True)
        rounds += between_domains(grid, shard=after, offset=0, reduces=True)
        if call.kind == "all_reduce":
            rounds += between_domains(grid, shard=after, offset=1, reduces=False)
            rounds += within_domains(grid, offset=1, reduces=False)
        owner = shard_owner(grid, shard=after, offset=1)
    return call.schedule("hierarchical", owner, rounds)

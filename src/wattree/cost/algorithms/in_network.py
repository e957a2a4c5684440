"""Reduction in switches: NVLS within a domain, SHARP in the fabric."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.messages import MessageSchedule, Round, round_of
from wattree.cost.algorithms.registry import REDUCTIONS, Call, algorithm
from wattree.cost.algorithms.two_level import between_domains, shard_owner, within_domains
from wattree.errors import CostError

_NO_SWITCH = (
    "algorithm 'nvls' needs a switch that adds in every domain; these devices have none, use "
    "'ring' or 'tree'"
)


@algorithm("nvls", *REDUCTIONS)
def nvls(call: Call) -> MessageSchedule:
    """Return collectives through NVSwitches that reduce and multicast.

    Place l of a domain works on shard l: the switch reads the shard from all members, adds, and
    hands it to l; l writes its shard to the switch once, which sends it to all [1]. A member so
    sends `S (1 + 1 / m)` in an all-reduce, where a ring sends `2 (m - 1) / m S`. Between domains
    the shards go around rings of members of the same place, each through its own adapter.

    References:
        [1] NVIDIA, NCCL 2.28, src/device/all_reduce.h (NVLS), and H100 whitepaper V1.04, 2023,
            "NVLink SHARP".
    """
    group = call.group
    grid = group.grid(needed_by="algorithm 'nvls'")
    if len(group.switches) != len(grid):
        raise CostError(_NO_SWITCH)
    domains, inside = grid.shape
    places = np.arange(inside)
    switch = group.ranks + np.arange(domains)[:, None]
    everything = period = domains * inside
    shard = places * domains

    def pull() -> tuple[Round, ...]:
        """Return the switch reading the shards of all devices and sending each to its owner."""
        return (
            round_of(grid, switch, count=everything, period=period, reduces=True),
            round_of(switch, grid, first=shard, count=domains, period=period),
        )

    def push() -> tuple[Round, ...]:
        """Return each device writing its shard to the switch, and the switch multicasting it."""
        return (
            round_of(grid, switch, first=shard, count=domains, period=period),
            round_of(switch, grid, count=everything, period=period),
        )

    # A place alone in its domain already has its shard, the whole.
    pulled, pushed = (pull(), push()) if inside > 1 else ((), ())
    if call.kind == "all_gather":
        owner = shard_owner(grid, shard=places, offset=0)
        rounds = between_domains(grid, shard=places, offset=0, reduces=False) + pushed
    else:
        owner = shard_owner(grid, shard=places, offset=1 if domains > 1 else 0)
        rounds = pulled + between_domains(grid, shard=places, offset=0, reduces=True)
        if call.kind == "all_reduce":
            rounds += between_domains(grid, shard=places, offset=1, reduces=False) + pushed
    return call.schedule("nvls", owner, rounds, helpers=group.switches, pipelined=True)


@algorithm("sharp", "all_reduce")
def sharp(call: Call) -> MessageSchedule:
    """Return an all-reduce that the switches of the fabric perform.

    Reduce-scatter in every domain, then every place sends its shard into the fabric and gets the
    sum back, then all-gather: an adapter carries `S / m` each way, whatever the number of domains
    [1]. `call.switch` is where the sums are made, such as `leaf0` or `spine`.

    References:
        [1] R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016,
            doi:10.1109/COMHPC.2016.006.
    """
    if call.switch is None:
        raise CostError("algorithm 'sharp' needs the vertex whose switches add; give `switch`")
    grid = call.group.grid(needed_by="algorithm 'sharp'")
    domains, inside = grid.shape
    shard = (np.arange(inside) + 1) % inside
    root = call.group.ranks
    into: tuple[Round, ...] = ()
    if domains > 1:
        into = (
            round_of(
                grid, root, first=shard * domains, count=domains, period=grid.size, reduces=True
            ),
            round_of(root, grid, first=shard * domains, count=domains, period=grid.size),
        )
    rounds = (
        *within_domains(grid, offset=0, reduces=True),
        *into,
        *within_domains(grid, offset=1, reduces=False),
    )
    owner = np.zeros(grid.size, dtype=np.int64)
    return call.schedule("sharp", owner, rounds, helpers=(call.switch,), pipelined=True)

"""All-to-all that stays on rails between domains."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.messages import MessageSchedule, round_of
from wattree.cost.algorithms.registry import Call, algorithm


@algorithm("rail", "all_to_all")
def rail(call: Call) -> MessageSchedule:
    """Return an all-to-all in two hops: over NVLink to the member on the receiver's rail, then out.

    What NCCL calls PXN: all parts that members of a domain send to one receiver leave together,
    through the adapter of the member of the receiver's place, and never cross the spine of a
    rail-optimised fabric [1]. Pipelined.

    References:
        [1] NVIDIA, "Doubling all2all Performance with NVIDIA Collective Communication Library
            2.12", developer blog, 2022.
    """
    grid = call.group.grid(needed_by="algorithm 'rail'")
    domains, inside = grid.shape
    n = grid.size
    # Chunk ((a N + b) m + j) m + i goes from place i of domain a to place j of domain b.
    a, b, j, i = np.indices((domains, domains, inside, inside))
    source, target = grid[a, i].ravel(), grid[b, j].ravel()
    chunk = np.arange(n * n).reshape(a.shape)
    gathers = i != j
    rounds = [
        round_of(grid[a, i][gathers], grid[a, j][gathers], first=chunk[gathers], period=n * n)
    ]
    leaves = (a != b)[..., 0]
    rounds.append(
        round_of(
            grid[a, j][..., 0][leaves],
            grid[b, j][..., 0][leaves],
            first=chunk[..., 0][leaves],
            count=inside,
            period=n * n,
        )
    )
    sent = [each for each in rounds if len(each.sender)]
    return call.exchange("rail", source, target, sent, pipelined=True)

"""Rings within every domain, and rings between domains over ranks of the same local index.

Chunks are numbered `place * domains + domain`, so that a shard, the part that one place of every
domain works on, is a run of chunks.
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.messages import Round, round_of


def within_domains(grid: Integers, *, offset: int, reduces: bool) -> tuple[Round, ...]:
    """Return a ring in every domain that forwards whole shards.

    Args:
        grid: Ranks by domain and place. Shape `(domains, members)`.
        offset: Place l begins with shard `l + offset`.
        reduces: A reduce-scatter, after which place l holds shard `l + offset + 1`; otherwise an
            all-gather.
    """
    domains, inside = grid.shape
    if inside == 1:
        return ()
    return (
        round_of(
            grid,
            np.roll(grid, -1, axis=1),
            first=(np.arange(inside) + offset) * domains,
            count=domains,
            period=inside * domains,
            shift=-domains,
            repeats=inside - 1,
            reduces=reduces,
        ),
    )


def between_domains(
    grid: Integers, *, shard: Integers, offset: int, reduces: bool
) -> tuple[Round, ...]:
    """Return a ring over the domains for every local index.

    Args:
        grid: Ranks by domain and place. Shape `(domains, members)`.
        shard: That each place works on. Shape `(members,)`.
        offset: Domain k begins with chunk `k + offset` of the shard.
        reduces: A reduce-scatter, after which domain k holds chunk `k + offset + 1`; otherwise an
            all-gather.
    """
    domains = len(grid)
    if domains == 1:
        return ()
    return (
        round_of(
            grid,
            np.roll(grid, -1, axis=0),
            base=shard * domains,
            first=np.arange(domains)[:, None] + offset,
            period=domains,
            shift=-1,
            repeats=domains - 1,
            reduces=reduces,
        ),
    )


def shard_owner(grid: Integers, *, shard: Integers, offset: int) -> Integers:
    """Return the rank of each chunk. Shape `(members * domains,)`.

    Place l has shard `shard[l]`, and domain k has chunk `k + offset` of it.
    """
    domains, inside = grid.shape
    owner = np.empty((inside, domains), dtype=np.int64)
    chunk = (np.arange(domains) + offset) % domains
    owner[shard[:, None], chunk] = grid.T
    return owner.ravel()

"""Buckets of gradients: how much leaves together, and what leaves last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.replica_traffic import bucket_part
from wattree.closed_form.stage_kinds import most_of_pools
from wattree.closed_form.stage_sums import StageSums


class Buckets(NamedTuple):
    """Time of the buckets of a micro-batch, `(distinct,)` each. [s]

    Attributes:
        inner: Of all but the last of each chunk.
        crowding: Of inner ones together with the gather of the block that comes next.
    """

    inner: Floats
    whole: Floats
    crowding: Floats


def buckets_of(tables: BlockCostTable, programs: Sequence[int]) -> Buckets:
    """Return the buckets of a chunk.

    Args:
        programs: Of the chunk, in model order.
    """
    full = tables.bucket_bytes
    time_s = size = inner = crowding = np.zeros(tables.every.shape[1])
    for following, number in reversed(list(pairwise(programs))):
        time_s, size = time_s + tables.every[number], size + tables.reduced_bytes[number]
        leaves = size >= full
        inner = inner + np.where(leaves, time_s, 0.0)
        together = np.minimum(time_s, tables.gather[following])
        crowding = crowding + np.where(leaves, together, 0.0)
        time_s, size = np.where(leaves, 0.0, time_s), np.where(leaves, 0.0, size)
    whole = sum((tables.every[number] for number in programs), np.zeros_like(inner))
    return Buckets(inner=inner, whole=whole, crowding=crowding)


def last_bucket_s(tables: BlockCostTable, programs: Sequence[int], name: str) -> Floats:
    """Return the time of the last bucket of a chunk, `(distinct,)`. [s]

    Buckets leave when they are full. That of the chunk's first block leaves in any case.

    Args:
        programs: Of the chunk, in model order.
        name: Reductions after `every` micro-batch, or `once` in a step.
    """
    full, time_s = tables.bucket_bytes, getattr(tables, f"{name}_work")
    size_bytes = tables.reduced_bytes if name == "every" else tables.reduced_once
    held_s = held = np.zeros(time_s.shape[1])
    first, *rest = programs
    for program, blocks in groupby(reversed(rest)):
        count, size = len(list(blocks)), np.maximum(size_bytes[program], 1e-30)
        fills = np.maximum(np.ceil((full - held) / size), 1.0)  # blocks until one is full
        left = (count - fills) % np.maximum(np.ceil(full / size), 1.0)
        leaves = fills <= count
        held_s = np.where(leaves, left, count) * time_s[program] + np.where(leaves, 0.0, held_s)
        held = np.where(leaves, left, count) * size_bytes[program] + np.where(leaves, 0.0, held)
    whole = tables.reduced_bytes[first] + tables.reduced_once[first]
    latency_s = (getattr(tables, name)[first] - time_s[first]) / bucket_part(whole, full)
    return np.asarray(held_s + time_s[first] + latency_s)


def first_bucket_s(tables: BlockCostTable, programs: Sequence[int]) -> Floats:
    """Return the time of the first bucket of updated parameters of a chunk, `(distinct,)`. [s]

    Args:
        programs: Of the chunk, in model order.
    """
    full = tables.parameter_bucket_bytes
    held_s = held = np.zeros(tables.update.shape[1])
    for program, blocks in groupby(programs):
        size = tables.gathered_once[program]
        fills = np.ceil((full - held) / np.maximum(size, 1e-30))  # blocks until it is full
        taken = np.clip(fills, 0.0, len(list(blocks)))
        held_s, held = held_s + taken * tables.update_work[program], held + taken * size
    first = programs[0]
    latency_s = tables.update[first] - tables.update_work[first]
    return np.asarray(held_s + latency_s / bucket_part(tables.gathered_once[first], full))


def buckets_by_kind(sums: StageSums) -> Buckets:
    """Return the buckets of gradients of each micro-batch, by kind of stage, `(rows,)` each."""
    if "every" in sums.nothing:
        nothing = np.zeros(len(sums.storage))
        return Buckets(nothing, nothing, nothing)
    of_chunk = cache(buckets_of)  # most are alike
    chunks = [chunks for contents in sums.kinds.helds for chunks in contents.programs]
    pools = [
        np.stack([np.sum([of_chunk(tables, own) for own in each], axis=0) for each in chunks], 1)
        for tables in sums.by_pool
    ]
    found = (most_of_pools(each, sums.kinds.shares) for each in zip(*pools, strict=True))
    return Buckets(*(sums.storage_rows(each) for each in found))

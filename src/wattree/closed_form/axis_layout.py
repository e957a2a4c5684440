"""How the axes of meshes lie on domains of neighbouring devices, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from wattree.arrays import Floats
from wattree.strategy import AXES


def strides(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return axis → ranks from one member of its groups to the next."""
    found: dict[str, Floats] = {}
    stride = np.ones_like(next(iter(values.values())))
    for axis in reversed(AXES):
        found[axis] = stride
        stride = stride * values[axis]
    return found


def inside(
    values: Mapping[str, Floats], axes: Sequence[str], *, domain: int, ranks: Floats
) -> Floats:
    """Return the members of groups over `axes` that share `domain` neighbouring devices, at least.

    Of a group across the border of two domains, the smaller part counts, as in the executor.

    Args:
        values: Axis → degree, `(n,)`; outer axes that change nothing here may be 1.
        ranks: Of the whole mesh, which lies on the domains, `(n,)`.
    """
    found, start, degree, stride = (np.ones_like(ranks) for _ in range(4))
    for axis in reversed(AXES):
        if axis in axes:  # neighbouring axes are one block
            start = np.where(degree > 1, start, stride)
            degree = degree * values[axis]
        elif (ends := (values[axis] > 1) & (degree > 1)).any():
            found = np.where(ends, found * _members(start, degree, domain, ranks), found)
            degree = np.where(ends, 1.0, degree)
        stride = stride * values[axis]
    return np.asarray(found * _members(start, degree, domain, ranks))


def _members(stride: Floats, degree: Floats, domain: int, ranks: Floats) -> Floats:
    """Return the members, `stride` apart, of the smallest part of a group in a domain."""
    block = stride * degree
    whole = np.clip(np.floor(domain / stride), 1.0, degree)
    apart = (ranks > domain) & (domain > stride) & (domain % block > 0) & (block % domain > 0)
    for at in np.flatnonzero(apart & (degree > 1)).tolist():
        part = _smallest_part(int(block[at]), domain, int(ranks[at] // block[at]))
        whole[at] = min(max(part // stride[at], 1.0), whole[at])
    return whole


@lru_cache(maxsize=4096)
def _smallest_part(block: int, domain: int, blocks: int) -> int:
    """Return the fewest devices of consecutive blocks that a border of domains cuts off."""
    ends = np.arange(1, min(blocks, domain) + 1) * block % domain
    tails = np.where((ends > 0) & (ends < block), ends, domain)
    # The block after an end begins with what is left of the domain, unless it all fits in.
    left = domain - ends[: blocks - 1]
    heads = np.where((left < domain) & (left < block), left, domain)
    return int(min(tails.min(), heads.min(initial=domain)))

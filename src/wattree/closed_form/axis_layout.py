"""How the axes of meshes lie on domains of neighbouring devices, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    return _over_blocks(_members, values, axes, domain, ranks)


def spanned(
    values: Mapping[str, Floats], axes: Sequence[str], *, domain: int, ranks: Floats
) -> Floats:
    """Return the domains that groups over `axes` lie in, at most; arguments as of `inside`."""
    return _over_blocks(_domains, values, axes, domain, ranks)


def _over_blocks(
    of_block: Callable[[Floats, Floats, int, Floats], Floats],
    values: Mapping[str, Floats],
    axes: Sequence[str],
    domain: int,
    ranks: Floats,
) -> Floats:
    """Return the product of what `of_block` says of each block of neighbouring axes."""
    found, start, degree, stride = (np.ones_like(ranks) for _ in range(4))
    for axis in reversed(AXES):
        if axis in axes:  # neighbouring axes are one block
            start = np.where(degree > 1, start, stride)
            degree = degree * values[axis]
        elif (ends := (values[axis] > 1) & (degree > 1)).any():
            found = np.where(ends, found * of_block(start, degree, domain, ranks), found)
            degree = np.where(ends, 1.0, degree)
        stride = stride * values[axis]
    return np.asarray(found * of_block(start, degree, domain, ranks))


def _members(stride: Floats, degree: Floats, domain: int, ranks: Floats) -> Floats:
    """Return the members, `stride` apart, of the smallest part of a group in a domain."""
    whole = np.clip(np.floor(domain / stride), 1.0, degree)
    for at in _cut(stride, degree, domain, ranks):
        block = int(stride[at] * degree[at])
        part = smallest_part(block, domain, int(ranks[at] // block))
        whole[at] = min(max(part // stride[at], 1.0), whole[at])
    return whole


def _domains(stride: Floats, degree: Floats, domain: int, ranks: Floats) -> Floats:
    """Return the domains of the group that lies in the most."""
    found = np.asarray(np.clip(stride * degree / domain, 1.0, degree))
    for at in _cut(stride, degree, domain, ranks):
        block = int(stride[at] * degree[at])
        found[at] = _most_domains(block, int(stride[at]), domain, int(ranks[at] // block))
    return found


def _cut(stride: Floats, degree: Floats, domain: int, ranks: Floats) -> list[int]:
    """Return the indices of groups that borders of domains cut elsewhere than at their own."""
    block = stride * degree
    apart = (ranks > domain) & (domain > stride) & (domain % block > 0) & (block % domain > 0)
    found: list[int] = np.flatnonzero(apart & (degree > 1)).tolist()
    return found


@lru_cache(maxsize=4096)
def _most_domains(block: int, stride: int, domain: int, blocks: int) -> int:
    """Return the domains that groups in consecutive blocks of devices lie in, at most.

    Of those of a block, `stride` of them, the one nearest to the end of its first domain reaches on
    furthest.
    """
    whole, rest = divmod(block - stride, domain)
    first = np.minimum(np.arange(min(blocks, domain)) * block % domain + stride, domain) - 1
    return whole + 1 + int((first + rest).max() >= domain)


@lru_cache(maxsize=4096)
def smallest_part(block: int, domain: int, blocks: int) -> int:
    """Return the fewest devices of consecutive blocks that a border of domains cuts off."""
    ends = np.arange(1, min(blocks, domain) + 1) * block % domain
    tails = np.where((ends > 0) & (ends < block), ends, domain)
    # The block after an end begins with what is left of the domain, unless it all fits in.
    left = domain - ends[: blocks - 1]
    heads = np.where((left < domain) & (left < block), left, domain)
    return int(min(tails.min(), heads.min(initial=domain)))

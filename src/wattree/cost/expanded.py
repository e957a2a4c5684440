"""Expanded memory: effect of a second tier, which devices access directly, on bandwidth.

With a share `y` of the bytes in the second tier, of bandwidth `B_E`, and the rest in the device's
own, of bandwidth `B_L`, all of them take so much longer than from the device's own alone:

- serial, one access after another: `(1 - y) + y B_L / B_E`;
- concurrent, both memories streaming at once, the least it can be: `max(1 - y, y B_L / B_E)`.

COMET (Kadiyala et al., arXiv:2211.16648) models memory expansion as a second tier; which of the
two it takes is not public, so both are here. Pure functions over arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedMemory:
    """A second tier of memory as one device accesses it, and the tensors stored there.

    Attributes:
        ratio: Bandwidth of the device's own memory over its share of the tier's.
        latency_s: Of one access; a kernel waits once for its first. [s]
        concurrent: Both memories stream at once; otherwise one access follows another.
        spilled: Share of all that has no tier of its own below and does not fit on the device,
            `(n,)` or a scalar; accesses are uniform over it.
        saved: Share of the activations saved for backward that is stored there, `(n,)` or a scalar.
        parameters, optimizer: They lie there.
        table_misses: Share of the lookups in tables that go there.
    """

    ratio: float
    latency_s: float
    concurrent: bool
    spilled: Floats
    saved: Floats
    parameters: bool = False
    optimizer: bool = False
    table_misses: float = 0.0

    def factor(self, share: Floats) -> Floats:
        """Return the slowdown of memory traffic with a `share` of it in the tier."""
        return bandwidth_factor(share, self.ratio, concurrent=self.concurrent)

    def waited_s(self, share: Floats) -> Floats:
        """Return the added latency of a kernel with a `share` of its bytes in the tier. [s]"""
        return np.where(share > 0, self.latency_s, 0.0)


def bandwidth_factor(share: Floats, ratio: float, *, concurrent: bool) -> Floats:
    """Return the slowdown of memory traffic with a `share` of it in a second memory, from 0 on.

    Args:
        share: Of the bytes that are in the second memory, 0 to 1.
        ratio: Bandwidth of the first memory over that of the second.
        concurrent: Both stream at once; otherwise one access follows another. Streaming at once
            can be faster than the first memory alone.
    """
    near, tier2 = 1.0 - share, share * ratio
    return np.maximum(near, tier2) if concurrent else near + tier2

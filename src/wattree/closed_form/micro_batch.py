"""A micro-batch in each kind of stage: its passes, and the traffic between replicas."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.buckets import buckets_by_kind
from wattree.closed_form.passes import PassTimes, crowding
from wattree.closed_form.stage_sums import StageSums
from wattree.lowering.movement import Overlap


class Exposed(NamedTuple):
    """Traffic that a micro-batch waits for in each kind of stage, `(rows,)` each. [s]

    Attributes:
        forward, backward: Of parameters.
        after: Of gradients.
    """

    forward: Floats
    backward: Floats
    after: Floats


class MicroBatchTimes(NamedTuple):
    """What a micro-batch takes in each kind of stage, `(rows,)` each. [s]

    Attributes:
        forward, backward: Computation, with copies of shards.
        gather, again, every: Gathers before forward and backward and reductions, which computation
            may hide.
        exposed: Traffic that nothing hides.
        crowded: By how much gathers that backward waits for are slower alongside reductions.
        spun: All traffic, counted twice where two collectives share links.
    """

    forward: PassTimes
    backward: PassTimes
    gather: Floats
    again: Floats
    every: Floats
    exposed: Exposed
    crowded: Floats
    spun: Floats


def micro_batch_times(
    sums: StageSums, overlap: Overlap, forward: PassTimes, backward: PassTimes
) -> MicroBatchTimes:
    """Return what a micro-batch takes in each kind of stage.

    Args:
        overlap: Which traffic runs alongside computation.
        forward, backward: Its passes.
    """
    kinds, nothing = sums.kinds, sums.nothing
    buckets = cache(lambda: buckets_by_kind(sums))  # only some ask for them
    shared = crowding(sums)
    gather, again, every = map(sums.of_storage, ("gather", "again", "every"))
    spun = gather + again + every
    ahead = behind = after = crowded = 0.0 * gather  # traffic that nothing hides
    # A gather that waits for the block before starts with its bucket, and shares links.
    if "again" not in nothing and not overlap.in_line & {"gradients", "parameters"}:
        spun = spun + 2.0 * shared * buckets().crowding
    if not overlap.hides_forward_gathers:
        ahead, gather = gather, 0.0 * gather
    if overlap.hides_gradients and not nothing & {"gather", "every"}:
        # Reductions run alongside gathers as well: of backward, and if they outlast it those of the
        # next forward.
        hidden = again * overlap.hides_backward_gathers
        waited = ahead + again - hidden
        every = np.maximum(every - waited, 0.0) + shared * np.minimum(waited, every)
        later = np.maximum(every + hidden - backward.span, 0.0) if hidden.any() else every
        both = np.minimum(hidden, every) + np.minimum(gather, later)
        every = every - (1.0 - shared) * np.minimum(both, every)
        if not overlap.hides_backward_gathers:
            # Where weight gradients are deferred, no gathers run alongside their reductions.
            defers = (kinds.is_split & ~kinds.pairs)[kinds.strategy]
            crowded = np.where(defers, 0.0, shared * buckets().crowding)
    if not overlap.hides_backward_gathers:
        behind, again = again, 0.0 * again
    if not overlap.hides_gradients:
        # In line, all are waited for. Otherwise the next block waits for a bucket, but what
        # comes after a chunk does not wait for its last one.
        share = buckets().inner / np.maximum(buckets().whole, 1e-30)
        after = every * (1.0 if overlap.gradients else share)
        every = every - after
        if not overlap.hides_backward_gathers and not overlap.gradients and "again" not in nothing:
            after = after - (1.0 - shared) * buckets().crowding  # the next block's gather goes on
    exposed = Exposed(ahead, behind, after)
    return MicroBatchTimes(forward, backward, gather, again, every, exposed, crowded, spun)

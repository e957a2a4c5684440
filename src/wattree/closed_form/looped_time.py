"""The time of pipelines whose micro-batches go from stage to stage, chunk after chunk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.closed_form.borders import Transfers


class LoopedStages(NamedTuple):
    """Times of a micro-batch in the stages of pipelines, `(n,)` each. [s]

    Attributes:
        longest: Forward and backward in the slowest stage.
        through: The same through all stages.
        forward: Share of forward in these. [1]
        stages, virtual: Of each pipeline.
        in_phases: Whether all forwards of a chunk come before those of the next, and all backwards
            after them.
    """

    longest: Floats
    through: Floats
    forward: Floats
    stages: Floats
    virtual: Floats
    in_phases: Flags


def looped_time_s(
    own: LoopedStages, micro_batches: Floats, transfers: Transfers, *, hidden: bool
) -> Floats:
    """Return the time of all micro-batches through pipelines, `(n,)`. [s]

    Stages run a round of `r` micro-batches through one chunk after another. With `f` and `b` the
    time of a chunk, and `x` that of a transfer, the next chunk begins `max(r f, sum of f and x over
    all stages)` after the last one, and so it is with `b`. After these rounds, stages repeat what
    they do every `f + b`, and later where they wait for transfers, see `_waited_s`.

    Args:
        hidden: Whether transfers run alongside computation; else the next slot waits for them.
    """
    chunks, hop = own.virtual, transfers.longest
    rounds = np.maximum(micro_batches // own.stages, 1.0)
    in_round = np.where(own.in_phases, micro_batches, np.ceil(micro_batches / rounds))
    slots = chunks * micro_batches - (chunks - 1.0) * in_round - 1.0
    slot, around = own.longest / chunks, own.through / chunks
    time_s = micro_batches * own.longest + around - slot + 2.0 * transfers.through
    phased = looped = np.zeros_like(time_s)
    # Where few borders are slow, the stages beside them are of a mean length.
    spare = np.where(transfers.side_by_side, 0.0, slot - around / own.stages)
    goes_back = own.forward < 1.0  # else all that crosses a border does in forward
    parts = (own.forward, np.where(goes_back, 1.0, 2.0)), (1.0 - own.forward, 1.0 * goes_back)
    for share, ways in parts:
        held = np.maximum(ways * hop - share * (slot if hidden else spare), 0.0)
        came = share * around + ways * (transfers.through + hop)
        late = np.maximum(in_round * held, came - share * in_round * slot)
        time_s = time_s + (chunks - 1.0) * np.maximum(late, 0.0)
        phased = phased + held
        looped = np.maximum(looped, came - in_round * slot)
    alternating = np.maximum(slots // in_round * looped * (chunks > 1), 0.0)
    waited = _waited_s(own, transfers, slots) - slots * (slot - around / own.stages)
    alternating = np.maximum(alternating, waited)
    alternating = np.maximum(alternating, transfers.crowds * slots * (2.0 * hop - slot))
    if not hidden:
        sides = np.where(transfers.side_by_side & ((own.stages > 2) | (chunks > 1)), 2.0, 1.0)
        alternating = np.maximum(alternating, slots * (sides * hop - spare))
    return np.asarray(time_s + np.where(own.in_phases | ~goes_back, slots * phased, alternating))


def _waited_s(own: LoopedStages, transfers: Transfers, slots: Floats) -> Floats:
    """Return how long stages wait for transfers in so many slots, `(n,)`. [s]

    A stage runs a forward when a backward has come back. Of `k + 1` stages that wait for each other
    the first runs `k + 1` slots from a forward to the one which its backward allows, in
    `(k + 1) (f + b) + 2 k x`; with several chunks, which let it run ahead, `2 k + 1` slots. Two
    stages are next to the slowest links, and all of them have links of a mean time. Links that both
    directions share are busy for `2 x` of every `f + b + 2 x`, so transfers often meet there.
    """
    several, stages = own.virtual > 1, own.stages
    both = own.through / stages / own.virtual
    mean = transfers.through / np.maximum(stages - 1.0, 1.0)
    found = np.zeros_like(slots)
    for hop, waiting in ((transfers.longest, np.minimum(stages, 2.0)), (mean, stages)):
        met = transfers.crowds * hop * hop / np.maximum(both + 2.0 * hop, 1e-30)
        hops = slots - np.ceil(slots / np.where(several, 2.0 * waiting - 1.0, waiting))
        hops = np.where(several, np.floor(hops / 2.0), hops)
        found = np.maximum(found, hops * (2.0 * (hop + met) - several * both))
    return found

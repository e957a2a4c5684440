"""Every rank sends straight to those that need its data."""

from __future__ import annotations

import numpy as np

from wattree.cost.algorithms.messages import MessageSchedule, round_of
from wattree.cost.algorithms.registry import KINDS, Call, algorithm


@algorithm("direct", *KINDS)
def direct(call: Call) -> MessageSchedule:
    """Return one step in which all messages travel at once; all-reduce takes two.

    As gloo's pairwise all-to-all, and the two-shot all-reduce over full meshes do.
    """
    n = call.group.ranks
    one, other = (index[~np.eye(n, dtype=bool)] for index in np.indices((n, n)))
    if call.kind == "all_to_all":
        only = round_of(one, other, first=np.arange(len(one)), period=len(one))
        return call.exchange("direct", one, other, [only])
    scatter = round_of(one, other, first=other, period=n, reduces=True)
    gather = round_of(one, other, first=one, period=n)
    rounds = {
        "all_reduce": (scatter, gather),
        "reduce_scatter": (scatter,),
        "all_gather": (gather,),
    }[call.kind]
    return call.schedule("direct", np.arange(n), rounds)

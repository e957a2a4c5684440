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
    if call.kind in {"all_to_all", "send_receive"}:
        return _pairs(call)
    n = call.group.ranks
    ranks = np.arange(n)
    one, other = (index[~np.eye(n, dtype=bool)] for index in np.indices((n, n)))
    rooted = ranks[ranks != call.root]
    scatter = round_of(one, other, first=other, period=n, reduces=True)
    gather = round_of(one, other, first=one, period=n)
    rounds = {
        "all_reduce": (scatter, gather),
        "reduce_scatter": (scatter,),
        "all_gather": (gather,),
        "broadcast": (round_of(call.root, rooted, period=n, count=n),),
        "reduce": (round_of(rooted, call.root, period=n, count=n, reduces=True),),
        "gather": (round_of(rooted, call.root, first=rooted, period=n),),
        "scatter": (round_of(call.root, rooted, first=rooted, period=n),),
    }[call.kind]
    return call.schedule("direct", ranks, rounds)


def _pairs(call: Call) -> MessageSchedule:
    n, more = call.group.ranks, {}
    if call.kind == "send_receive":
        one, other = np.array([call.root]), np.array([call.peer])
        more = {"chunk_bytes": np.array([call.size_bytes])}
    else:
        one, other = (index[~np.eye(n, dtype=bool)] for index in np.indices((n, n)))
    first = np.arange(len(one))
    moved = one != other  # a message to oneself stays where it is
    only = round_of(one[moved], other[moved], first=first[moved], period=len(one))
    ends = one.astype(np.int64), other.astype(np.int64)
    return call.exchange("direct", *ends, [only], **more)

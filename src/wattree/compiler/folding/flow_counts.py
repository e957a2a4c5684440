"""Pass 11b: how many flows a folded task stands for on each of its links.

Of the ranks that a task stands for on a link, those of one process group are one flow. Shares go
by flows, so a task's twins get together what each of them would.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.folding.kernels import Loads, Rows

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def flow_counts(rows: Rows, loads: Loads, *, members: Integers, copy: Integers) -> Floats:
    """Return the flows behind each entry of `rows.flow_links`.

    No whole number where a group has other numbers of members on its links: then it is what all
    take there over what one takes where it takes most.

    Args:
        rows: Of all instances, with the ranks of each flow.
        loads: What tasks send.
        members: Ranks that one group has on one link of each direction of `loads`, by copy of a
            pattern, `(D, copies)`; 1 for what is no collective of a group.
        copy: Of each instance, `(I,)`.
    """
    kind = np.zeros(int(loads.link.max(initial=0)) + 1, dtype=np.int64)
    for d in range(len(loads.link)):
        kind[loads.link[d]] = d
    of_flow = np.repeat(copy, np.diff(rows.flow_offsets))
    of_one = members[kind[rows.flow_links], of_flow]
    return np.asarray(rows.flow_ranks / of_one)

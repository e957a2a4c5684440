"""Finds in a trace that all stages repeat themselves, so that more turns would do so too."""

from __future__ import annotations

import numpy as np

from wattree.compiler.folding.turns import Turns
from wattree.strategy.schedules import longest_run
from wattree.trace import Repeats, Trace

#: What times of one turn may differ by from those of another, as a share of the step.
_TIME = 1e-12
#: What the memory that a turn takes may differ by from what it gives back, as a share of it.
_BYTES = 1e-9


def repeats_of(trace: Trace, turns: Turns) -> Repeats | None:
    """Return the turns that were left out; None where the trace does not tell what they would be.

    A stage is steady while each of its tasks runs as the same one did a period before. If all are
    at once, for a whole period, then the state at its end is that at its begin, and what
    follows from it follows again, as long as orders repeat: turns can be put in there.
    """
    within_s = _TIME * trace.makespan_s
    begins, ends = turns.begin, turns.begin + turns.length
    period_s = float(trace.start_s[ends[0]] - trace.start_s[begins[0]])
    from_s, until_s = 0.0, np.inf
    chosen = []
    for stage, length in enumerate(turns.length.tolist()):
        first, last = turns.first[stage : stage + 2].tolist()
        before, after = slice(first, last - length), slice(first + length, last)
        same = turns.record[before] == turns.record[after]
        for times_s in (trace.start_s, trace.end_s):
            same &= np.abs(times_s[after] - times_s[before] - period_s) <= within_s
        begin, end = (first + place for place in longest_run(same))
        if end - begin < length:
            return None
        from_s = max(from_s, float(trace.end_s[first:begin].max(initial=0.0)))
        until_s = min(until_s, float(trace.start_s[end + length : last].min(initial=np.inf)))
        chosen.append(begin)
        taken, given = (
            float(of[begin : begin + length].sum())
            for of in (trace.graph.alloc_bytes, trace.graph.free_bytes)
        )
        if abs(taken - given) > _BYTES * taken:
            return None
    if not 0.0 < period_s <= until_s - from_s:
        return None
    first_task = np.array(chosen)[turns.stage_of_class]
    return Repeats(
        times=turns.times,
        period_s=period_s,
        steady_s=from_s,
        begin=first_task,
        end=first_task + turns.length[turns.stage_of_class],
    )

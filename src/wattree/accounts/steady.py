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

    A stage is steady while each of its tasks runs as the same one did a period before. If at one
    moment all stages are, and also a period later, then the state of then is that of before, and
    what follows from it follows again, as long as the orders repeat: turns can be put in there.
    """
    period_s = _length_s(trace, turns)
    begins, steady_s = np.zeros_like(turns.length), np.zeros((len(turns.length), 2))
    for stage, length in enumerate(turns.length.tolist()):
        begin, end = _steady(trace, turns, stage, period_s)
        if end - begin < length or not _gives_back(trace, begin, begin + length):
            return None
        first, last = turns.first[stage : stage + 2].tolist()
        begins[stage] = begin
        # Of the tasks that run at a moment and a period later, each must have its like.
        ended_s = [trace.end_s[first:at].max(initial=0.0) for at in (begin, begin + length)]
        starts_s = [trace.start_s[at:last].min(initial=np.inf) for at in (end, end + length)]
        steady_s[stage] = (
            max(ended_s[0], ended_s[1] - period_s),
            min(starts_s[0], starts_s[1] - period_s),
        )
    lasts_s = steady_s[:, 1] - steady_s[:, 0]
    if not (lasts_s.min() >= period_s > 0.0 and steady_s[:, 0].max() <= steady_s[:, 1].min()):
        return None
    begin_of_class = begins[turns.stage_of_class]
    return Repeats(
        times=turns.times,
        period_s=period_s,
        steady_s=steady_s[turns.stage_of_class],
        begin=begin_of_class,
        end=begin_of_class + turns.length[turns.stage_of_class],
    )


def _length_s(trace: Trace, turns: Turns) -> float:
    """Return how much later a turn of the first stage is than the one before it. [s]"""
    begin, length = turns.begin[0], turns.length[0]
    return float(trace.start_s[begin + length] - trace.start_s[begin])


def _steady(trace: Trace, turns: Turns, stage: int, period_s: float) -> tuple[int, int]:
    """Return the longest run of tasks of a stage that come again a period later, as they were."""
    first, last = turns.first[stage : stage + 2].tolist()
    length, within_s = int(turns.length[stage]), _TIME * trace.makespan_s
    before, after = slice(first, last - length), slice(first + length, last)
    same = turns.record[before] == turns.record[after]
    for times_s in (trace.start_s, trace.end_s):
        same &= np.abs(times_s[after] - times_s[before] - period_s) <= within_s
    begin, end = longest_run(same)
    return first + begin, first + end


def _gives_back(trace: Trace, begin: int, end: int) -> bool:
    """Return whether tasks free as much memory as they take."""
    graph = trace.graph
    taken, given = (float(of[begin:end].sum()) for of in (graph.alloc_bytes, graph.free_bytes))
    return abs(taken - given) <= _BYTES * taken

"""Kernels of a traced device: the class of each, and the operators that launched them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Flags
from wattree.kineto.op_classes import ELEMENTWISE, OPTIMIZER, op_classes
from wattree.kineto.traced_rank import TracedRank

#: Operators that are listed of a class.
_LISTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassKernels:
    """Kernels of one class in a step.

    Attributes:
        count: Of a step, on average.
        operators: Name → time of its kernels, longest first; a few. [s]
    """

    count: float
    operators: Mapping[str, float]


def kernel_classes(trace: TracedRank) -> dict[str, Flags]:
    """Return class → which kernels are of it: by name, or by the optimizer's step around them."""
    rules = op_classes()
    _, _, name = trace.kernels.columns()
    updating, found = _updating(trace), {}
    of_name = np.full(len(trace.names), "", dtype=object)
    for each in np.unique(name):
        of_name[each] = rules.of("kernels", trace.names[each]) or ELEMENTWISE
    for own in sorted({*of_name, OPTIMIZER} - {""}):
        found[own] = (of_name == own)[name] & ~updating
    found[OPTIMIZER] |= updating
    return found


def _updating(trace: TracedRank) -> Flags:
    """Return for each kernel whether it was launched inside a mark of the optimizer's step."""
    rules = op_classes()
    begin, end, name = trace.marks.columns()
    chosen = np.array([rules.of("marks", each) == OPTIMIZER for each in trace.names], dtype=bool)
    begin, end = begin[chosen[name]], end[chosen[name]]
    if not len(begin):
        return np.zeros(len(trace.launch_s), dtype=bool)
    order = np.argsort(begin)
    # Unknown launches sort behind all marks and lie in none of them.
    last = np.searchsorted(begin[order], trace.launch_s, side="right") - 1
    return np.asarray((last >= 0) & (trace.launch_s < np.maximum.accumulate(end[order])[last]))


def class_kernels(trace: TracedRank, classes: Mapping[str, Flags]) -> dict[str, ClassKernels]:
    """Return class → its kernels, on average over the marked steps.

    Args:
        trace: Of a rank.
        classes: Class → which kernels are of it.
    """
    start, end, _ = trace.kernels.columns()
    inside = np.zeros(len(start), dtype=bool)
    for begin_s, end_s in trace.steps.values():
        inside |= (start >= begin_s) & (start < end_s)
    found, steps = {}, len(trace.steps)
    for name, own in classes.items():
        known = own & inside & np.isfinite(trace.operator)
        operator, place = np.unique(trace.operator[known].astype(np.int64), return_inverse=True)
        seconds = np.bincount(place, (end - start)[known], minlength=len(operator)) / steps
        longest = np.argsort(-seconds, kind="stable")[:_LISTED]
        found[name] = ClassKernels(
            count=float((own & inside).sum()) / steps,
            operators={trace.names[operator[each]]: float(seconds[each]) for each in longest},
        )
    return {name: own for name, own in found.items() if own.count > 0}

"""Studies of clusters: resources swept together with strategies."""

from wattree.design.outcome import TOTALS, Outcome, WorkloadOutcome
from wattree.design.points import Point
from wattree.design.results import Results
from wattree.design.study import OBJECTIVES, Axis, Study, Workload

__all__ = [
    "OBJECTIVES",
    "TOTALS",
    "Axis",
    "Outcome",
    "Point",
    "Results",
    "Study",
    "Workload",
    "WorkloadOutcome",
]

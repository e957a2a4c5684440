"""The space of strategies and clusters, screened, simulated and ranked."""

from wattree.search.best import Best, Estimate, Known, best_strategy
from wattree.search.fixes import with_memory_fixes
from wattree.search.limits import Limits, cluster_counts
from wattree.search.objective import check_objectives
from wattree.search.plan import plan
from wattree.search.plan_result import Plan
from wattree.search.promising import misses
from wattree.search.screen import Constraints

__all__ = [
    "Best",
    "Constraints",
    "Estimate",
    "Known",
    "Limits",
    "Plan",
    "best_strategy",
    "check_objectives",
    "cluster_counts",
    "misses",
    "plan",
    "with_memory_fixes",
]

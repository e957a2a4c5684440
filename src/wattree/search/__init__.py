"""The space of strategies and clusters, screened, simulated and ranked."""

from wattree.search.fixes import memory_fixes, with_memory_fixes
from wattree.search.plan import plan
from wattree.search.plan_result import Plan, RankedStrategy

__all__ = ["Plan", "RankedStrategy", "memory_fixes", "plan", "with_memory_fixes"]

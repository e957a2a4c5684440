"""The space of strategies and clusters, screened, simulated and ranked."""

from wattree.search.plan import plan
from wattree.search.plan_result import Plan, RankedStrategy

__all__ = ["Plan", "RankedStrategy", "plan"]

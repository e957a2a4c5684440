"""Named strategies as functions that return trees. The compiler does not know these names."""

from wattree.strategy.presets.combine import (
    PRESETS,
    options_of_preset,
    schedule_name,
    schedule_of_chunks,
    strategy_of,
    tree_of,
)
from wattree.strategy.presets.data import REPLICAS

__all__ = [
    "PRESETS",
    "REPLICAS",
    "options_of_preset",
    "schedule_name",
    "schedule_of_chunks",
    "strategy_of",
    "tree_of",
]

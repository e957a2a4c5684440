"""Named strategies as functions that return trees. The compiler does not know these names."""

from wattree.strategy.presets.combine import (
    PRESETS,
    options_of_preset,
    schedule_of_chunks,
    strategy_of,
    tree_of,
    unknown_preset,
)

__all__ = [
    "PRESETS",
    "options_of_preset",
    "schedule_of_chunks",
    "strategy_of",
    "tree_of",
    "unknown_preset",
]

"""Strategies: meshes, trees, presets, schedules. Knows no model and no hardware."""

from wattree.strategy.mesh import AXES, Mesh
from wattree.strategy.options import RECOMPUTATIONS, SCHEDULES, SHARDINGS, StrategyOptions
from wattree.strategy.strategy import CUSTOM, Schedule, Strategy
from wattree.strategy.traffic import IN_LINE, TIERS, Offload, Prefetch, Traffic
from wattree.strategy.tree import ActivationStore, Choices, MemoryChoice, StrategyTree, TreeNode
from wattree.strategy.words import options_in_words

__all__ = [
    "AXES",
    "CUSTOM",
    "IN_LINE",
    "RECOMPUTATIONS",
    "SCHEDULES",
    "SHARDINGS",
    "TIERS",
    "ActivationStore",
    "Choices",
    "MemoryChoice",
    "Mesh",
    "Offload",
    "Prefetch",
    "Schedule",
    "Strategy",
    "StrategyOptions",
    "StrategyTree",
    "Traffic",
    "TreeNode",
    "options_in_words",
]

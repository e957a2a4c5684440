"""Strategies: meshes, trees, presets, schedules. Knows models as data, and no hardware."""

from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.mesh import AXES, Mesh
from wattree.strategy.options import (
    CONTEXTS,
    RECOMPUTATIONS,
    SCHEDULES,
    SHARDINGS,
    SPATIAL,
    TABLES,
    ULYSSES,
    StrategyOptions,
)
from wattree.strategy.phantom import (
    ACTIVATIONS,
    EXCHANGES,
    GHOSTS,
    PAIR,
    RANK,
    SHARED,
    VARIANTS,
    PhantomLayers,
)
from wattree.strategy.strategy import CUSTOM, Schedule, Strategy
from wattree.strategy.traffic import IN_LINE, TIERS, Offload, Prefetch, Traffic
from wattree.strategy.tree import (
    OWNER,
    ActivationStore,
    Choices,
    ContextExchange,
    GatheredStore,
    MemoryChoice,
    PositionOrder,
    StrategyTree,
    TreeNode,
)
from wattree.strategy.words import options_in_words

__all__ = [
    "ACTIVATIONS",
    "AXES",
    "CONTEXTS",
    "CUSTOM",
    "EXCHANGES",
    "GHOSTS",
    "IN_LINE",
    "OWNER",
    "PAIR",
    "RANK",
    "RECOMPUTATIONS",
    "SCHEDULES",
    "SHARDINGS",
    "SHARED",
    "SPATIAL",
    "TABLES",
    "TIERS",
    "ULYSSES",
    "VARIANTS",
    "ActivationStore",
    "Choices",
    "ContextExchange",
    "ExpertLoad",
    "GatheredStore",
    "MemoryChoice",
    "Mesh",
    "Offload",
    "PhantomLayers",
    "PositionOrder",
    "Prefetch",
    "Schedule",
    "Strategy",
    "StrategyOptions",
    "StrategyTree",
    "Traffic",
    "TreeNode",
    "options_in_words",
]

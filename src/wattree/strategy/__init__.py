"""Strategies: meshes, trees, presets, schedules. Knows models as data, and no hardware."""

from wattree.strategy.colocation import (
    BATCH_RULES,
    DEVICE_SHARINGS,
    FIXED_GLOBAL,
    FIXED_PER_PROCESS,
    MPS,
    TIME_SLICED,
    Colocation,
)
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
from wattree.strategy.phantom import PAIR, RANK, SHARED, VARIANTS, PhantomLayers
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
    "AXES",
    "BATCH_RULES",
    "CONTEXTS",
    "CUSTOM",
    "DEVICE_SHARINGS",
    "FIXED_GLOBAL",
    "FIXED_PER_PROCESS",
    "IN_LINE",
    "MPS",
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
    "TIME_SLICED",
    "ULYSSES",
    "VARIANTS",
    "ActivationStore",
    "Choices",
    "Colocation",
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

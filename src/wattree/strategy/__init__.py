"""Strategies: meshes, trees, presets and schedules. Models are data here; hardware is unknown."""

from wattree.strategy.colocation import (
    BATCH_RULES,
    FIXED_GLOBAL,
    FIXED_PER_PROCESS,
    MPS,
    TIME_SLICED,
    Colocation,
)
from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.knob import Knob, knobs_of
from wattree.strategy.mesh import AXES, STAGES, Mesh, in_line
from wattree.strategy.nested import FineMesh, fine_mesh, on_fine_axes
from wattree.strategy.options import KNOBS, StrategyOptions
from wattree.strategy.phantom import ACTIVATIONS, GHOSTS, PAIR, RANK, SHARED, PhantomLayers
from wattree.strategy.roles import AxisRole, axis_roles, tensor_degrees
from wattree.strategy.schedules import SlotWork, chunk_layers
from wattree.strategy.specs import (
    CONTEXTS,
    MODULES,
    OPERATOR_RECOMPUTATIONS,
    RECOMPUTATIONS,
    RECOMPUTED_MODULES,
    SCHEDULES,
    SHARDINGS,
    SPATIAL,
    TABLES,
    ULYSSES,
    MemoryOptions,
    ParallelismOptions,
    PhantomOptions,
    PipelineOptions,
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
from wattree.strategy.words import options_in_words, schedule_in_words

__all__ = [
    "ACTIVATIONS",
    "AXES",
    "BATCH_RULES",
    "CONTEXTS",
    "CUSTOM",
    "FIXED_GLOBAL",
    "FIXED_PER_PROCESS",
    "GHOSTS",
    "IN_LINE",
    "KNOBS",
    "MODULES",
    "MPS",
    "OPERATOR_RECOMPUTATIONS",
    "OWNER",
    "PAIR",
    "RANK",
    "RECOMPUTATIONS",
    "RECOMPUTED_MODULES",
    "SCHEDULES",
    "SHARDINGS",
    "SHARED",
    "SPATIAL",
    "STAGES",
    "TABLES",
    "TIERS",
    "TIME_SLICED",
    "ULYSSES",
    "ActivationStore",
    "AxisRole",
    "Choices",
    "Colocation",
    "ContextExchange",
    "ExpertLoad",
    "FineMesh",
    "GatheredStore",
    "Knob",
    "MemoryChoice",
    "MemoryOptions",
    "Mesh",
    "Offload",
    "ParallelismOptions",
    "PhantomLayers",
    "PhantomOptions",
    "PipelineOptions",
    "PositionOrder",
    "Prefetch",
    "Schedule",
    "SlotWork",
    "Strategy",
    "StrategyOptions",
    "StrategyTree",
    "Traffic",
    "TreeNode",
    "axis_roles",
    "chunk_layers",
    "fine_mesh",
    "in_line",
    "knobs_of",
    "on_fine_axes",
    "options_in_words",
    "schedule_in_words",
    "tensor_degrees",
]

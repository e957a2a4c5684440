"""What a strategy, a model, software and a cluster imply for one step, before anybody runs it."""

from wattree.lowering.block import ModelProgram, compile_model
from wattree.lowering.costs import BlockCosts, block_costs
from wattree.lowering.groups import Placement
from wattree.lowering.placed import PlacedJob
from wattree.lowering.program import BlockProgram, CollectiveKind, Scale

__all__ = [
    "BlockCosts",
    "BlockProgram",
    "CollectiveKind",
    "ModelProgram",
    "PlacedJob",
    "Placement",
    "Scale",
    "block_costs",
    "compile_model",
]

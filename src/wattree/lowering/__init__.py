"""Lower a strategy, model, software and cluster to the program of one step, before execution.

Submodules are imported on first use, because checking a job needs few of them.
"""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.lowering.block import ModelProgram, compile_model
    from wattree.lowering.costs import BlockCosting, BlockCosts
    from wattree.lowering.groups import Placement
    from wattree.lowering.placed import PlacedJob
    from wattree.lowering.program import BlockProgram, CollectiveKind, Scale

__all__ = [
    "BlockCosting",
    "BlockCosts",
    "BlockProgram",
    "CollectiveKind",
    "ModelProgram",
    "PlacedJob",
    "Placement",
    "Scale",
    "compile_model",
]

__getattr__ = _fetching(__name__)

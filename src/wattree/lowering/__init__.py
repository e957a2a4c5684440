"""Lower a strategy, model, software and cluster to the program of one step, before execution.

Submodules are imported on first use, because checking a job needs few of them.
"""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.lowering.block import ModelProgram
    from wattree.lowering.costs import BlockCosting
    from wattree.lowering.placed import PlacedJob
    from wattree.lowering.program import BlockProgram

__all__ = [
    "BlockCosting",
    "BlockProgram",
    "ModelProgram",
    "PlacedJob",
]

__getattr__ = _fetching(__name__)

"""Model, strategy and cluster in; execution graph out. One pass per file."""

from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.compile import Compilation, compile_job
from wattree.compiler.evaluate import BlockCosts, Placement, block_costs
from wattree.compiler.ledger import MemoryLedger
from wattree.compiler.program import BlockProgram, CollectiveKind, Scale

__all__ = [
    "BlockCosts",
    "BlockProgram",
    "CollectiveKind",
    "Compilation",
    "MemoryLedger",
    "ModelProgram",
    "Placement",
    "Scale",
    "block_costs",
    "compile_job",
    "compile_model",
]

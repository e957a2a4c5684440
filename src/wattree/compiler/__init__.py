"""Model, strategy and cluster in; execution graph out. One pass per file."""

from wattree.compiler.arrays import link_kind
from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.compile import Compilation, JobToCompile, compile_job, compile_jobs
from wattree.compiler.evaluate import BlockCosts, Placement, block_costs
from wattree.compiler.ledger import MemoryLedger
from wattree.compiler.program import BlockProgram, CollectiveKind, Scale

__all__ = [
    "BlockCosts",
    "BlockProgram",
    "CollectiveKind",
    "Compilation",
    "JobToCompile",
    "MemoryLedger",
    "ModelProgram",
    "Placement",
    "Scale",
    "block_costs",
    "compile_job",
    "compile_jobs",
    "compile_model",
    "link_kind",
]

"""Compiles a lowered step to an execution graph: its tasks, then the rank classes that run them."""

from wattree.compiler.compile import Compilation, compile_job, compile_jobs
from wattree.compiler.folding.arrays import link_kind
from wattree.compiler.tasks.ledger import MemoryLedger

__all__ = [
    "Compilation",
    "MemoryLedger",
    "compile_job",
    "compile_jobs",
    "link_kind",
]

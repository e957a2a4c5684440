"""Executors that simulate an execution graph and return its trace."""

from wattree.sim.ahead import compile_ahead, kernels_are_compiled
from wattree.sim.engine import execute

__all__ = [
    "compile_ahead",
    "execute",
    "kernels_are_compiled",
]

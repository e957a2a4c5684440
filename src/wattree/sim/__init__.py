"""Executors that simulate an execution graph and return its trace."""

from wattree.sim.ahead import compile_ahead, kernels_are_compiled
from wattree.sim.engine import execute, execute_events

__all__ = [
    "compile_ahead",
    "execute",
    "execute_events",
    "kernels_are_compiled",
]

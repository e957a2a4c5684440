"""Executors that play an execution graph and return its trace."""

from wattree.sim.ahead import compile_ahead, kernels_are_compiled
from wattree.sim.engine import execute, execute_events
from wattree.sim.reference import execute_reference, reference_events

__all__ = [
    "compile_ahead",
    "execute",
    "execute_events",
    "execute_reference",
    "kernels_are_compiled",
    "reference_events",
]

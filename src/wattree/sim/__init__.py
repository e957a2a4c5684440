"""Executors that play an execution graph and return its trace."""

from wattree.sim.ahead import compile_ahead, kernels_are_compiled
from wattree.sim.engine import play, play_events
from wattree.sim.reference import play_reference, reference_events

__all__ = [
    "compile_ahead",
    "kernels_are_compiled",
    "play",
    "play_events",
    "play_reference",
    "reference_events",
]

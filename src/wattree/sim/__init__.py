"""Executors that play an execution graph and return its trace."""

from wattree.sim.engine import kernels_are_compiled, play, play_events
from wattree.sim.reference import play_reference, reference_events

__all__ = ["kernels_are_compiled", "play", "play_events", "play_reference", "reference_events"]
